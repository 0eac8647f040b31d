"""Recomputation as scheduled actions: R put into a schedule's ticks, and the settings that ask for it."""

import dataclasses

from jaxpar.errors import SettingError
from jaxpar.schedule.action import PHASE, Action
from jaxpar.schedule.check import check
from jaxpar.schedule.refusal import Refusals

POLICIES = ("none", "dots", "full")
_NAMES = "names:"
_HURRY = frozenset("EFHIBG")  # what another rank may wait for, so that R must not hold it up


def with_recompute(schedule):
    """The schedule with an R before every I (or B) that has none.

    R needs what F kept and nothing that travels, so it may run while the gradient is on its way: in the tick before
    its I, unless the rank then runs something that another rank waits for. There it runs in the I's own tick, or, where
    the schedule has another microbatch's R there, in the nearest tick before that has none. So without R of its own a
    schedule holds at most one microbatch more recomputed than without scheduling, and no payload leaves later for it.

    Returns:
      Schedule with as many ticks; the same one where nothing is missing.

    Raises:
      ScheduleError: the schedule is not valid, or its own R leave no tick for one that is missing.

    Source: Chen et al. 2016, arXiv:1604.06174 (recomputation); placing it before the gradient arrives is ours.
    """
    check(schedule)
    ticks = [list(row) for row in schedule.ticks]
    for tick, rank, action in missing_recompute(schedule):
        ticks[tick][rank] = tuple(sorted((*ticks[tick][rank], action), key=lambda a: PHASE[a.kind]))
    return dataclasses.replace(schedule, ticks=tuple(map(tuple, ticks)))


def missing_recompute(schedule, early=True):
    """Where every R goes that the schedule does not have.

    Ticks are filled from the last one on, each with the R whose F is the latest: so all find a tick where they can.

    Args:
      schedule: Schedule, checked.
      early: whether an R goes into the tick before its I if that holds nobody up; else it is as late as can be.

    Returns:
      List of (tick, rank, Action); at most one R a tick on each rank, the schedule's own among them.

    Raises:
      ScheduleError: the schedule's own R leave no tick for one that is missing.
    """
    return [
        (tick, rank, action)
        for rank in range(schedule.num_ranks)
        for tick, action in _missing_on(schedule, rank, early)
    ]


def _missing_on(schedule, rank, early):
    """Yields (tick, R) for one rank, the last tick first."""
    cells = [row[rank] for row in schedule.ticks]
    own = {(a.stage, a.microbatch) for a in schedule.actions[rank] if a.kind == "R"}
    forward = {(a.stage, a.microbatch): tick for tick, cell in enumerate(cells) for a in cell if a.kind == "F"}
    waiting = []  # (tick of F, stage, microbatch): what has its I in this tick or later, and no R yet
    for tick in range(len(cells) - 1, -1, -1):
        new = [(a.stage, a.microbatch) for a in cells[tick] if a.kind in "IB" and (a.stage, a.microbatch) not in own]
        waiting += [(forward[at], *at) for at in new]
        busy = next((action for action in cells[tick] if action.kind == "R"), None)
        alone = early and len(waiting) == len(new) == 1 and waiting[0][0] < tick and _is_free(cells[tick - 1])
        if waiting and busy is None and not alone:
            latest = max(waiting)
            waiting.remove(latest)
            yield tick, Action(latest[1], "R", latest[2])
        for first, stage, microbatch in waiting:
            if first == tick:
                raise _no_tick(schedule, (tick, rank), busy, Action(stage, "R", microbatch))


def _no_tick(schedule, at, busy, action):
    """The error for `action`, which is missing: all ticks from its F to its I are taken, that of F by `busy`."""
    reason = f"a rank recomputes one microbatch a tick, and from F to I there is no tick left for {action}"
    return Refusals(schedule).at(busy, at, reason, f"Write {action} too, or leave {busy} out")


def saved_names(remat):
    """The names in "names:a,b", the values that are kept; () for one of POLICIES.

    Raises:
      SettingError: neither.
    """
    if remat in POLICIES:
        return ()
    names = tuple(name.strip() for name in str(remat).removeprefix(_NAMES).split(","))
    if not str(remat).startswith(_NAMES) or not all(names):
        raise SettingError(
            f"pipeline.remat={remat!r} is unknown: it says what a layer's backward recomputes. Use one of "
            f"{', '.join(POLICIES)}, or {_NAMES}a,b to keep only what the layer marks by these names."
        )
    return names


def _is_free(cell):
    return not any(action.kind in _HURRY or action.kind == "R" for action in cell)
