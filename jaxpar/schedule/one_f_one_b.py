"""1F1B: warm up, then one forward, one backward."""

from jaxpar.errors import SettingError
from jaxpar.schedule.action import Action
from jaxpar.schedule.schedule import Schedule


def one_f_one_b(num_ranks, num_microbatches, num_chunks=1):
    """Warm up with P - r forwards on rank r, then alternate one backward with one forward, then drain.

    Rank r holds at most min(P - r, M) live activations; GPipe holds all M, and takes as long.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush).

    Raises:
      SettingError: more than one chunk a rank.
    """
    if num_chunks != 1:
        raise SettingError(
            f"pipeline.num_chunks={num_chunks} is not 1: 1f1b runs one stage a rank. "
            "Use num_chunks=1 or pipeline.schedule=interleaved_1f1b."
        )
    orders = []
    for rank in range(num_ranks):
        warmup = min(num_ranks - rank, num_microbatches)
        order = [Action(rank, "F", m) for m in range(warmup)]
        for m in range(num_microbatches):
            order.append(Action(rank, "B", m))
            if warmup + m < num_microbatches:
                order.append(Action(rank, "F", warmup + m))
        orders.append(order)
    return Schedule.from_orders("1f1b", num_ranks, 1, num_microbatches, "loop", orders)
