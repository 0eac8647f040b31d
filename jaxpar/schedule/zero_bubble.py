"""ZB-H1 and ZB-H2: the backward split in two, so that weight gradients fill the bubble."""

import numpy as np

from jaxpar.schedule.chunks import check_one_chunk
from jaxpar.schedule.greedy import Rule, fastest
from jaxpar.schedule.schedule import Schedule


def zb_h1(num_ranks, num_microbatches, num_chunks=1):
    """1F1B with I in the place of B, and W where a rank would wait or would hold more than P microbatches.

    Every rank holds at most min(P, M) microbatches, and at most r + 1 weight gradients wait on rank r. Makespan
    max(3 M + P - 1, 2 M + 2 P - 1) at unit costs, the least possible: the last rank begins after P - 1 forwards, and
    rank 0 has M each of I and W left when its first gradient arrives. With fewer microbatches than ranks the warm-up
    is all of them.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.1.

    Raises:
      SettingError: more than one chunk a rank.
    """
    ranks = np.arange(num_ranks)
    return _split("zb_h1", num_ranks, num_microbatches, num_chunks, num_ranks, num_ranks - ranks, ranks + 1)


def zb_h2(num_ranks, num_microbatches, num_chunks=1):
    """ZB-H1 with forwards ahead, 2 (P - r) - 1 on rank r: from its first action on no rank waits.

    Every rank holds at most min(2 P - 1, M) microbatches, and at most 2 r + 1 weight gradients wait on rank r, which is
    busy from tick r to tick r + 3 M where M is at least 2 P - 1. A step that begins and ends together takes
    3 M + P - 1 at unit costs all the same, as ZB-H1 does with half the memory; what the memory buys is slack where W
    takes less than F.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.2.

    Raises:
      SettingError: more than one chunk a rank.
    """
    ranks = np.arange(num_ranks)
    ahead, pending = 2 * (num_ranks - ranks) - 1, 2 * ranks + 1
    return _split("zb_h2", num_ranks, num_microbatches, num_chunks, 2 * num_ranks - 1, ahead, pending)


def _split(name, num_ranks, num_microbatches, num_chunks, live, ahead, pending):
    """One rule; `pending` is what rank r runs after its last I, while the ranks before it still run theirs."""
    check_one_chunk(name, num_chunks, "interleaved_zb")
    ticks = fastest(num_ranks, 1, num_microbatches, "loop", [Rule("F0 I0 W0", live, ahead=ahead, pending=pending)])
    return Schedule.from_ticks(name, num_ranks, 1, num_microbatches, "loop", ticks)
