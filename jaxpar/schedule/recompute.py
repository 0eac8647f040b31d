"""Recomputation as scheduled actions: R put into a schedule's ticks, and the settings that ask for it."""

import dataclasses

from jaxpar.errors import SettingError
from jaxpar.schedule.action import PHASE, Action

POLICIES = ("none", "dots", "full")
_NAMES = "names:"
_HURRY = frozenset("EFHIBG")  # what another rank may wait for, so that R must not hold it up


def with_recompute(schedule):
    """The schedule with an R before every I (or B) that has none.

    R needs what F kept and nothing that travels, so it may run while the gradient is on its way: in the tick before
    its I, unless the rank then runs something that another rank waits for. There it runs in the I's own tick. So at
    most one microbatch more is held recomputed than without scheduling, and no payload leaves later for it.

    Returns:
      Schedule with as many ticks; the same one where nothing is missing.

    Source: Chen et al. 2016, arXiv:1604.06174 (recomputation); placing it before the gradient arrives is ours.
    """
    done = {(a.stage, a.microbatch) for order in schedule.actions for a in order if a.kind == "R"}
    ticks = [[list(cell) for cell in row] for row in schedule.ticks]
    forward = {}
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            for stage, kind, microbatch in cell:
                if kind == "F":
                    forward[stage, microbatch] = tick
                if kind in "IB" and (stage, microbatch) not in done:
                    early = forward[stage, microbatch] < tick and _is_free(ticks[tick - 1][rank])
                    ticks[tick - 1 if early else tick][rank].append(Action(stage, "R", microbatch))
    rows = tuple(tuple(tuple(sorted(cell, key=lambda a: PHASE[a.kind])) for cell in row) for row in ticks)
    return dataclasses.replace(schedule, ticks=rows)


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
