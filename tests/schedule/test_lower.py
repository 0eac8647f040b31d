"""Plans, interpreted with symbolic payloads: every read is the right one, and slots are as few as can be."""

import dataclasses

import numpy as np
import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import ScheduleError, build, from_csv, unify
from jaxpar.schedule.messages import CHANNELS, limit, ring
from jaxpar.schedule.plan import idle_table
from jaxpar.schedule.slots import colour
from tests.schedule.common import reference_files, small_schedules
from tests.schedule.interpreter import interpret
from tests.schedule.test_check import with_recompute

PHASE = {"E": 0, "F": 1, "H": 2, "R": 3, "I": 4, "G": 5, "hop": 6, "W": 7}


def expected_runs(schedule, recompute):
    """What a plan must run, each once."""
    runs, last = {}, schedule.num_stages - 1
    for m in range(schedule.num_microbatches):
        for stage in range(last + 1):
            rank = schedule.locate(stage)[0]
            runs.update({(rank, kind, stage, m): 1 for kind in ("FRIW" if recompute else "FIW")})
        if schedule.vocabulary:
            for kind, stage in (("E", 0), ("H", last), ("G", 0)):
                everyone = schedule.vocabulary == "pipe"
                for rank in range(schedule.num_ranks) if everyone else [schedule.locate(stage)[0]]:
                    runs[rank, kind, stage, m] = 1
    return runs


def largest_overlaps(schedule, recompute):
    """For each buffer the most values that are alive at once on any rank, straight from the ticks."""
    at, last = {}, schedule.num_stages - 1
    for tick, row in enumerate(schedule.ticks):
        for cell in row:
            for a in cell:
                for part in a.parts():
                    at[part.kind, part.stage, part.microbatch] = 8 * tick + PHASE[part.kind]
    alive = {}

    def add(buffer, rank, start, end):
        for time in range(start, end + 1):
            key = (buffer, rank, time)
            alive[key] = alive.get(key, 0) + 1

    def hop(time):
        return time // 8 * 8 + PHASE["hop"]

    for m in range(schedule.num_microbatches):
        for s in range(last + 1):
            rank = schedule.locate(s)[0]
            f, i, w = (at[kind, s, m] for kind in "FIW")
            r = at.get(("R", s, m), i - 1)
            pools = {"FI": (f, i), "FW": (f, w), "IW": (i, w)}
            if recompute:
                pools.update(FR=(f, r), RI=(r, i), RW=(r, w))
            for pool, (start, end) in pools.items():
                add(pool, rank, start, end)
            if s:
                local = schedule.locate(s - 1)[0] == rank
                sent = at["F", s - 1, m]
                add("act", rank, sent if local else hop(sent), f)
            elif schedule.vocabulary:
                add("act", rank, at["E", 0, m], f)
                add("grad", rank, i, at["G", 0, m])
            if s < last:
                local = schedule.locate(s + 1)[0] == rank
                sent = at["I", s + 1, m]
                add("grad", rank, sent if local else hop(sent), i)
            elif schedule.vocabulary:
                add("act", rank, f, at["H", s, m])
                add("grad", rank, at["H", s, m], i)
    most = dict.fromkeys(("FR", "FI", "FW", "RI", "RW", "IW"), 0) | {"act": 1, "grad": 1}
    for (buffer, _, _), count in alive.items():
        most[buffer] = max(most[buffer], count)
    return most


def assert_right(schedule, recompute):
    plan = schedule.lower(recompute=recompute)
    assert plan.table.dtype == np.int16 and plan.pattern.dtype == np.int32
    assert plan.table.shape == (schedule.num_ticks, schedule.num_ranks, len(plan.columns))
    assert interpret(plan, schedule, recompute) == expected_runs(schedule, recompute)
    assert plan.num_slots == largest_overlaps(schedule, recompute)
    return plan


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("vocabulary", [None, "ends", "pipe"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_small_plan_reads_the_right_values(num_ranks, vocabulary, recompute):
    for num_chunks in (1, 2, 3):
        for num_microbatches in range(1, 10):
            for schedule in small_schedules(num_ranks, num_chunks, num_microbatches):
                plan = assert_right(schedule.with_vocabulary(vocabulary), recompute)
                if vocabulary is None:
                    assert [len(p) for p in plan.patterns[1:3]] == [1, 1], "the loop uses act+1 and grad-1 alone"


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("vocabulary", [None, "ends", "pipe"])
def test_reference_plans_read_the_right_values(vocabulary, recompute):
    for path in reference_files():
        assert_right(from_csv(path).with_vocabulary(vocabulary, head_lag=1), recompute)


def test_scheduled_recompute_is_kept_or_dropped():
    plain = build("1f1b", 2, 3)
    scheduled = with_recompute(plain)
    assert_right(scheduled, True)
    assert_right(scheduled, False)
    assert np.array_equal(scheduled.lower(True).table, plain.lower(True).table)
    # One microbatch is recomputed a tick early: it takes the slots from then on.
    rows = [list(row) for row in plain.ticks]
    tick = next(t for t, row in enumerate(rows) if any(str(a) == "0B0" for a in row[0]))
    rows[tick - 1][0] = (*rows[tick - 1][0], plain.actions[0][0]._replace(kind="R"))
    early = dataclasses.replace(plain, ticks=tuple(map(tuple, rows)))
    plan = assert_right(early, True)
    assert plan.table[tick - 1, 0, plan.columns["R.run"]] == 1
    assert plan.table[:, 0, plan.columns["R.run"]].sum() == 3


@pytest.mark.parametrize("lag", range(6))
def test_a_late_head(lag):
    for name, num_chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)):
        for vocabulary in ("ends", "pipe"):
            assert_right(build(name, 4, 6, num_chunks).with_vocabulary(vocabulary, head_lag=lag), False)


def test_an_invalid_schedule_is_not_lowered():
    schedule = build("1f1b", 2, 2)
    with pytest.raises(ScheduleError, match="misses 0B1"):
        dataclasses.replace(schedule, ticks=schedule.ticks[:-1]).lower()


def test_colouring_is_optimal_and_inclusive():
    rng = np.random.default_rng(0)
    for _ in range(200):
        starts = rng.integers(0, 30, 25)
        ends = starts + rng.integers(0, 8, 25)
        slots, num_slots = colour(starts, ends)
        alive = [(starts <= time) & (time <= ends) for time in range(40)]
        assert num_slots == max(mask.sum() for mask in alive)
        for mask in alive:
            assert len(set(slots[mask])) == mask.sum(), "overlapping intervals have different slots"
    assert colour(np.array([0, 3]), np.array([3, 4]))[1] == 2
    assert colour(np.array([0, 4]), np.array([3, 4]))[1] == 1


def active_pairs(schedule):
    """For each channel and tick the set of (source, target), from the definition of the loop placement."""
    num_ranks = schedule.num_ranks
    pairs = []
    for row in schedule.ticks:
        act = {
            (r, (r + 1) % num_ranks)
            for r, c in enumerate(row)
            for a in c
            if a.kind == "F" and a.stage + 1 < schedule.num_stages
        }
        grad = {(r, (r - 1) % num_ranks) for r, c in enumerate(row) for a in c if a.kind in "BI" and a.stage}
        pairs.append({"act+1": act, "act-1": set(), "grad+1": set(), "grad-1": grad})
    return pairs


@pytest.mark.parametrize(("name", "num_chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_patterns_are_exactly_the_active_pairs(name, num_chunks):
    schedule = build(name, 4, 16, num_chunks)
    plan = schedule.lower()
    for t, expected in enumerate(active_pairs(schedule)):
        for c, channel in enumerate(CHANNELS):
            assert set(plan.patterns[c][plan.pattern[t, c]]) == expected[channel]
    for patterns in plan.patterns:
        assert patterns[0] == () and () not in patterns[1:] and len(set(patterns)) == len(patterns) <= 33
    assert sum(len(patterns) - 1 for patterns in plan.patterns) <= 24


def test_too_many_patterns_become_the_ring():
    plan = build("1f1b", 64, 64).lower()
    ring = tuple((r, (r + 1) % 64) for r in range(64))
    assert plan.patterns[0] == ((), ring)
    assert plan.patterns[1] == plan.patterns[2] == ((),)
    back = tuple((r, (r - 1) % 64) for r in range(64))
    assert plan.patterns[3] == ((), back)
    pairs = active_pairs(build("1f1b", 64, 64))
    assert [bool(p["act+1"]) for p in pairs] == [bool(i) for i in plan.pattern[:, 0]]
    interpret(plan, build("1f1b", 64, 64), False)


def test_thirty_two_patterns_are_not_too_many():
    patterns = [(pair,) for pair in ring("act+1", 40)]
    assert limit("act+1", 40, patterns[:32] * 2) == ((), *patterns[:32])
    assert limit("act+1", 40, patterns[:33]) == ((), ring("act+1", 40))
    assert ring("grad-1", 3) == ((0, 2), (1, 0), (2, 1))


def test_unified_plans_have_one_shape_and_still_work():
    for vocabulary in (None, "ends", "pipe"):
        schedules = [s.with_vocabulary(vocabulary) for v in (1, 2) for m in (1, 4, 7) for s in small_schedules(4, v, m)]
        plans = [schedule.lower(recompute=True) for schedule in schedules]
        unified = unify(plans)
        for before, plan, schedule in zip(plans, unified, schedules, strict=True):
            assert plan.table.shape == unified[0].table.shape and plan.pattern.shape == unified[0].pattern.shape
            assert plan.patterns == unified[0].patterns and plan.num_slots == unified[0].num_slots
            assert plan.num_ticks == before.num_ticks == schedule.num_ticks
            assert not plan.pattern[plan.num_ticks :].any()
            assert interpret(plan, schedule, True) == expected_runs(schedule, True)
        assert unified[0].num_slots == {b: max(p.num_slots[b] for p in plans) for b in plans[0].num_slots}
        assert len(unified[0].table) == max(plan.num_ticks for plan in plans)


def test_unify_falls_back_to_the_ring():
    schedules = [build(*sizes) for sizes in (("1f1b", 16, 16), ("gpipe", 16, 7), ("interleaved_1f1b", 16, 16, 2))]
    unified = unify([schedule.lower() for schedule in schedules])
    assert unified[0].patterns[0] == ((), tuple((r, (r + 1) % 16) for r in range(16)))
    for plan, schedule in zip(unified, schedules, strict=True):
        assert interpret(plan, schedule, False) == expected_runs(schedule, False)


def test_plans_of_different_meshes_do_not_unify():
    with pytest.raises(SettingError, match=r"mesh\.pipe=\[2, 4\] differ"):
        unify([build("1f1b", 2, 2).lower(), build("1f1b", 4, 2).lower()])


def test_the_table_is_wide_where_numbers_are_large():
    slots = {"act": 3, "grad": 2}
    assert idle_table(1, 2, slots, 2**15 - 1).dtype == np.int16 and idle_table(1, 2, slots, 2**15).dtype == np.int32
    assert idle_table(1, 2, {"act": 2**15, "grad": 1}, 4).dtype == np.int32
