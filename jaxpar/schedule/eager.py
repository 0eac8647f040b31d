"""Eager 1F1B: more forwards ahead, so that messages have time."""

from jaxpar.schedule.chunks import check_one_chunk
from jaxpar.schedule.one_f_one_b import alternate


def eager_1f1b(num_ranks, num_microbatches, num_chunks=1):
    """1F1B that warms up with 2 (P - r) - 1 forwards on rank r, twice the way to the last rank.

    A payload then has a whole action's time to arrive, at the price of memory: rank r holds up to
    min(2 (P - r) - 1, M). Without that time to hide the makespan is that of 1F1B, 3 (M + P - 1) at unit costs.
    Source: Zhuang et al. 2022, arXiv:2211.05322, section 4 (overlapping-friendly pipeline schedule).

    Raises:
      SettingError: more than one chunk a rank.
    """
    check_one_chunk("eager_1f1b", num_chunks, "interleaved_1f1b")
    warmups = [2 * (num_ranks - rank) - 1 for rank in range(num_ranks)]
    return alternate("eager_1f1b", num_microbatches, warmups)
