"""Eager 1F1B: more forwards ahead, so that messages have time."""

from jaxpar.errors import SettingError
from jaxpar.schedule.action import Action
from jaxpar.schedule.schedule import Schedule


def eager_1f1b(num_ranks, num_microbatches, num_chunks=1):
    """1F1B that warms up with 2 (P - r) - 1 forwards on rank r, twice the way to the last rank.

    A payload then has a whole action's time to arrive, at the price of memory: rank r holds up to
    min(2 (P - r) - 1, M). Without that time to hide the makespan is that of 1F1B, 3 (M + P - 1) at unit costs.
    Source: Zhuang et al. 2022, arXiv:2211.05322, section 4 (overlapping-friendly pipeline schedule).

    Raises:
      SettingError: more than one chunk a rank.
    """
    if num_chunks != 1:
        raise SettingError(
            f"pipeline.num_chunks={num_chunks} is not 1: eager_1f1b runs one stage a rank. "
            "Use num_chunks=1 or pipeline.schedule=interleaved_1f1b."
        )
    orders = []
    for rank in range(num_ranks):
        warmup = min(2 * (num_ranks - rank) - 1, num_microbatches)
        order = [Action(rank, "F", m) for m in range(warmup)]
        for m in range(num_microbatches):
            order.append(Action(rank, "B", m))
            if warmup + m < num_microbatches:
                order.append(Action(rank, "F", warmup + m))
        orders.append(order)
    return Schedule.from_orders("eager_1f1b", num_ranks, 1, num_microbatches, "loop", orders)
