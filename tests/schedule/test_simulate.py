"""The simulator: published and reference totals, hand-computed cases, collectives, both modes."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import Action, Costs, Schedule, build, from_csv
from tests.schedule.common import DATA, lock_references, reference_files, references

MODES = list(itertools.product(("free", "lockstep"), ("after_I", "after_B")))


@pytest.mark.parametrize("row", references(), ids=lambda row: row["file"])
def test_totals_and_peaks_equal_the_references(row):
    schedule = from_csv(DATA / row["file"])
    timeline = schedule.simulate(send="after_B")
    assert timeline.makespan == float(row["free_total_norm"])
    assert timeline.bubble == pytest.approx(float(row["free_bubble"]), abs=1e-4)
    assert max(timeline.peak_live) == float(row["peak_act"])
    assert max(timeline.pending_weight_grads) == float(row["peak_pendingW"])


@pytest.mark.parametrize("row", references(), ids=lambda row: row["file"])
def test_one_action_a_tick_totals_equal_the_references(row):
    read = from_csv(DATA / row["file"])
    sizes = (read.num_ranks, read.num_chunks, read.num_microbatches)
    schedule = Schedule.from_orders("one action a tick", *sizes, read.placement, read.actions)
    total = sum(max(2 if a.kind == "B" else 1 for cell in tick for a in cell) for tick in schedule.ticks)
    assert total == float(row["lock1_asap_total"])
    # Our lockstep has no barrier in a tick without messages, so it can only be shorter.
    lockstep = schedule.simulate(Costs(), mode="lockstep", send="after_B").makespan
    assert lockstep <= total
    if read.num_ranks > 2 or "B" not in {a.kind for order in read.actions for a in order}:
        assert lockstep == total


@pytest.mark.parametrize(("file", "row"), lock_references(), ids=lambda x: x if isinstance(x, str) else "")
def test_fused_ticks_equal_the_references(file, row):
    schedule = from_csv(DATA / file)
    assert schedule.num_ticks == int(row["ticks"])
    free = schedule.simulate(send="after_B")
    assert free.makespan == float(row["free"])
    assert max(free.peak_live) == float(row["peak"])
    if row["design"].startswith("FB"):
        assert schedule.simulate(mode="lockstep", send="after_B").makespan == float(row["lock_branch"])


# The design's table for 8 ranks and 16 microbatches: (free, lockstep) x (after I, after B), peak activations.
@pytest.mark.parametrize(
    ("name", "num_chunks", "totals", "peak"),
    [
        ("gpipe", 1, (62, 69, 68, 69), 16),
        ("1f1b", 1, (62, 69, 62, 84), 8),
        ("interleaved_1f1b", 2, (55, 58.5, 59, 70), 11.5),
    ],
)
def test_the_design_table(name, num_chunks, totals, peak):
    schedule = build(name, 8, 16, num_chunks)
    timelines = [schedule.simulate(mode=mode, send=send) for mode, send in MODES]
    assert tuple(timeline.makespan for timeline in timelines) == totals
    for timeline in timelines:
        assert timeline.busy == (48,) * 8
        assert timeline.bubble == pytest.approx(1 - 48 / timeline.makespan)
        assert max(timeline.peak_live) == peak


def test_a_small_case_by_hand():
    # Rank 0: F0 [0,1] F1 [1,2], then B0; rank 1: F0 [1.5,2.5], I0 [2.5,4.5], W0 [4.5,5].
    costs = Costs(F=1, I=2, W=0.5, hop=0.5)
    timeline = build("gpipe", 2, 1).simulate(costs)
    events = {str(e.action): (e.start, e.end) for e in timeline.events}
    assert events == {"0F0": (0, 1), "1F0": (1.5, 2.5), "1B0": (2.5, 5), "0B0": (5, 7.5)}
    assert timeline.makespan == 7.5
    assert timeline.busy == (3.5, 3.5)
    after_b = build("gpipe", 2, 1).simulate(costs, send="after_B")
    assert {str(e.action): (e.start, e.end) for e in after_b.events}["0B0"] == (5.5, 8)


def test_costs_of_each_stage():
    timeline = build("naive", 3, 1).simulate(Costs(F=[1, 2, 3], I=[10, 20, 30], W=[0.1, 0.2, 0.3]))
    assert timeline.busy == pytest.approx((11.1, 22.2, 33.3))
    assert timeline.makespan == pytest.approx(1 + 2 + 3 + 30 + 20 + 10.1)
    with pytest.raises(SettingError, match=r"costs\.F=\[1, 2\] has 2 entries for 3 stages"):
        build("naive", 3, 1).simulate(Costs(F=[1, 2]))


@pytest.mark.parametrize("mode", ["free", "lockstep"])
@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs(F=float("nan")), r"costs\.F=nan is not a finite number"),
        (Costs(F=-1), r"costs\.F=-1 is negative"),
        (Costs(F={0: 1, 1: 2}), r"costs\.F=\{0: 1, 1: 2\} is not a finite number"),
        (Costs(I=None), r"costs\.I=None is not a finite number"),
        (Costs(hop=[1]), r"costs\.hop=\[1\] is a list"),
        (Costs(hop=float("inf")), r"costs\.hop=inf is not a finite number"),
        (Costs(F="1"), r"costs\.F='1' is not a finite number"),
        (Costs(F=1j), r"costs\.F=1j is not a finite number"),
        (Costs(F=np.ones((2, 2))), r"costs\.F=array\(.*is not a finite number"),
        (Costs(F=np.array("x")), r"costs\.F=array\(.*is not a finite number"),
        (
            Costs(W=[1, 1e308]),
            r"costs\.W=\[1, 1e\+308\] is over 1e\+100: sums of such times overflow\. Use another unit",
        ),
        ({"F": 1.0}, r"costs=\{'F': 1\.0\} is no Costs: it is a dict\. Write Costs\(F="),
        (0, r"costs=0 is no Costs"),
    ],
    ids=str,
)
def test_what_is_no_cost_is_refused(costs, message, mode):
    with pytest.raises(SettingError, match=f"(?s)^{message}"):
        build("1f1b", 2, 2).simulate(costs, mode=mode)


def test_costs_may_be_any_number():
    expected = build("1f1b", 2, 2).simulate(Costs(F=[2.0, 2.0], hop=1.0))
    for two, one in ((np.array(2.0), np.array(1)), (np.full(2, 2.0), np.float32(1)), ((2, 2), Fraction(1))):
        assert build("1f1b", 2, 2).simulate(Costs(F=two, hop=one)) == expected
    assert build("1f1b", 2, 2).simulate(Costs(F=1e100)).makespan < float("inf")


def test_head_on_one_rank_or_split_over_all():
    schedule = build("1f1b", 4, 8)
    costs = Costs(H=2, E=1, G=1)
    ends = schedule.with_vocabulary("ends").simulate(costs)
    assert ends.busy == (24 + 16, 24, 24, 24 + 16)
    pipe = schedule.with_vocabulary("pipe").simulate(costs)
    assert pipe.busy == (24 + 8,) * 4
    for m in range(8):
        for kind, stage in (("E", 0), ("H", 3), ("G", 0)):
            spans = [(e.start, e.end) for e in pipe.events if e.action == Action(stage, kind, m)]
            assert len(spans) == 4 and len(set(spans)) == 1, "a collective starts everywhere at once"
            cost = (2 if kind == "H" else 1) / 4
            assert spans[0][1] - spans[0][0] == pytest.approx(cost)


def test_unknown_modes_are_refused():
    with pytest.raises(SettingError, match="mode=fast is unknown: .* Use free or lockstep"):
        build("1f1b", 2, 2).simulate(mode="fast")
    with pytest.raises(SettingError, match="send=never is unknown: .* Use after_I or after_B"):
        build("1f1b", 2, 2).simulate(send="never")


def all_schedules():
    for name, num_chunks in (("naive", 2), ("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 3)):
        for num_microbatches in (1, 3, 8):
            for vocabulary, lag in ((None, 0), ("ends", 0), ("pipe", 0), ("pipe", 1), ("pipe", 9)):
                yield build(name, 4, num_microbatches, num_chunks).with_vocabulary(vocabulary, head_lag=lag)
    yield from map(from_csv, reference_files())


COSTS = Costs(F=3, I=5, W=2, R=1, H=4, E=2, hop=7, G=1)


@pytest.mark.parametrize(("mode", "send"), MODES)
def test_every_event_waits_for_its_inputs_and_its_rank(mode, send):
    for schedule in all_schedules():
        timeline = schedule.simulate(COSTS, mode=mode, send=send)
        done, free = {}, [0] * schedule.num_ranks
        for event in timeline.events:
            if event.rank == schedule.owner(event.action):
                for part in event.action.parts():
                    done[part] = event.end
                if event.action.kind == "B" and send == "after_I":
                    done[event.action.parts()[0]] = event.start + COSTS.I
        for rank, action, start, end in sorted(timeline.events, key=lambda e: (e.start, e.end)):
            if action.kind != "G":  # it may run inside its B
                assert start >= free[rank], (schedule.name, action)
                free[rank] = end
            assert end - start >= sum(getattr(COSTS, part.kind) for part in action.parts()) / schedule.num_ranks
            if action.kind in "FIB" and rank == schedule.owner(action):
                kind, step = ("F", -1) if action.kind == "F" else ("I", 1)
                source = Action(action.stage + step, kind, action.microbatch)
                if 0 <= source.stage < schedule.num_stages:
                    hop = COSTS.hop if schedule.owner(source) != rank else 0
                    assert start >= done[source] + hop, (schedule.name, action)
        listed = sorted((rank, action) for rank, order in enumerate(schedule.actions) for action in order)
        assert sorted((e.rank, e.action) for e in timeline.events) == listed, "each action once"


def test_lockstep_is_never_faster_than_free():
    for schedule in all_schedules():
        for send in ("after_I", "after_B"):
            free = schedule.simulate(COSTS, send=send).makespan
            assert free <= schedule.simulate(COSTS, mode="lockstep", send=send).makespan


def critical_path(schedule, after_b):
    """The free makespan as the longest path through order and dependency edges, in exact fractions."""
    end, last = {}, schedule.num_stages - 1
    position = [0] * schedule.num_ranks
    clock = [Fraction(0)] * schedule.num_ranks
    unit = Fraction(1, schedule.num_chunks)
    while any(position[r] < len(order) for r, order in enumerate(schedule.actions)):
        for rank, order in enumerate(schedule.actions):
            if position[rank] == len(order):
                continue
            stage, kind, m = order[position[rank]]
            needed = {"F": ("F", stage - 1, m), "I": ("I", stage + 1, m), "B": ("I", stage + 1, m)}.get(kind)
            if needed is None or not 0 <= needed[1] <= last:
                start = clock[rank]
            elif needed in end:
                start = max(clock[rank], end[needed])
            else:
                continue
            position[rank] += 1
            clock[rank] = start + unit * (2 if kind == "B" else 1)
            end["I" if kind == "B" else kind, stage, m] = start + unit if kind == "B" and not after_b else clock[rank]
    return max(clock)


@pytest.mark.parametrize("after_b", [False, True])
def test_free_makespan_is_the_critical_path(after_b):
    schedules = [s for s in all_schedules() if s.vocabulary is None]
    for schedule in schedules:
        timeline = schedule.simulate(send="after_B" if after_b else "after_I")
        assert timeline.makespan == pytest.approx(float(critical_path(schedule, after_b))), schedule.name
