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
      ScheduleError: the orders wait for each other for ever; names the actions that do.
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
    """The error for ranks that wait for each other: follow who waits for whom until it goes round or ends."""
    left = [order[at:] for order, at in zip(orders, position, strict=True)]
    holder = {part: r for r, cells in enumerate(left) for cell in cells for action in cell for part in action.parts()}
    rank = next(r for r, cells in enumerate(left) if cells)
    steps = {}
    while rank is not None and rank not in steps:
        action, needed = _missing(left[rank][0], done, last_stage, vocabulary)
        steps[rank] = f"rank {rank} waits at {action} for {needed}"
        rank = holder.get(needed)
    ranks = list(steps)
    circle = [steps[r] for r in (ranks[-1:] if rank is None else ranks[ranks.index(rank) :])]
    if rank is None:
        reason, remedy = ", which no rank runs", f"Add {needed}"
    else:
        reason = ", which comes later on that rank" if len(circle) == 1 else ", each behind the other's action"
        remedy = f"Move {needed} earlier or {action} later"
    return ScheduleError(f"pipeline.schedule={name} would deadlock: {', '.join(circle)}{reason}. {remedy}.")
