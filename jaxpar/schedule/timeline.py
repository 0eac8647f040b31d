"""The Timeline: when each action of a schedule ran, simulated."""

import dataclasses
from typing import NamedTuple

from jaxpar.schedule.action import Action
from jaxpar.schedule.render import render_timeline


class Event(NamedTuple):
    """One action on one rank, from `start` to `end` (a G may run inside its B, between I and W)."""

    rank: int
    action: Action
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The result of Schedule.simulate.

    Attributes:
      name: the schedule's.
      num_ranks, num_chunks: ints.
      mode, send: as given to simulate.
      makespan: time from the first action's start to the last one's end, in the unit of the costs.
      bubble: 1 - mean(busy) / makespan, a fraction; 0 for an empty timeline.
      busy: for each rank the time spent in actions.
      peak_live: for each rank the most activations held, in microbatches of the whole rank (a chunk counts 1/V), from
        the start of F to the end of W (of B where unsplit).
      pending_weight_grads: for each rank the most I whose W had not run, in the same unit.
      events: tuple of Event in the order they were issued; each action once on each rank that runs it.
    """

    name: str
    num_ranks: int
    num_chunks: int
    mode: str
    send: str
    makespan: float
    bubble: float
    busy: tuple
    peak_live: tuple
    pending_weight_grads: tuple
    events: tuple

    render = render_timeline
