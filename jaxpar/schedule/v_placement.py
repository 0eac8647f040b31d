"""ZB-V, V-Half and V-Min: two chunks a rank, down the ranks and back up, so that memory is even and can be capped."""

import numpy as np

from jaxpar.schedule.chunks import check_two_chunks
from jaxpar.schedule.greedy import Rule, fastest
from jaxpar.schedule.schedule import Schedule


def zb_v(num_ranks, num_microbatches, num_chunks=2):
    """Zero bubble within the memory of 1F1B: every rank holds at most P microbatches.

    Makespan 3 M + (P - 1)/2 at unit costs for M of at least P, the least possible; with fewer microbatches the way down
    and up the V decides. The order is the V of the paper with three ticks a hop, W put where F and I leave room. At
    most P/2 microbatches of weight gradients wait. That is half of what a rank needs that shall not wait at all between
    its first action and its last (as the paper counts bubbles), and a step that all ranks end together is no longer.
    Source: Qi et al. 2023, arXiv:2401.10241, section 6; Qi et al. 2024, arXiv:2405.15362, section 3.

    Raises:
      SettingError: the number of chunks is not two.
    """
    return _capped("zb_v", num_ranks, num_microbatches, num_chunks, 2 * num_ranks, _ZB_V)


def v_half(num_ranks, num_microbatches, num_chunks=2):
    """Every rank holds at most P/2 + 1 microbatches: five eighths of 1F1B's P at 8 ranks, half in the limit.

    No bubble in the steady state where F, I and W cost the same: the makespan at unit costs is at most 3 M + 3 P/2 - 2
    for M of at least P (P > 1). The paper's order has hops of one tick on the ways on which memory is held for long,
    and of two on the others; here that and some list schedules under the same cap are played, and the shortest is
    taken, so that any M and P are served.
    Source: Qi et al. 2024, arXiv:2405.15362, section 3.

    Raises:
      SettingError: the number of chunks is not two.
    """
    return _capped("v_half", num_ranks, num_microbatches, num_chunks, num_ranks + 2, _V_HALF)


def v_min(num_ranks, num_microbatches, num_chunks=2):
    """Every rank holds at most ceil((P + 2)/3) microbatches: half of 1F1B's P at 8 ranks, a third in the limit.

    That is about the least that leaves no bubble in the steady state where F, I and W cost the same: the makespan at
    unit costs is at most 3 M + 2 P - 3/2 for M of at least P. With other costs every microbatch waits. The paper's
    order has hops of one tick; where 3 divides P it would collide with itself, and waits at the turns. Played against
    list schedules as in v_half.
    Source: Qi et al. 2024, arXiv:2405.15362, section 3.

    Raises:
      SettingError: the number of chunks is not two.
    """
    return _capped("v_min", num_ranks, num_microbatches, num_chunks, 2 * -(-(num_ranks + 2) // 3), _V_MIN)


def _capped(name, num_ranks, num_microbatches, num_chunks, live, rules):
    """The shortest of `rules` under a cap of `live` chunk activations a rank."""
    check_two_chunks(name, num_chunks)
    played = [rule(num_ranks, num_microbatches, max(2, live)) for rule in rules]
    ticks = fastest(num_ranks, 2, num_microbatches, "v", played)
    return Schedule.from_ticks(name, num_ranks, 2, num_microbatches, "v", ticks)


def _block(hops, turns, few_pending=False):
    """The paper's building block, repeated every six ticks (a rank's work on a microbatch).

    Args:
      hops: ticks from a rank to the next for F of chunk 0, F of chunk 1, I of chunk 1 and I of chunk 0.
      turns: ticks between those four.
      few_pending: at most P weight gradients of a chunk wait, enough to fill the last bubble.
    """

    def rule(num_ranks, num_microbatches, live):
        down, up = np.arange(num_ranks), np.arange(num_ranks)[::-1]
        start, offset = 0, []
        for hop, way, turn in zip(hops, (down, up, down, up), (*turns, 0), strict=True):
            offset.append(start + hop * way)
            start += hop * (num_ranks - 1) + turn
        first_forward, second_forward, second_backward, first_backward = offset
        columns = np.stack([first_forward, second_forward, first_backward, second_backward], axis=1)
        due = columns[..., None] + 6 * np.arange(num_microbatches)
        return Rule("I0 I1 F1 F0 W0 W1", live, due=due, pending=num_ranks if few_pending else None)

    return rule


def _tapered(order, chunk0, chunk1):
    """A list schedule in which chunk 0 may hold less, and chunk 1 more, from each rank to the next.

    As on a V: the first rank waits longest for chunk 0's gradient and least for chunk 1's. Chunk 0 never takes the
    last place, so that there is always one for chunk 1, and no deadlock.

    Args:
      order: see Rule.
      chunk0: (kept, slope): rank r holds at most live - kept - slope * r of chunk 0, rounded up.
      chunk1: (base, slope): and at most base + slope * r of chunk 1.
    """

    def rule(num_ranks, num_microbatches, live):
        ranks = np.arange(num_ranks)
        first = np.clip(np.ceil(live - chunk0[0] - chunk0[1] * ranks), 1, live - 1)
        second = np.clip(np.ceil(chunk1[0] + chunk1[1] * ranks), 1, live)
        return Rule(order, live, chunk_live=np.stack([first, second], axis=1))

    return rule


# Found by playing a thousand rules on P up to 24 and M up to 3 P + 1, and keeping few that together are shortest.
_ZB_V = (
    _block((3, 3, 3, 3), (1, 1, 1), few_pending=True),
    _tapered("F1 I1 F0 I0 W1 W0", (1, 1 / 3), (3, 1 / 2)),
)
_V_HALF = (
    _block((1, 2, 1, 2), (3, 1, 3)),
    _block((3, 3, 3, 3), (1, 1, 1)),
    _tapered("I0 I1 F1 F0 W0 W1", (1, 1 / 2), (3, 1 / 3)),
    _tapered("I0 F1 I1 F0 W0 W1", (3, 1 / 3), (3, 1 / 2)),
    _tapered("I0 F1 I1 F0 W0 W1", (1, 1 / 2), (2, 1 / 2)),
    _tapered("F1 I1 F0 I0 W1 W0", (2, 1 / 3), (3, 1 / 2)),
)
_V_MIN = (
    _block((1, 1, 1, 1), (2, 1, 1)),
    _block((1, 1, 1, 1), (3, 1, 3)),
    _block((1, 2, 1, 2), (1, 1, 1)),
    _tapered("I1 F1 I0 F0 W1 W0", (1, 1 / 3), (3, 1 / 3)),
    _tapered("I0 I1 F1 F0 W0 W1", (2, 1 / 3), (2, 1 / 3)),
)
