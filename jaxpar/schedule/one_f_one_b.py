"""1F1B: warm up, then one forward, one backward."""

from jaxpar.schedule.action import Action
from jaxpar.schedule.chunks import check_one_chunk
from jaxpar.schedule.schedule import Schedule


def one_f_one_b(num_ranks, num_microbatches, num_chunks=1):
    """Warm up with P - r forwards on rank r, then alternate one backward with one forward, then drain.

    Rank r holds at most min(P - r, M) live activations; GPipe holds all M, and takes as long.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush).

    Raises:
      SettingError: more than one chunk a rank.
    """
    check_one_chunk("1f1b", num_chunks, "interleaved_1f1b")
    return alternate("1f1b", num_microbatches, [num_ranks - rank for rank in range(num_ranks)])


def alternate(name, num_microbatches, warmups):
    """The Schedule of one chunk a rank in which rank r warms up with warmups[r] forwards (at most all of them), then
    alternates one backward with one forward, then drains.
    """
    orders = []
    for rank, most in enumerate(warmups):
        warmup = min(most, num_microbatches)
        order = [Action(rank, "F", m) for m in range(warmup)]
        for m in range(num_microbatches):
            order.append(Action(rank, "B", m))
            if warmup + m < num_microbatches:
                order.append(Action(rank, "F", warmup + m))
        orders.append(order)
    return Schedule.from_orders(name, len(warmups), 1, num_microbatches, "loop", orders)
