"""Every schedule, mesh, vocabulary and way over the layers gives one device's loss and gradients.

Schedules of one shape share a program: their tables are its arguments. That keeps the matrix affordable, and it is
asserted: one compilation serves them all.
"""

import itertools

import pytest
from tiny import assert_exact, make_mesh, pipeline, schedule_of, tiny_decoder

from jaxpar.pipeline import Layout, executor
from jaxpar.schedule import unify

ONE_CHUNK = ("naive", "gpipe", "1f1b")
DEFAULT = ((1, 4, 2), (2, 2, 2), (2, 4, 1))
ALL = [m for m in itertools.product((1, 2), (1, 2, 4), (1, 2)) if m not in DEFAULT]
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
    schedules = [schedule_of(name, pipe, NUM_MICROBATCHES, 1, vocabulary) for name in ONE_CHUNK]
    plans = unify(s.lower(recompute=True) for s in schedules)
    mesh = make_mesh(data, pipe, tensor)
    layout = Layout.of(schedules[0], model.num_layers)
    fn = pipeline(model, mesh, plans[0], layout, layers=layers, vocabulary=vocabulary)
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
def test_two_chunks(mesh, tied, even, layers, vocabulary):
    data, pipe, tensor = mesh
    model, rows = tiny_decoder(_num_layers(2 * pipe, even), tied), data * NUM_MICROBATCHES
    schedule = schedule_of("interleaved_1f1b", pipe, NUM_MICROBATCHES, 2, vocabulary)
    mesh = make_mesh(data, pipe, tensor)
    assert_exact(model, pipeline(model, mesh, schedule, layers=layers, vocabulary=vocabulary), mesh, rows, vocabulary)


@pytest.mark.parametrize("remat", ["full", "dots"])
@pytest.mark.parametrize("layers", ["loop", "unroll"])
def test_recomputation_changes_no_number(remat, layers):
    mesh, model = make_mesh(2, 2, 2), tiny_decoder(3)
    fn = pipeline(model, mesh, schedule_of("1f1b", 2, 3), remat=remat, layers=layers)
    assert_exact(model, fn, mesh, 6)


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


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_fewer_microbatches_than_ranks(name, num_microbatches):
    mesh, model = make_mesh(1, 4, 1), tiny_decoder(4)
    assert_exact(model, pipeline(model, mesh, schedule_of(name, 4, num_microbatches)), mesh, 2 * num_microbatches)


def test_interleaving_fewer_microbatches_than_ranks():
    mesh, model = make_mesh(1, 4, 1), tiny_decoder(8)
    assert_exact(model, pipeline(model, mesh, schedule_of("interleaved_1f1b", 4, 3, 2)), mesh, 3)


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
