"""Embedding and head as scheduled actions: E, H and G put into a schedule's ticks."""

import dataclasses

from jaxpar.errors import SettingError
from jaxpar.schedule.action import PHASE, Action
from jaxpar.schedule.cells import check_cells


def with_vocabulary(schedule, vocabulary, head_lag=0):
    """The schedule with E, H and G actions added to its ticks.

    E joins the tick of stage 0's F and G that of its B or I. H joins the tick `head_lag` after the last stage's F, but
    never later than that stage's B or I, which needs it, and one H a tick.

    Args:
      schedule: Schedule without vocabulary actions.
      vocabulary: "ends": only the ranks that own the first and last stage list them. "pipe": every rank does, in the
        same tick, as a collective over the ranks. None returns `schedule` as it is.
      head_lag: int >= 0, ticks; with "pipe" a late head keeps the other ranks from waiting for the last stage.

    Returns:
      Schedule with as many ticks.

    Raises:
      SettingError: an unknown vocabulary, a negative lag, a schedule that has vocabulary actions already, or one whose
        cells are not Actions.

    Source: Yeung et al. 2024, arXiv:2411.05288.
    """
    if vocabulary is None:
        return schedule
    if vocabulary not in ("ends", "pipe"):
        raise SettingError(
            f"pipeline.vocabulary={vocabulary} is unknown: it says which ranks hold it. Use ends or pipe."
        )
    if schedule.vocabulary is not None:
        raise SettingError(
            f"pipeline.vocabulary={vocabulary} comes twice: the schedule already has it as {schedule.vocabulary}. "
            "Start from a schedule without vocabulary actions."
        )
    if head_lag < 0:
        raise SettingError(f"head_lag={head_lag} is negative: the head needs the last stage's output. Use 0 or more.")
    check_cells(schedule)
    ticks = [[list(cell) for cell in row] for row in schedule.ticks]
    for tick, action in _added(schedule, head_lag):
        owner = schedule.owner(action)
        for rank in range(schedule.num_ranks) if vocabulary == "pipe" else (owner,):
            ticks[tick][rank].append(action)
    rows = tuple(tuple(tuple(sorted(cell, key=lambda a: PHASE[a.kind])) for cell in row) for row in ticks)
    return dataclasses.replace(schedule, ticks=rows, vocabulary=vocabulary)


def _added(schedule, head_lag):
    """(tick, action) for every E, H and G."""
    last = schedule.num_stages - 1
    added, forward, backward = [], {}, {}
    for tick, row in enumerate(schedule.ticks):
        for stage, kind, microbatch in (action for cell in row for action in cell):
            if stage == 0 and kind == "F":
                added.append((tick, Action(0, "E", microbatch)))
            if stage == 0 and kind in "BI":
                added.append((tick, Action(0, "G", microbatch)))
            if stage == last and kind in "FBI":
                (forward if kind == "F" else backward)[microbatch] = tick
    taken = set()
    # Latest forward first: when a tick is taken, its own forward's tick is certain to be free.
    for microbatch, start in sorted(forward.items(), key=lambda item: -item[1]):
        tick = min(start + head_lag, backward.get(microbatch, start))
        while tick in taken:
            tick -= 1
        taken.add(tick)
        added.append((tick, Action(last, "H", microbatch)))
    return added
