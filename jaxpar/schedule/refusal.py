"""Refusals of a schedule's table: what is wrong, where, why, what to do; the row is drawn with the cell marked."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxpar.errors import ScheduleError
from jaxpar.schedule.render import render_marked


def tick_and_rank(tick, rank):
    """How messages name a cell."""
    return f"at tick {tick} on rank {rank}"


@dataclasses.dataclass(frozen=True)
class Refusals:
    """Makes the errors about one schedule.

    Attributes:
      schedule: Schedule; its name stands in every message.
      where: (tick, rank) -> how messages name that cell.
    """

    schedule: Any
    where: Callable = tick_and_rank

    def error(self, rule, reason, remedy, cell=None):
        """The ScheduleError; `cell` is the (tick, rank) to mark, or None for no drawing."""
        message = f"pipeline.schedule={self.schedule.name} {rule}: {reason}. {remedy}."
        if cell is None:
            return ScheduleError(message)
        tick, rank = cell
        row = [row[rank] for row in self.schedule.ticks]
        return ScheduleError(f"{message}\n{render_marked(f'rank {rank}', row, min(tick, len(row)), 'tick')}")

    def at(self, action, cell, reason, remedy, rule=""):
        """The error for a table that has `action` (or a text for several) at `cell`, the (tick, rank)."""
        return self.error(f"has {action} {self.where(*cell)}{rule}", reason, remedy, cell)


def find(schedule, part):
    """(tick, Action) on the owner's row that `part`, an Action but no B, is or is part of; None where it is missing."""
    rank = schedule.owner(part)
    for tick, row in enumerate(schedule.ticks):
        for action in row[rank]:
            if part in action.parts():
                return tick, action
    return None
