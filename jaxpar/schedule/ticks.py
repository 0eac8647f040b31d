"""From each rank's order to ticks: every cell as early as its inputs allow."""

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import PHASE, Action, inputs
from jaxpar.schedule.render import render_marked


def place(name, orders, last_stage, vocabulary=None, where=None):
    """Place each rank's cells into ticks, in order and as soon as possible.

    A payload sent in one tick can be used in the next, so a cell runs once all its inputs ran in earlier ticks or
    earlier in the same cell. Ranks that wait are idle.

    Args:
      name: the schedule's name, for the message.
      orders: for each rank the cells (tuples of Action) it runs, in order.
      last_stage: int, number of the last stage.
      vocabulary: as in `inputs`.
      where: (index, rank) -> what the message adds to the name of the rank's index-th cell; None adds nothing.

    Returns:
      ticks[t][rank]: tuple of Action, empty where the rank idles.

    Raises:
      ScheduleError: the orders wait for each other for ever; names the actions that do, and draws the ranks' orders
        with them marked.
    """
    numbered = _number(orders, last_stage, vocabulary)
    placed = [[] for _ in orders]  # the tick of each cell that has one
    done = {}  # number of an action -> its tick
    waiting = {}  # number of an input -> the ranks that cannot go on without it
    awake = list(range(len(orders)))
    while awake:
        rank = awake.pop()
        needed = _run_ahead(numbered[rank], placed[rank], done, waiting, awake)
        if needed is not None:
            waiting.setdefault(needed, []).append(rank)
    if any(len(order) > len(ticks) for order, ticks in zip(orders, placed, strict=True)):
        raise _deadlock(name, orders, list(map(len, placed)), last_stage, vocabulary, where)
    rows = [[()] * len(orders) for _ in range(1 + max((ticks[-1] for ticks in placed if ticks), default=-1))]
    for rank, (order, ticks) in enumerate(zip(orders, placed, strict=True)):
        for cell, tick in zip(order, ticks, strict=True):
            rows[tick][rank] = cell
    return tuple(map(tuple, rows))


def table(ticks, ranks):
    """The rows of a schedule from the tick of every action.

    Args:
      ticks: {kind: int [S, M]}, when each microbatch runs on each stage.
      ranks: int [S], the rank of each stage.

    Returns:
      rows[t][rank]: tuple of Action in the order of PHASE, empty where the rank idles; from tick 0 to the last action.
    """
    cells = [[()] * (1 + max(ranks)) for _ in range(1 + max(int(when.max()) for when in ticks.values()))]
    for kind in sorted(ticks, key=PHASE.get):
        for stage, (rank, when) in enumerate(zip(ranks, ticks[kind].tolist(), strict=True)):
            for microbatch, tick in enumerate(when):
                cells[tick][rank] += (Action(stage, kind, microbatch),)
    return tuple(map(tuple, cells))


def _number(orders, last_stage, vocabulary):
    """numbered[rank]: for each cell its inputs from outside and its actions, as ints (quicker than Actions).

    A B has the number of its I, which is the part that others wait for.
    """
    width = 1 + max((action.microbatch for order in orders for cell in order for action in cell), default=0)
    base = {kind: at * (last_stage + 1) * width for at, kind in enumerate("FIEHRWG")}
    base["B"] = backward = base["I"]

    def number(action):
        return base[action.kind] + action.stage * width + action.microbatch

    def one(cell):
        stage, kind, microbatch = cell[0]
        if len(cell) == 1 and vocabulary is None and kind in "FB":
            # Nearly all cells of the unsplit schedules: what inputs() says, without its objects. F's base is 0.
            here = stage * width + microbatch
            if kind == "F":
                return ((here - width,) if stage else ()), (here,)
            gradient = backward + here
            return ((here, gradient + width) if stage < last_stage else (here,)), (gradient,)
        needs, own = [], []
        for action in cell:
            needs += [n for n in map(number, inputs(action, last_stage, vocabulary)) if n not in own]
            own.append(number(action))
        return needs, own

    return [[one(cell) for cell in order] for order in orders]


def _run_ahead(cells, ticks, done, waiting, awake):
    """Place a rank's cells until one misses an input, which is returned; wakes the ranks that waited for any."""
    tick = ticks[-1] if ticks else -1
    for at in range(len(ticks), len(cells)):
        needs, own = cells[at]
        tick += 1
        for needed in needs:
            if needed not in done:
                return needed
            if done[needed] >= tick:
                tick = done[needed] + 1
        ticks.append(tick)
        for number in own:
            done[number] = tick
            if number in waiting:
                awake += waiting.pop(number)
    return None


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


def _deadlock(name, orders, position, last_stage, vocabulary, where):
    """The error for ranks that wait for each other: follow who waits for whom until it goes round or ends."""
    ran = [cell for order, at in zip(orders, position, strict=True) for cell in order[:at]]
    done = {part for cell in ran for action in cell for part in action.parts()}
    left = [order[at:] for order, at in zip(orders, position, strict=True)]
    holder = {part: r for r, cells in enumerate(left) for cell in cells for action in cell for part in action.parts()}
    rank = next(r for r, cells in enumerate(left) if cells)
    steps = {}
    while rank is not None and rank not in steps:
        action, needed = _missing(left[rank][0], done, last_stage, vocabulary)
        place_name = where(position[rank], rank) if where else ""
        steps[rank] = f"rank {rank} waits at {action}{place_name} for {needed}"
        rank = holder.get(needed)
    ranks = list(steps)
    circle = ranks[-1:] if rank is None else ranks[ranks.index(rank) :]
    if rank is None:
        reason, remedy = ", which no rank runs", f"Add {needed}"
    else:
        reason = ", which comes later on that rank" if len(circle) == 1 else ", each behind the other's action"
        remedy = f"Move {needed} earlier or {action} later"
    rows = [render_marked(f"rank {r}", orders[r], position[r]) for r in circle]
    waits = ", ".join(steps[r] for r in circle)
    return ScheduleError("\n".join([f"pipeline.schedule={name} would deadlock: {waits}{reason}. {remedy}.", *rows]))
