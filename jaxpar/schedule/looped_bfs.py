"""Looped breadth-first: all microbatches through a chunk, then through the next."""

import dataclasses

from jaxpar.schedule.action import Action
from jaxpar.schedule.gpipe import gpipe
from jaxpar.schedule.schedule import Schedule


def looped_bfs(num_ranks, num_microbatches, num_chunks=1):
    """GPipe over chunks: every microbatch through chunk 0, then through chunk 1, and back the same way.

    Each chunk's parameters are needed once forward and once backward, for all microbatches: what fully sharded
    parameters want. Every rank holds all M microbatches. Makespan 3 M + 3 (P - 1)/V at unit costs for M of at least P;
    with fewer each turn round the ring waits for P - M more. With one chunk this is GPipe.
    Source: Lamy-Poirier 2022, arXiv:2211.05953, section 4.
    """
    if num_chunks == 1:
        return dataclasses.replace(gpipe(num_ranks, num_microbatches), name="looped_bfs")
    orders = []
    for rank in range(num_ranks):
        stages = [chunk * num_ranks + rank for chunk in range(num_chunks)]
        forwards = [Action(stage, "F", m) for stage in stages for m in range(num_microbatches)]
        backwards = [Action(stage, "B", m) for stage in reversed(stages) for m in range(num_microbatches)]
        orders.append(forwards + backwards)
    return Schedule.from_orders("looped_bfs", num_ranks, num_chunks, num_microbatches, "loop", orders)
