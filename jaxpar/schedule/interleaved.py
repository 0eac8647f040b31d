"""Interleaved 1F1B: several chunks a rank shorten the bubble by as many times."""

import dataclasses

from jaxpar.schedule.action import Action
from jaxpar.schedule.one_f_one_b import one_f_one_b
from jaxpar.schedule.schedule import Schedule


def interleaved_1f1b(num_ranks, num_microbatches, num_chunks=1):
    """1F1B over chunks: microbatches go through a rank's chunks in groups of about P.

    The bubble is that of 1F1B divided by V, 3 (P - 1)/V at unit costs, for about V times as many messages. Rank 0
    holds at most P + (P - 1)/V microbatches where P divides M. Any M works: M // P groups (at least one), as equal as
    can be and the larger first. A group is then never shorter than the ring where M >= P, which would cost a bubble at
    every turn round it; the price is (1 - 1/V) times the excess over P in activations. With M < P the bubble is that
    much larger; with one chunk this is 1F1B.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; groups longer than P as in PyTorch's
    ScheduleInterleaved1F1B, which wants them equal.
    """
    if num_chunks == 1:
        return dataclasses.replace(one_f_one_b(num_ranks, num_microbatches), name="interleaved_1f1b")
    parts = groups(num_ranks, num_microbatches)
    total = num_chunks * num_microbatches
    orders = []
    for rank in range(num_ranks):
        stages = [chunk * num_ranks + rank for chunk in range(num_chunks)]
        forwards = [Action(stage, "F", m) for group in parts for stage in stages for m in group]
        backwards = [Action(stage, "B", m) for group in parts for stage in reversed(stages) for m in group]
        # The first backward follows the first forward of the last chunk, and two more forwards for each rank behind:
        # one for the forward's way there, one for the gradient's way back.
        warmup = min((num_chunks - 1) * len(parts[0]) + 2 * (num_ranks - 1 - rank), total)
        order = forwards[:warmup]
        for forward, backward in zip(forwards[warmup:], backwards, strict=False):
            order += [forward, backward]
        orders.append(order + backwards[total - warmup :])
    return Schedule.from_orders("interleaved_1f1b", num_ranks, num_chunks, num_microbatches, "loop", orders)


def groups(num_ranks, num_microbatches):
    """Consecutive ranges of microbatches, M // P of them, larger ones first."""
    count = max(1, num_microbatches // num_ranks)
    small, larger = divmod(num_microbatches, count)
    ends = [small * i + min(i, larger) for i in range(count + 1)]
    return [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]
