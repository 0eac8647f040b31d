"""Fused ticks: the formulas, lockstep, and where each W goes."""

import pytest

from jaxpar.schedule import build, from_csv
from tests.schedule.common import DATA

SIZES = [(p, v, m) for p in (1, 2, 3, 4, 8) for v in (1, 2, 3) for m in (1, 2, 3, 4, 7, 8, 16)]


def ticks_of(schedule, kinds):
    return {
        (a.stage, a.microbatch): t
        for t, row in enumerate(schedule.ticks)
        for cell in row
        for a in cell
        if a.kind in kinds
    }


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (8, 2)])
def test_ticks_are_the_formula(ranks, chunks):
    schedule = build("fused_1f1b", ranks, 3 * ranks, chunks)
    forward, backward = ticks_of(schedule, "F"), ticks_of(schedule, "B")
    for v in range(chunks):
        for r in range(ranks):
            for g in range(3):
                for j in range(ranks):
                    at, start = (v * ranks + r, g * ranks + j), g * ranks * chunks
                    assert forward[at] == start + v * ranks + j + r
                    turned = (chunks - 1 - v) * ranks + j + (ranks - 1 - r)
                    assert backward[at] == (chunks * ranks - 1) + start + turned


@pytest.mark.parametrize("path", sorted(DATA.rglob("lock_FB-loop*.csv")), ids=lambda path: path.stem)
def test_one_f_and_one_b_equal_the_reference(path):
    reference = from_csv(path)
    sizes = (reference.num_ranks, reference.num_microbatches, reference.num_chunks)
    assert build("fused_1f1b", *sizes).ticks == reference.ticks


@pytest.mark.parametrize("path", sorted(DATA.rglob("lock_FIW-loop*.csv")), ids=lambda path: path.stem)
def test_split_ticks_are_no_worse_than_the_reference(path):
    reference = from_csv(path)
    ours = build("fused_zb", reference.num_ranks, reference.num_microbatches, reference.num_chunks)
    for kind in "FI":
        assert ticks_of(ours, kind) == ticks_of(reference, kind)
    for mode in ("free", "lockstep"):
        assert ours.simulate(mode=mode).makespan <= reference.simulate(mode=mode).makespan
    assert max(ours.simulate().peak_live) <= max(reference.simulate().peak_live)


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SIZES)
def test_lockstep_loses_nothing(ranks, chunks, microbatches):
    schedule = build("fused_1f1b", ranks, microbatches, chunks)
    free, lockstep = (schedule.simulate(mode=mode, send="after_B").makespan for mode in ("free", "lockstep"))
    assert lockstep == pytest.approx(free)


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SIZES)
def test_w_apart_keeps_the_other_ticks_and_the_memory(ranks, chunks, microbatches):
    whole, split = (build(name, ranks, microbatches, chunks) for name in ("fused_1f1b", "fused_zb"))
    assert ticks_of(split, "F") == ticks_of(whole, "F")
    assert ticks_of(split, "I") == ticks_of(whole, "B")
    assert max(split.simulate().peak_live) <= max(whole.simulate().peak_live)
    # Where the ring has gaps (M < P) a W may be put off for a rank that does not wait: the lockstep gains all the same.
    for mode in ("free", "lockstep") if microbatches >= ranks else ("lockstep",):
        assert split.simulate(mode=mode).makespan <= whole.simulate(mode=mode).makespan + 1e-9
    assert all(len(cell) <= 3 for row in split.ticks for cell in row)
