"""check() refuses exactly the tables that break a rule: exhaustive mutations against an independent oracle."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import Action, Schedule, ScheduleError, build, from_csv
from tests.schedule.common import DATA, accepted, reference_files


def valid_by_definition(schedule):
    """The rules written down once more, as a set of constraints on (tick, phase) of every action."""
    num_ranks, last = schedule.num_ranks, schedule.num_stages - 1
    times = {}
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            kinds = "".join("IW" if a.kind == "B" else a.kind for a in cell)
            if len(set(kinds)) < len(kinds):
                return False
            order = "".join(a.kind for a in cell).replace("B", "I")
            if list(order) != sorted(order, key="EFHRIGW".index):
                return False
            for stage, kind, microbatch in cell:
                for part in "IW" if kind == "B" else kind:
                    times.setdefault((part, stage, microbatch), []).append((tick, "EFHRIG.W".index(part), rank))

    def owner(stage):
        chunk, rank = divmod(stage, num_ranks)
        return num_ranks - 1 - rank if schedule.placement == "v" and chunk % 2 else rank

    required, optional = {}, {}
    for m in range(schedule.num_microbatches):
        for s in range(last + 1):
            required.update({(kind, s, m): [owner(s)] for kind in "FIW"})
            optional["R", s, m] = [owner(s)]
        if schedule.vocabulary:
            for kind, s in (("E", 0), ("H", last), ("G", 0)):
                required[kind, s, m] = list(range(num_ranks)) if schedule.vocabulary == "pipe" else [owner(s)]
    for key, found in times.items():
        ranks = required.get(key) or optional.get(key)
        if ranks is None or sorted(r for _, _, r in found) != ranks or len({t for t, _, _ in found}) > 1:
            return False
    if not set(required) <= set(times):
        return False

    def before(first, second, far):
        (t1, p1), (t2, p2) = times[first][0][:2], times[second][0][:2]
        return t1 < t2 if far else (t1, p1) < (t2, p2)

    return all(before(*edge) for edge in edges(schedule, owner, [key for key in times if key[0] == "R"]))


def edges(schedule, owner, recomputed):
    """(earlier, later, do they run on different ranks) for every dependency; actions are (kind, stage, microbatch)."""
    last = schedule.num_stages - 1
    for m in range(schedule.num_microbatches):
        for s in range(last + 1):
            yield from [(("F", s, m), ("I", s, m), False), (("I", s, m), ("W", s, m), False)]
            if s < last:
                far = owner(s) != owner(s + 1)
                yield from [(("F", s, m), ("F", s + 1, m), far), (("I", s + 1, m), ("I", s, m), far)]
        if schedule.vocabulary:
            yield from [(("E", 0, m), ("F", 0, m), False), (("F", last, m), ("H", last, m), False)]
            yield from [(("H", last, m), ("I", last, m), False), (("I", 0, m), ("G", 0, m), False)]
    for _, s, m in recomputed:
        yield from [(("F", s, m), ("R", s, m), False), (("R", s, m), ("I", s, m), False)]


def with_recompute(schedule, microbatches=None):
    """The schedule with an R in the tick of every I and B, or of those of some microbatches."""

    def parts(a):
        chosen = a.kind in "IB" and (microbatches is None or a.microbatch in microbatches)
        return [a._replace(kind="R"), a] if chosen else [a]

    ticks = tuple(tuple(tuple(x for a in cell for x in parts(a)) for cell in row) for row in schedule.ticks)
    return dataclasses.replace(schedule, ticks=ticks)


SMALL = {
    "naive": build("naive", 2, 2),
    "gpipe": build("gpipe", 2, 3),
    "1f1b": build("1f1b", 3, 3),
    "interleaved": build("interleaved_1f1b", 2, 3, 2),
    "one rank": build("interleaved_1f1b", 1, 2, 2),
    "ends": build("1f1b", 2, 2).with_vocabulary("ends"),
    "pipe": build("1f1b", 2, 2).with_vocabulary("pipe", head_lag=1),
    "recompute": with_recompute(build("1f1b", 2, 2)),
    "some recompute": with_recompute(build("1f1b", 2, 2), {1}),
    "zero bubble": from_csv(DATA / "torch_InterleavedZeroBubble_P2_V1_M4.csv"),
    "v": from_csv(DATA / "ds_DualPipeV_P2_V2_M4.csv"),
    "fused": from_csv(DATA / "lock_FIW-loop-phase_P2_V1_M4.csv"),
}


def mutations(schedule):
    """Every swap of two cells, and every drop, move and copy of a cell or of one action."""
    cells = list(itertools.product(range(schedule.num_ticks), range(schedule.num_ranks)))
    get = {(t, r): schedule.ticks[t][r] for t, r in cells}

    def table(changes):
        new = {**get, **changes}
        ticks = tuple(tuple(new[t, r] for r in range(schedule.num_ranks)) for t in range(schedule.num_ticks))
        return dataclasses.replace(schedule, ticks=ticks)

    for a, b in itertools.combinations(cells, 2):
        yield table({a: get[b], b: get[a]})
    for a, b in itertools.permutations(cells, 2):
        yield table({b: get[a]})
        for action in get[a]:
            rest = tuple(x for x in get[a] if x != action)
            yield table({a: rest, b: (*get[b], action)})
            yield table({a: rest, b: (action, *get[b])})
            yield table({b: (*get[b], action)})
    for a in cells:
        for i in range(len(get[a])):
            yield table({a: get[a][:i] + get[a][i + 1 :]})
        yield table({a: get[a][::-1]})


@pytest.mark.parametrize("name", SMALL)
def test_exactly_the_broken_mutations_are_refused(name):
    verdicts = {True: 0, False: 0}
    assert valid_by_definition(SMALL[name])
    for mutant in mutations(SMALL[name]):
        valid = valid_by_definition(mutant)
        assert accepted(mutant) == valid, mutant.render()
        verdicts[valid] += 1
        if valid and "R" in {a.kind for order in mutant.actions for a in order}:
            assert_recomputes_once(mutant)
    assert min(verdicts.values()) > 0, "the mutations should be of both sorts"


def assert_recomputes_once(schedule):
    """Every microbatch on every stage, in the completed table and in the executor's."""
    assert valid_by_definition(schedule.with_recompute())
    for plan in (schedule.lower(recompute=True), schedule.with_recompute().lower(recompute=True)):
        runs = plan.table[..., plan.columns["R.run"]].sum()
        assert runs == schedule.num_stages * schedule.num_microbatches, schedule.render()


@pytest.mark.parametrize("path", reference_files(), ids=lambda path: path.name)
def test_references_are_valid(path):
    schedule = from_csv(path)
    schedule.check()
    assert valid_by_definition(schedule)


def runs_freely(orders, owners):
    """Does a free run of these orders end? No cycle in order and dependency edges (Kahn's algorithm)."""
    edges, nodes = set(), {a for order in orders for a in order}
    last = len(owners) - 1
    for order in orders:
        edges |= set(itertools.pairwise(order))
    for a in nodes:
        if a.kind == "F" and a.stage:
            edges.add((a._replace(stage=a.stage - 1), a))
        if a.kind == "B":
            edges.add((a._replace(kind="F"), a))
            if a.stage < last:
                edges.add((a._replace(stage=a.stage + 1), a))
    while nodes:
        free = {a for a in nodes if not any(y == a and x in nodes for x, y in edges)}
        if not free:
            return False
        nodes -= free
    return True


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "interleaved"])
def test_exactly_the_orders_that_deadlock_are_refused(name):
    base = SMALL[name]
    owners = [base.locate(s)[0] for s in range(base.num_stages)]
    outcomes = set()
    for rank, order in enumerate(base.actions):
        for i, j in itertools.combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[i], swapped[j] = order[j], order[i]
            orders = [tuple(swapped) if r == rank else base.actions[r] for r in range(base.num_ranks)]
            ends = runs_freely(orders, owners)
            outcomes.add(ends)
            arguments = (name, base.num_ranks, base.num_chunks, base.num_microbatches, "loop", orders)
            if ends:
                schedule = Schedule.from_orders(*arguments)
                schedule.check()
                assert list(schedule.actions) == orders
            else:
                with pytest.raises(ScheduleError, match="would deadlock: rank"):
                    Schedule.from_orders(*arguments)
    assert outcomes == {True, False}


def test_a_bound_on_live_activations_is_held():
    schedule = build("1f1b", 4, 8)
    assert schedule.check(max_live=4) is None
    message = (
        r"holds 4 microbatches of activations at tick 3 on rank 0 with 0F3: max_live=3\. Choose .* raise the bound"
    )
    with pytest.raises(ScheduleError, match=message) as error:
        schedule.check(max_live=3)
    assert str(error.value).splitlines()[3].index("^") == str(error.value).splitlines()[2].index("0F3")
    # Rank 1 is over the bound at tick 3, rank 0 at tick 2: ticks come first.
    with pytest.raises(ScheduleError, match=r"at tick 2 on rank 0 with 0F2: max_live=2\."):
        schedule.check(max_live=2)
    build("interleaved_1f1b", 4, 8, 2).check(max_live=5.5)
    with pytest.raises(ScheduleError, match="holds 5.5 microbatches"):
        build("interleaved_1f1b", 4, 8, 2).check(max_live=5)


@pytest.mark.parametrize("bound", [float("nan"), "2", [2], True, 1j, np.array([2.0, 3.0])], ids=str)
def test_a_bound_that_is_no_number_is_refused(bound):
    with pytest.raises(SettingError, match=r"^pipeline.max_live=.* is not a number: it counts microbatches\. Use 1 or"):
        build("1f1b", 2, 8).check(max_live=bound)


def test_a_bound_may_be_any_number():
    for bound in (2, 2.0, np.float32(2), np.int64(2), Fraction(2), float("inf"), 10**400):
        build("1f1b", 2, 8).check(max_live=bound)
    for bound in (0, -1, 1.5, -(10**400), Fraction(3, 2)):
        with pytest.raises(ScheduleError, match="of activations at tick . on rank 0 with 0F.: max_live="):
            build("1f1b", 2, 8).check(max_live=bound)


def test_the_bound_is_that_of_the_simulation():
    schedules = [from_csv(path) for path in reference_files()] + [build("interleaved_1f1b", 4, 8, v) for v in (1, 2, 3)]
    for schedule in schedules:
        peak = max(schedule.simulate().peak_live)
        schedule.check(max_live=peak)
        with pytest.raises(ScheduleError, match=f"max_live={peak - 1 / schedule.num_chunks:g}"):
            schedule.check(max_live=peak - 1 / schedule.num_chunks)


def orders(*texts):
    return [tuple(map(Action.parse, text.split())) for text in texts]


DRAWN_DEADLOCK = """
rank 0 0F0 0F1 2F1 2B1 2F0 2B0 0B0 0B1
                   ^^^
rank 1 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
               ^^^"""


def test_a_deadlock_names_who_waits_for_whom():
    crossed = orders("0F0 0B1 0F1 0B0", "1F0 1B0 1F1 1B1")
    with pytest.raises(ScheduleError, match="waits at 0B1 for 0F1, which comes later on that rank. Move 0F1 earlier"):
        Schedule.from_orders("x", 2, 1, 2, "loop", crossed)
    # Rank 0 wants chunk 1's backward of microbatch 1 before it runs 2F0, which rank 1 needs before it runs 3F1.
    circle = orders("0F0 0F1 2F1 2B1 2F0 2B0 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1")
    message = (
        "rank 0 waits at 2B1 for 3I1, rank 1 waits at 3F0 for 2F0, each behind the other's action. Move 2F0 earlier"
    )
    with pytest.raises(ScheduleError, match=message) as error:
        Schedule.from_orders("x", 2, 2, 2, "loop", circle)
    assert str(error.value).split("\n", 1)[1] == DRAWN_DEADLOCK[1:]
    with pytest.raises(ScheduleError, match="waits at 0B1 for 1I1, which no rank runs. Add 1I1"):
        Schedule.from_orders("x", 2, 1, 2, "loop", orders("0F0 0F1 0B1 0B0", "1F0 1F1 1B0"))
