"""GPipe: all forwards, then all backwards."""

from jaxpar.schedule.action import Action
from jaxpar.schedule.chunks import check_one_chunk
from jaxpar.schedule.schedule import Schedule


def gpipe(num_ranks, num_microbatches, num_chunks=1):
    """Every microbatch forward, then every microbatch backward, both in ascending order.

    Every rank holds all M activations. Makespan 3 (M + P - 1) at unit costs when the gradient leaves after B.
    Source: Huang et al. 2018, arXiv:1811.06965, section 2.3.

    Raises:
      SettingError: more than one chunk a rank.
    """
    check_one_chunk("gpipe", num_chunks, "interleaved_1f1b")
    orders = [[Action(rank, kind, m) for kind in "FB" for m in range(num_microbatches)] for rank in range(num_ranks)]
    return Schedule.from_orders("gpipe", num_ranks, 1, num_microbatches, "loop", orders)
