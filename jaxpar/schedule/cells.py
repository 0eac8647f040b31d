"""Is a hand-made Schedule one at all: its sizes, and cells of Actions that these sizes have?"""

import numpy as np

from jaxpar.schedule.action import KINDS, Action
from jaxpar.schedule.refusal import Refusals, tick_and_rank


def check_sizes(schedule):
    """Refuse a Schedule whose other fields no table could make right.

    Raises:
      ScheduleError: a size is no positive integer, or placement or vocabulary is another word.
    """
    refusals = Refusals(schedule)
    for field in ("num_ranks", "num_chunks", "num_microbatches"):
        size = getattr(schedule, field)
        if not _is_whole(size) or size < 1:
            raise refusals.error(
                f"has {field}={size!r}", "it is no positive integer, and counts things", "Use 1 or more"
            )
    if schedule.placement not in ("loop", "v"):
        reason = "it says which rank owns a stage"
        raise refusals.error(f"has placement={schedule.placement!r}", reason, "Use 'loop' or 'v'")
    if schedule.vocabulary not in (None, "ends", "pipe"):
        reason = "it says which ranks list E, H and G"
        raise refusals.error(f"has vocabulary={schedule.vocabulary!r}", reason, "Use None, 'ends' or 'pipe'")


def check_cells(schedule, where=tick_and_rank):
    """Refuse what no function of the room could read, in whatever order the actions are.

    Raises:
      ScheduleError: a cell is no tuple of Actions, or an Action has an unknown kind, stage or microbatch.
    """
    refusals = Refusals(schedule, where)
    check_form(refusals)
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            for action in cell:
                check_action(refusals, (tick, rank), action)


def check_form(refusals):
    """Every cell is a tuple (or list) of Actions; the message draws no row, which could not be."""
    for tick, row in enumerate(refusals.schedule.ticks):
        for rank, cell in enumerate(row):
            if isinstance(cell, Action) or not isinstance(cell, tuple | list):
                reason, remedy = "a cell is a tuple of Actions", "Write (Action(0, 'F', 0),), or () for an idle cell"
                raise refusals.error(f"has the cell {cell!r} {refusals.where(tick, rank)}", reason, remedy)
            for action in cell:
                if not _is_action(action):
                    reason = "an action is an Action with a whole stage, a kind and a whole microbatch"
                    remedy = "Write Action(0, 'F', 0) or Action.parse('0F0')"
                    raise refusals.error(f"has {action!r} {refusals.where(tick, rank)}", reason, remedy)


def _is_action(action):
    return isinstance(action, Action) and isinstance(action.kind, str) and _is_whole(action[0]) and _is_whole(action[2])


def _is_whole(number):
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def check_action(refusals, at, action):
    """The Action, at (tick, rank), is of a known kind and within the schedule's sizes."""
    stage, kind, microbatch = action
    schedule = refusals.schedule
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise refusals.at(action, at, f"{kind!r} is no kind", f"Use one of {known}")
    if not (0 <= stage < schedule.num_stages and 0 <= microbatch < schedule.num_microbatches):
        limits = f"there are {schedule.num_stages} stages and {schedule.num_microbatches} microbatches"
        raise refusals.at(action, at, limits, "Remove it")
