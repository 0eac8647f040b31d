"""DualPipeV: a forward of one chunk and the backward of the other in one tick, on a V."""

import collections
import dataclasses

from jaxpar.schedule.action import Action
from jaxpar.schedule.chunks import check_two_chunks
from jaxpar.schedule.schedule import Schedule
from jaxpar.schedule.ticks import place
from jaxpar.schedule.v_placement import zb_v


def dualpipe_v(num_ranks, num_microbatches, num_chunks=2):
    """Forwards and backwards in common ticks in the middle, the backward split only where ranks would wait.

    Every rank holds at most P + 1/2 microbatches. Makespan 3 M + (P - 1)/2 at unit costs for M of at least 2 P when
    the gradient leaves after B. With fewer than 2 P microbatches the ways in and out leave no middle for all ranks:
    then it is the order of ZB-V, which has the same V, holds no more and waits less.
    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 (DualPipe), cut in half at its middle as in
    DeepSeek's DualPipeV.

    Raises:
      SettingError: the number of chunks is not two.
    """
    check_two_chunks("dualpipe_v", num_chunks)
    if num_microbatches < 2 * num_ranks:
        return dataclasses.replace(zb_v(num_ranks, num_microbatches), name="dualpipe_v")
    orders = [
        _numbered(_order(rank, num_ranks, num_microbatches), (rank, 2 * num_ranks - 1 - rank))
        for rank in range(num_ranks)
    ]
    empty = Schedule("dualpipe_v", num_ranks, 2, num_microbatches, "v", ())
    return dataclasses.replace(empty, ticks=place("dualpipe_v", orders, 2 * num_ranks - 1))


def _order(rank, num_ranks, num_microbatches):
    """One rank's cells, as tuples of kind and chunk."""
    behind = num_ranks - 1 - rank  # ranks between this one and the turn
    cells = 2 * behind * [("F0",)]
    cells += (rank + 1) * [("F0",), ("F1",)]
    cells += behind * [("I1",), ("W",), ("F1",)]
    middle = (num_microbatches - num_ranks - behind) * [("F0", "B1"), ("F1", "B0")]
    # At the turn the first backward would share the tick of a forward that nothing waits for yet.
    cells += middle if behind else [("F0",), ("B1",), *middle[1:]]
    cells += behind * [("B1",), ("F1", "B0")]
    # The gradients that other ranks wait for at the end leave before their W: the second half of these is split.
    last = [("B1",), ("B0",)] * (rank + 1)
    cells += last[: rank + 1] + [(cell[0].replace("B", "I"),) for cell in last[rank + 1 :]]
    return cells + behind * [("W",), ("I0",)] + (rank + 1) * [("W",)]


def _numbered(cells, stages):
    """Cells of Actions: each kind and chunk takes microbatches in ascending order, W in the order of I.

    Args:
      cells: tuples of kind and chunk.
      stages: the rank's two stages.
    """
    forwards, backwards, waiting = [0, 0], [0, 0], collections.deque()
    actions = []
    for cell in cells:
        numbered = []
        for kind, *chunk in cell:
            if kind == "W":
                numbered.append(waiting.popleft())
                continue
            number = int(chunk[0])
            count = forwards if kind == "F" else backwards
            numbered.append(Action(stages[number], kind, count[number]))
            count[number] += 1
            if kind == "I":
                waiting.append(numbered[-1]._replace(kind="W"))
        actions.append(tuple(numbered))
    return actions
