"""Swap, drop or duplicate any two cells of any schedule: check() refuses exactly what a replay cannot run."""

import dataclasses
import itertools

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import build, names
from tests.schedule.common import accepted

# (num_ranks, num_chunks, num_microbatches)
SIZES = [(1, 1, 3), (1, 2, 2), (2, 1, 3), (2, 2, 2), (3, 1, 3), (3, 2, 2), (4, 1, 3), (4, 2, 1)]
LARGER = [(1, 3, 2), (2, 2, 3), (2, 3, 2), (4, 1, 5), (4, 2, 2)]


def replay(schedule):
    """Run the table with messages, rank by rank, and see whether every action finds what it needs.

    Written from the definition of a tick, not from check(): a rank runs its cell in order; an activation or gradient
    for another rank arrives when all ranks have run the tick; a B is an I before and a W after that.
    """
    ranks, last = schedule.num_ranks, schedule.num_ranks * schedule.num_chunks - 1
    path = [*range(ranks), *(reversed(range(ranks)) if schedule.placement == "v" else range(ranks))]
    home = [path[stage % len(path)] for stage in range(last + 1)]
    held = [{("x", 0, m) for m in range(schedule.num_microbatches)} if r == home[0] else set() for r in range(ranks)]
    count = 0
    for row in schedule.ticks:
        mail = []
        for rank, cell in enumerate(row):
            for stage, kind, m in cell:
                if home[stage] != rank or not work(held[rank], kind, stage, m, last):
                    return False
                count += 2 if kind == "B" else 1
                to = {"F": ("x", stage + 1, m), "W": None}.get(kind, ("g", stage - 1, m))
                if to and 0 <= to[1] <= last:
                    (held[rank].add(to) if home[to[1]] == rank else mail.append((home[to[1]], to)))
        for rank, to in mail:
            held[rank].add(to)
    return count == 3 * (last + 1) * schedule.num_microbatches


def work(held, kind, stage, m, last):
    """One action turns what the rank holds into something else, which is gone after it; False where it is not held."""
    turns = {
        "F": [(("x", stage, m), ("y", stage, m))],
        "I": [(("y", stage, m), ("w", stage, m))],
        "W": [(("w", stage, m), ("done", stage, m))],
    }
    for needed, left in turns["I"] + turns["W"] if kind == "B" else turns[kind]:
        if needed not in held or (needed[0] == "y" and stage < last and ("g", stage, m) not in held):
            return False
        held.remove(needed)
        held.add(left)
    return True


def pairs(schedule):
    """sort of change -> all pairs (a, b) of cells, (tick, rank) each, that it is made to; idle cells alone are left."""
    cells = list(itertools.product(range(schedule.num_ticks), range(schedule.num_ranks)))
    busy = [(t, r) for t, r in cells if schedule.ticks[t][r]]
    either = set(busy)
    return {
        "swap": [(a, b) for a, b in itertools.combinations(cells, 2) if a in either or b in either],
        "drop": list(itertools.combinations_with_replacement(busy, 2)),
        "duplicate": [(a, b) for a in busy for b in cells if a != b],
    }


def mutant(schedule, sort, a, b):
    first, second = schedule.ticks[a[0]][a[1]], schedule.ticks[b[0]][b[1]]
    new = {"drop": {a: (), b: ()}, "duplicate": {b: first}}.get(sort, {a: second, b: first})
    rows = [list(row) for row in schedule.ticks]
    for (tick, rank), cell in new.items():
        rows[tick][rank] = cell
    return dataclasses.replace(schedule, ticks=tuple(map(tuple, rows)))


def assert_same_verdicts(name, sizes):
    verdicts = {}
    for num_ranks, num_chunks, num_microbatches in sizes:
        try:
            schedule = build(name, num_ranks, num_microbatches, num_chunks)
        except SettingError:
            continue  # the family has no such sizes
        assert replay(schedule) and accepted(schedule)
        for sort, all_pairs in pairs(schedule).items():
            for a, b in all_pairs:
                changed = mutant(schedule, sort, a, b)
                runs = replay(changed)
                assert accepted(changed) == runs, f"{sort} {a} {b}\n{changed.render()}"
                verdicts[sort, runs] = verdicts.get((sort, runs), 0) + 1
    always = {("swap", False), ("drop", False), ("duplicate", False)}
    assert always <= set(verdicts)
    assert set(verdicts) <= {*always, ("swap", True)}, "an action less or twice is never right"
    return verdicts


@pytest.mark.parametrize("name", names())
def test_exactly_what_breaks_a_dependency_is_refused(name):
    assert ("swap", True) in assert_same_verdicts(name, SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_exactly_what_breaks_a_dependency_is_refused_for_larger_sizes(name):
    assert_same_verdicts(name, LARGER)


def test_the_replay_knows_the_rules():
    schedule = build("1f1b", 2, 2)
    for tick, rank, other, runs in ((0, 0, 0, True), (0, 0, 1, False), (1, 1, 0, False), (2, 1, 1, False)):
        assert replay(mutant(schedule, "swap", (tick, rank), (other, rank))) == runs
    early = dataclasses.replace(schedule, ticks=tuple((a, b) for (a, _), (_, b) in itertools.pairwise(schedule.ticks)))
    assert not replay(early)
