"""Every schedule, mesh, vocabulary and way over the layers gives one device's loss and gradients.

Schedules of one shape share a program: their tables are its arguments. That keeps the matrix affordable, and it is
asserted: one compilation serves them all.
"""

import itertools

import pytest
from tiny import FAMILIES, assert_exact, make_mesh, pipeline, schedule_of, tiny_decoder

from jaxpar.pipeline import Layout, executor
from jaxpar.schedule import build, from_csv, unify

DEFAULT = ((1, 4, 2), (2, 2, 2), (2, 4, 1))
ALL = [m for m in itertools.product((1, 2), (1, 2, 4), (1, 2)) if m not in DEFAULT and m != (2, 4, 2)]  # 16 devices
SOME_R = {
    (2, 1, 2): ["0F0,0F1,(0R1;0B0)OVERLAP_F_B,0B1"],
    (1, 2, 2): ["0F0,0F1,,(0R1;0B0)OVERLAP_F_B,,0B1", ",1F0,(1F1;1B0)OVERLAP_F_B,(1R1;1B1)OVERLAP_F_B"],
}
NUM_MICROBATCHES = 5  # neither a multiple of the ranks nor fewer


def _meshes():
    return [*DEFAULT, *(pytest.param(m, marks=pytest.mark.slow) for m in ALL)]


def _num_layers(stages, even):
    return stages if even else stages + max(1, stages // 2)


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
@pytest.mark.parametrize("layers", ["loop", "unroll"])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("mesh", _meshes(), ids=str)
def test_one_chunk(mesh, tied, even, layers, vocabulary):
    data, pipe, tensor = mesh
    model, rows = tiny_decoder(_num_layers(pipe, even) if pipe > 1 else 3, tied), data * NUM_MICROBATCHES
    _assert_family(FAMILIES["one"], model, mesh, rows, layers, vocabulary)


def _assert_family(names, model, mesh, rows, layers, vocabulary="ends", remat="none"):
    """All schedules of a family in one program, each exact."""
    data, pipe, tensor = mesh
    chunks = 1 if set(names) <= set(FAMILIES["one"]) else 2
    schedules = [schedule_of(name, pipe, NUM_MICROBATCHES, chunks, vocabulary) for name in names]
    schedules = [s if remat == "none" else s.with_recompute() for s in schedules]
    plans = unify(s.lower(recompute=True) for s in schedules)
    mesh = make_mesh(data, pipe, tensor)
    layout = Layout.of(schedules[0], model.num_layers)
    fn = pipeline(model, mesh, plans[0], layout, layers=layers, vocabulary=vocabulary, remat=remat)
    for plan in plans:
        assert_exact(model, fn, mesh, rows, vocabulary, plan, apart=layers == "unroll")
    assert fn.run._cache_size() == 1


# The vocabulary and the tables are exhausted above; here two chunks a rank meet each of them.
@pytest.mark.parametrize(
    ("tied", "even", "layers", "vocabulary"),
    [
        (True, True, "loop", "pipe"),
        (False, False, "unroll", "ends"),
        pytest.param(True, False, "loop", "ends", marks=pytest.mark.slow),
        pytest.param(False, True, "unroll", "pipe", marks=pytest.mark.slow),
        pytest.param(True, False, "unroll", "pipe", marks=pytest.mark.slow),
        pytest.param(False, False, "loop", "pipe", marks=pytest.mark.slow),
        pytest.param(True, True, "unroll", "ends", marks=pytest.mark.slow),
        pytest.param(False, True, "loop", "ends", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mesh", _meshes(), ids=str)
@pytest.mark.parametrize("family", ["two", "v"])
def test_two_chunks(family, mesh, tied, even, layers, vocabulary):
    data, pipe, tensor = mesh
    model, rows = tiny_decoder(_num_layers(2 * pipe, even), tied), data * NUM_MICROBATCHES
    _assert_family(FAMILIES[family], model, mesh, rows, layers, vocabulary)


@pytest.mark.parametrize(
    ("remat", "layers"),
    [
        ("full", "loop"),
        ("dots", "unroll"),
        ("names:qkv,gate_up", "loop"),
        pytest.param("full", "unroll", marks=pytest.mark.slow),
        pytest.param("dots", "loop", marks=pytest.mark.slow),
        pytest.param("names:attended", "unroll", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_changes_no_number(family, remat, layers):
    _assert_family(FAMILIES[family], tiny_decoder(5), (2, 2, 2), 2 * NUM_MICROBATCHES, layers, remat=remat)


@pytest.mark.parametrize(("mesh", "rows"), SOME_R.items(), ids=str)
def test_a_file_with_some_R_of_its_own(mesh, rows, tmp_path):
    """The others get theirs, never in a tick that has one: of two only one would run, and nobody would say so."""
    (tmp_path / "some.csv").write_text("\n".join(rows))
    schedule = from_csv(tmp_path / "some.csv").with_vocabulary("ends")
    # With remat, and where a layer has a checkpoint of its own.
    plans = unify(s.lower(recompute=True) for s in (schedule.with_recompute(), schedule))
    model, num_rows, mesh = tiny_decoder(4), mesh[0] * schedule.num_microbatches, make_mesh(*mesh)
    fn = pipeline(model, mesh, plans[0], Layout.of(schedule, 4), remat="full")
    for plan in plans:
        assert_exact(model, fn, mesh, num_rows, plan=plan)


def test_unrolled_stages_take_rows_together_too():
    mesh, model = make_mesh(2, 2, 2), tiny_decoder(5)
    fn = pipeline(model, mesh, schedule_of("interleaved_1f1b", 2, 3, 2), layers="unroll")
    for apart in (False, True):
        assert_exact(model, fn, mesh, 6, apart=apart)


@pytest.mark.parametrize("stage_layers", [(3, 1, 1, 2), (1, 4, 1, 1)], ids=str)
def test_a_users_own_split_of_the_layers(stage_layers):
    mesh, model = make_mesh(1, 4, 2), tiny_decoder(7)
    schedule = schedule_of("1f1b", 4, 4)
    layout = Layout.of(schedule, 7, stage_layers)
    assert_exact(model, pipeline(model, mesh, schedule, layout), mesh, 4)


@pytest.mark.parametrize("num_microbatches", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_microbatches_than_ranks(family, num_microbatches):
    mesh, model, chunks = make_mesh(1, 4, 1), tiny_decoder(8), 1 if family == "one" else 2
    schedules = [schedule_of(name, 4, num_microbatches, chunks) for name in FAMILIES[family]]
    plans = unify(s.lower(recompute=True) for s in schedules)
    fn = pipeline(model, mesh, plans[0], Layout.of(schedules[0], 8))
    for plan in plans:
        assert_exact(model, fn, mesh, 2 * num_microbatches, plan=plan)


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
@pytest.mark.parametrize("mesh", [(1, 1, 1), (1, 1, 2), (2, 1, 2)], ids=str)
def test_without_a_pipeline(mesh, vocabulary):
    """Reductions over manual axes of one device once failed to compile where tensor had two."""
    _assert_family(("1f1b", "zb_h1"), tiny_decoder(3), mesh, mesh[0] * NUM_MICROBATCHES, "loop", vocabulary)


def test_a_searched_schedule():
    mesh, model = make_mesh(1, 4, 2), tiny_decoder(8)
    schedule = build("auto", 4, 5, 2, max_live=2.5).with_vocabulary("pipe")
    assert_exact(model, pipeline(model, mesh, schedule, vocabulary="pipe"), mesh, 5, "pipe")


def test_the_head_may_lag_behind():
    mesh, model = make_mesh(1, 4, 1), tiny_decoder(4)
    schedule = schedule_of("1f1b", 4, 5, 1, None).with_vocabulary("pipe", head_lag=1)
    assert_exact(model, pipeline(model, mesh, schedule, vocabulary="pipe"), mesh, 5, "pipe")


@pytest.mark.parametrize("layers", ["loop", "unroll"])
def test_messages_and_layouts_as_on_accelerators(layers, monkeypatch):
    monkeypatch.setattr(executor, "_is_accelerated", lambda mesh: True)
    mesh, model = make_mesh(1, 4, 2), tiny_decoder(10)
    fn = pipeline(model, mesh, schedule_of("interleaved_1f1b", 4, 5, 2), layers=layers)
    assert_exact(model, fn, mesh, 5)
