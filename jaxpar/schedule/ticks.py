"""From each rank's order to ticks: every cell as early as its inputs allow."""

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import inputs


def place(name, orders, last_stage, vocabulary=None):
    """Place each rank's cells into ticks, in order and as soon as possible.

    A payload sent in one tick can be used in the next, so a cell runs once all its inputs ran in earlier ticks or
    earlier in the same cell. Ranks that wait are idle.

    Args:
      name: the schedule's name, for the message.
      orders: for each rank the cells (tuples of Action) it runs, in order.
      last_stage: int, number of the last stage.
      vocabulary: as in `inputs`.

    Returns:
      ticks[t][rank]: tuple of Action, empty where the rank idles.

    Raises:
      ScheduleError: the orders wait for each other for ever; names the first rank that is stuck, and on what.
    """
    done = set()
    position = [0] * len(orders)
    remaining = sum(map(len, orders))
    ticks = []
    while remaining:
        row = []
        for rank, order in enumerate(orders):
            at = position[rank]
            ready = at < len(order) and _missing(order[at], done, last_stage, vocabulary) is None
            row.append(order[at] if ready else ())
            if ready:
                position[rank] += 1
        ran = [action for cell in row for action in cell]
        if not ran:
            raise _deadlock(name, orders, position, done, last_stage, vocabulary)
        for action in ran:
            done.update(action.parts())
        remaining -= sum(1 for cell in row if cell)
        ticks.append(tuple(row))
    return tuple(ticks)


def _missing(cell, done, last_stage, vocabulary):
    """The first (action, input) of `cell` whose input has not run, or None."""
    here = set()
    for action in cell:
        for needed in inputs(action, last_stage, vocabulary):
            if needed not in done and needed not in here:
                return action, needed
        if len(cell) > 1:
            here.update(action.parts())
    return None


def _deadlock(name, orders, position, done, last_stage, vocabulary):
    stuck = [rank for rank, order in enumerate(orders) if position[rank] < len(order)]
    rank = stuck[0]
    action, needed = _missing(orders[rank][position[rank]], done, last_stage, vocabulary)
    return ScheduleError(
        f"pipeline.schedule={name} would deadlock: rank {rank} waits at {action} for {needed}, which never runs "
        f"(ranks {', '.join(map(str, stuck))} are stuck). Move {needed} earlier in its rank's order, or {action} later."
    )
