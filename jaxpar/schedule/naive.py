"""Naive model parallelism: one microbatch at a time through all stages."""

from jaxpar.schedule.action import Action
from jaxpar.schedule.schedule import Schedule


def naive(num_ranks, num_microbatches, num_chunks=1):
    """One microbatch forward through all stages and back, then the next.

    One rank works at a time: the bubble is 1 - 1/num_ranks (less what W overlaps when the gradient leaves after I).
    The baseline that shows what a pipeline is for.
    """
    stages = [[chunk * num_ranks + rank for chunk in range(num_chunks)] for rank in range(num_ranks)]
    orders = [
        [
            action
            for m in range(num_microbatches)
            for action in [Action(s, "F", m) for s in mine] + [Action(s, "B", m) for s in reversed(mine)]
        ]
        for mine in stages
    ]
    return Schedule.from_orders("naive", num_ranks, num_chunks, num_microbatches, "loop", orders)
