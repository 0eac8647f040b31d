"""Is a schedule's table a valid order of its actions?"""

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import KINDS, PHASE, inputs

_COLLECTIVE = "EHG"


def check(schedule, max_live=None):
    """Refuse a table that misses, repeats, misplaces or mistimes an action.

    An input from another rank must have run in an earlier tick (it hops at the tick's end), one from the same rank in
    an earlier phase. A table that passes cannot deadlock: its ticks are an order in which everything can run.

    Args:
      schedule: Schedule.
      max_live: None, or the most microbatches of a whole rank's activations (each chunk counts 1/V) that any rank may
        hold, from the start of F to the end of W.

    Raises:
      ScheduleError: names the first wrong cell in order of ticks, then of ranks. First come actions that are not the
        rank's own, come twice or out of a tick's order, then missing ones, then those that run before their input.
    """
    check_actions(schedule)
    done = {}
    for tick, row in enumerate(schedule.ticks):
        ran = []
        for rank, cell in enumerate(row):
            mine = [action for action in cell if schedule.owner(action) == rank]
            _check_inputs(schedule, tick, rank, mine, done)
            ran += [part for action in mine for part in action.parts()]
        done.update(dict.fromkeys(ran, tick))
        if schedule.vocabulary == "pipe":
            _check_collectives(schedule, tick, row)
    if max_live is not None:
        _check_live(schedule, max_live)


def check_actions(schedule):
    """The part of check() that does not depend on when: every action once, on its rank, in the order of a tick.

    Raises:
      ScheduleError: as check().
    """
    owned = [{s for s in range(schedule.num_stages) if schedule.locate(s)[0] == r} for r in range(schedule.num_ranks)]
    seen = [set() for _ in range(schedule.num_ranks)]
    for tick, row in enumerate(schedule.ticks):
        if len(row) != schedule.num_ranks:
            cells = f"has {len(row)} cells at tick {tick}"
            raise _error(
                schedule, cells, f"there are {schedule.num_ranks} ranks", "Give each rank a cell, empty if idle"
            )
        for rank, cell in enumerate(row):
            if cell:
                _check_cell(schedule, tick, rank, cell, owned[rank], seen[rank])
    _check_complete(schedule, seen)


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


def _error(schedule, rule, reason, remedy):
    return ScheduleError(f"pipeline.schedule={schedule.name} {rule}: {reason}. {remedy}.")


def _check_cell(schedule, tick, rank, cell, owned, seen):
    """Each action is one of the rank's, once, in the tick's order, one of a kind."""
    place = f"at tick {tick} on rank {rank}"
    phase = -1
    for action in cell:
        stage, kind, microbatch = action
        if kind not in KINDS or not (0 <= stage < schedule.num_stages and 0 <= microbatch < schedule.num_microbatches):
            limits = f"{schedule.num_stages} stages and {schedule.num_microbatches} microbatches"
            raise _error(schedule, f"has {action} {place}", f"there are {limits}", "Remove it")
        if kind in _COLLECTIVE:
            _check_vocabulary_action(schedule, place, action, owned)
        elif stage not in owned:
            owner = schedule.locate(stage)[0]
            raise _error(schedule, f"has {action} {place}", f"rank {owner} owns stage {stage}", "Move it there")
        for part in action.parts():
            if part in seen:
                raise _error(schedule, f"has {action} {place}, twice", "each action runs once", "Remove one")
            seen.add(part)
            if PHASE[part.kind] <= phase:
                cells = " ".join(map(str, cell))
                order = "a rank runs at most one action of each kind a tick, in the order E F H R I G W (B is I and W)"
                raise _error(schedule, f"has {cells} {place}", order, f"Move {action} to another tick")
            # A B's W runs after the hop, so G may follow B in the cell, and only another W may not.
            phase = PHASE[part.kind] if part.kind == action.kind else PHASE["I"]
    if sum(action.kind in "BW" for action in cell) > 1:
        raise _error(schedule, f"has {' '.join(map(str, cell))} {place}", "a B is an I and a W", "Move one of them")


def _check_vocabulary_action(schedule, place, action, owned):
    stage = schedule.num_stages - 1 if action.kind == "H" else 0
    if schedule.vocabulary is None:
        raise _error(schedule, f"has {action} {place}", "its vocabulary is None", "Build it with with_vocabulary")
    if action.stage != stage:
        raise _error(schedule, f"has {action} {place}", f"{action.kind} belongs to stage {stage}", "Renumber it")
    if schedule.vocabulary == "ends" and stage not in owned:
        owner = schedule.locate(stage)[0]
        raise _error(schedule, f"has {action} {place}", f"rank {owner} owns stage {stage}", "Move it there")


def _check_inputs(schedule, tick, rank, cell, done):
    """Every input ran in an earlier tick, or on this rank in an earlier phase of this one."""
    here = {}
    for action in cell:
        for needed in inputs(action, schedule.num_stages - 1, schedule.vocabulary):
            if needed not in done and here.get(needed, 99) >= PHASE[action.kind]:
                when, where = _find(schedule, needed)
                raise _error(
                    schedule,
                    f"has {action} at tick {tick} on rank {rank} before its input {needed}",
                    f"{needed} runs at tick {when} on rank {where}",
                    f"Move {action} later or {needed} earlier",
                )
        if action.kind == "R" and action._replace(kind="I") in done:
            raise _error(
                schedule, f"has {action} at tick {tick} on rank {rank} after its I", "I uses it", "Move it earlier"
            )
        for part in action.parts():
            here[part] = PHASE[part.kind]


def _find(schedule, part):
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            if rank == schedule.owner(part) and any(part in action.parts() for action in cell):
                return tick, rank
    raise KeyError(part)


def _check_collectives(schedule, tick, row):
    first = [action for action in row[0] if action.kind in _COLLECTIVE]
    for rank, cell in enumerate(row):
        mine = [action for action in cell if action.kind in _COLLECTIVE]
        if mine != first:
            odd = (set(mine) ^ set(first)).pop()
            raise _error(
                schedule,
                f"has {odd} at tick {tick} on one of ranks 0 and {rank} but not on the other",
                "with vocabulary=pipe all ranks take part",
                "Put it on every rank",
            )


def _check_complete(schedule, seen):
    """No action is missing."""
    last = schedule.num_stages - 1
    ends = {"E": [0], "H": [last], "G": [0]} if schedule.vocabulary else {}
    wanted = {"F": range(last + 1), "I": range(last + 1), "W": range(last + 1)} | ends
    for kind in wanted:
        for stage in wanted[kind]:
            for microbatch in range(schedule.num_microbatches):
                rank = schedule.locate(stage)[0]
                if (stage, kind, microbatch) not in seen[rank]:
                    name = f"{stage}{kind}{microbatch}"
                    reason = "each action runs once" if kind != "W" else "every I has its W (a B is both)"
                    raise _error(schedule, f"misses {name}", reason, f"Add it on rank {rank}")


def _check_live(schedule, max_live):
    bound = max_live * schedule.num_chunks
    live = live_activations(schedule)
    over = [(rank, index) for rank, trace in enumerate(live) for index, n in enumerate(trace) if n > bound]
    if over:
        rank, index = over[0]
        raise _error(
            schedule,
            f"holds {live[rank][index] / schedule.num_chunks:g} microbatches of activations on rank {rank} "
            f"at {schedule.actions[rank][index]}",
            f"max_live={max_live}",
            "Choose a schedule that drains earlier or raise the bound",
        )
