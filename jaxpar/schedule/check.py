"""Is a schedule's table a valid order of its actions?"""

import math

from jaxpar.schedule.action import PHASE, Action, inputs
from jaxpar.schedule.cap import ROUNDING, check_max_live
from jaxpar.schedule.cells import check_action, check_form
from jaxpar.schedule.refusal import Refusals, find, tick_and_rank

_COLLECTIVE = "EHG"


def check(schedule, max_live=None, where=tick_and_rank):
    """Refuse a table that misses, repeats, misplaces or mistimes an action.

    An input from another rank must have run in an earlier tick (it hops at the tick's end), one from the same rank in
    an earlier phase. A table that passes cannot deadlock: its ticks are an order in which everything can run.

    Args:
      schedule: Schedule.
      max_live: None, or the most microbatches of a whole rank's activations (each chunk counts 1/V) that any rank may
        hold, from the start of F to the end of W.
      where: (tick, rank) -> how the message names that cell.

    Raises:
      ScheduleError: names the first wrong cell in order of ticks, then of ranks, and draws its rank's row with the cell
        marked. First come cells that hold anything but Actions (without a drawing), then actions that are not the
        rank's own, come twice or out of a tick's order, then missing ones (the mark is where it could go), then those
        that run before their input, then those over `max_live`.
      SettingError: `max_live` is not a number.
    """
    max_live = check_max_live(max_live)
    check_actions(schedule, where)
    refusals = Refusals(schedule, where)
    done = {}
    for tick, row in enumerate(schedule.ticks):
        ran = []
        for rank, cell in enumerate(row):
            if not cell:
                continue
            mine = [action for action in cell if schedule.owner(action) == rank]
            _check_inputs(refusals, (tick, rank), mine, done)
            ran += [part for action in mine for part in action.parts()]
        done.update(dict.fromkeys(ran, tick))
        if schedule.vocabulary == "pipe":
            _check_collectives(refusals, tick, row)
    if max_live < math.inf:
        _check_live(refusals, max_live)


def check_actions(schedule, where=tick_and_rank):
    """The part of check() that does not depend on when: every action once, on its rank, in the order of a tick.

    Raises:
      ScheduleError: as check().
    """
    refusals = Refusals(schedule, where)
    seen = [set() for _ in range(schedule.num_ranks)]
    for tick, row in enumerate(schedule.ticks):
        if len(row) != schedule.num_ranks:
            rule, reason = f"has {len(row)} cells at tick {tick}", f"there are {schedule.num_ranks} ranks"
            raise refusals.error(rule, reason, "Give each rank a cell, empty if idle")
    check_form(refusals)
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            if cell:
                _check_cell(refusals, (tick, rank), cell, seen[rank])
    _check_complete(refusals, seen)


def live_activations(schedule):
    """live[rank]: after each of the rank's actions, how many chunk activations it holds.

    An activation lives from the start of F to the end of W (of B where unsplit), so the peak is the maximum of this.
    """
    live = []
    for order in schedule.actions:
        count, trace = 0, []
        for action in order:
            count += (action.kind == "F") - (action.kind in "WB")
            trace.append(count)
        live.append(trace)
    return live


def peak_chunks(schedule):
    """The most chunk activations that any rank holds."""
    return max(max(trace, default=0) for trace in live_activations(schedule))


def _check_cell(refusals, at, cell, seen):
    """Each action is one of the rank's, once, in the tick's order, one of a kind."""
    schedule, phase = refusals.schedule, -1
    for action in cell:
        check_action(refusals, at, action)
        if action.kind in _COLLECTIVE:
            _check_vocabulary_action(refusals, at, action)
        elif schedule.owner(action) != at[1]:
            reason = f"rank {schedule.owner(action)} owns stage {action.stage}"
            raise refusals.at(action, at, reason, "Move it there")
        for part in action.parts():
            if part in seen:
                raise _twice(refusals, at, action, part)
            seen.add(part)
            if PHASE[part.kind] <= phase:
                order = "a rank runs at most one action of each kind a tick, in the order E F H R I G W (B is I and W)"
                raise refusals.at(" ".join(map(str, cell)), at, order, f"Move {action} to another tick")
            # A B's W runs after the hop, so G may follow B in the cell, and only another W may not.
            phase = PHASE[part.kind] if part.kind == action.kind else PHASE["I"]
    if sum(action.kind in "BW" for action in cell) > 1:
        raise refusals.at(" ".join(map(str, cell)), at, "a B is an I and a W", "Move one of them")


def _twice(refusals, at, action, part):
    first, earlier = next(
        (tick, other)
        for tick, row in enumerate(refusals.schedule.ticks)
        for other in row[at[1]]
        if part in other.parts()
    )
    named = f"{earlier} is at tick {first} already" + ("" if earlier == action else " (a B is an I and a W)")
    return refusals.at(action, at, f"each action runs once, and {named}", "Remove one", rule=", twice")


def _check_vocabulary_action(refusals, at, action):
    schedule = refusals.schedule
    stage = schedule.num_stages - 1 if action.kind == "H" else 0
    if schedule.vocabulary is None:
        raise refusals.at(action, at, "its vocabulary is None", "Build it with with_vocabulary")
    if action.stage != stage:
        raise refusals.at(action, at, f"{action.kind} belongs to stage {stage}", "Renumber it")
    if schedule.vocabulary == "ends" and schedule.locate(stage)[0] != at[1]:
        raise refusals.at(action, at, f"rank {schedule.locate(stage)[0]} owns stage {stage}", "Move it there")


def _check_inputs(refusals, at, cell, done):
    """Every input ran in an earlier tick, or on this rank in an earlier phase of this one."""
    schedule, here = refusals.schedule, {}
    for action in cell:
        for needed in inputs(action, schedule.num_stages - 1, schedule.vocabulary):
            if needed not in done and here.get(needed, 99) >= PHASE[action.kind]:
                raise _too_early(refusals, at, action, needed)
        if action.kind == "R" and action._replace(kind="I") in done:
            raise refusals.at(action, at, "I uses it", "Move it earlier", rule=" after its I")
        for part in action.parts():
            here[part] = PHASE[part.kind]


def _too_early(refusals, at, action, needed):
    owner = refusals.schedule.owner(needed)
    tick, runs = find(refusals.schedule, needed)
    what = f"{runs} runs at tick {tick} on rank {owner}"
    if tick == at[0]:
        what += " and arrives at the tick's end" if owner != at[1] else ", which is not earlier in the tick"
    return refusals.at(action, at, what, f"Move {action} later or {runs} earlier", rule=f" before its input {needed}")


def _check_collectives(refusals, tick, row):
    first = [action for action in row[0] if action.kind in _COLLECTIVE]
    for rank, cell in enumerate(row):
        mine = [action for action in cell if action.kind in _COLLECTIVE]
        if mine != first:
            odd = min(set(mine) ^ set(first))
            raise refusals.error(
                f"has {odd} at tick {tick} on one of ranks 0 and {rank} but not on the other",
                "with vocabulary=pipe all ranks take part",
                "Put it on every rank",
                (tick, rank),
            )


def _check_complete(refusals, seen):
    """No action is missing; the first is named in an order in which they could run."""
    schedule = refusals.schedule
    stages = range(schedule.num_stages)
    owners = [schedule.locate(stage)[0] for stage in stages]
    wanted = [("F", stages), ("I", stages[::-1]), ("W", stages)]
    if schedule.vocabulary:
        wanted = [("E", stages[:1]), wanted[0], ("H", stages[-1:]), wanted[1], ("G", stages[:1]), wanted[2]]
    for kind, of_kind in wanted:
        for stage in of_kind:
            for microbatch in range(schedule.num_microbatches):
                if (stage, kind, microbatch) not in seen[owners[stage]]:
                    raise _missing(refusals, Action(stage, kind, microbatch))


def _missing(refusals, action):
    """The error for an action that no cell has; all that is before it in the step is there."""
    schedule = refusals.schedule
    rank, reason = schedule.owner(action), "each action runs once"
    if action.kind == "W":
        reason = "every I has its W (a B is both)"
    ticks = [0]
    for needed in inputs(action, schedule.num_stages - 1, schedule.vocabulary):
        tick, _ = find(schedule, needed)
        local = schedule.owner(needed) == rank and PHASE[needed.kind] < PHASE[action.kind]
        ticks.append(tick + (not local))
    earliest = max(ticks)
    if action.kind == "I" and find(schedule, action._replace(kind="W")) is None:
        action = action._replace(kind="B")
    idle = (tick for tick in range(earliest, schedule.num_ticks) if not schedule.ticks[tick][rank])
    cell = next(idle, earliest), rank
    return refusals.error(f"misses {action}", reason, f"Add it {refusals.where(earliest, rank)} or later", cell)


def _check_live(refusals, max_live):
    schedule = refusals.schedule
    held, most = [0] * schedule.num_ranks, max_live * schedule.num_chunks + ROUNDING
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            for action in cell:
                held[rank] += (action.kind == "F") - (action.kind in "WB")
                if held[rank] > most:
                    raise refusals.error(
                        f"holds {held[rank] / schedule.num_chunks:g} microbatches of activations "
                        f"{refusals.where(tick, rank)} with {action}",
                        f"max_live={max_live:g}",
                        "Choose a schedule that drains earlier or raise the bound",
                        (tick, rank),
                    )
