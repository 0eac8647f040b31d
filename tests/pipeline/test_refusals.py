"""Arguments, parameters and batches that do not fit are refused before anything runs, and the message says why."""

import jax
import jax.numpy as jnp
import pytest
from tiny import VOCAB_SIZE, make_mesh, pipeline, place, schedule_of, tiny_batch, tiny_decoder, tiny_params

from jaxpar.errors import SettingError
from jaxpar.pipeline import Layout, value_and_grad
from jaxpar.schedule import build


@pytest.fixture(scope="module")
def tiny():
    """(model, fn, placed parameters, batch) on data 2 x pipe 2 x tensor 2, three microbatches of two rows."""
    model, mesh = tiny_decoder(2), make_mesh(2, 2, 2)
    fn = pipeline(model, mesh, schedule_of("1f1b", 2, 3))
    return model, fn, place(tiny_params(model), mesh, fn.layout, model), tiny_batch(12)


REFUSED = {
    "ranks": (dict(schedule=("1f1b", 2, 4)), r"schedule.num_ranks=2 is not mesh.pipe=4"),
    "remat": (dict(remat="some"), r"pipeline.remat='some' is unknown"),
    "layers": (dict(layers="both"), r"pipeline.layers='both' is unknown"),
    "vocabulary": (dict(vocabulary="split"), r"pipeline.vocabulary='split' is unknown"),
    "loss": (
        dict(vocabulary="pipe", loss=lambda p, y, labels: (y.sum(), 1)),
        r"needs embed as a VocabularyEmbedding",
    ),
    "layout": (dict(layout=("1f1b", 2, 4)), r"is not the schedule's 4 x 1"),
    "placed": (dict(schedule=("1f1b", 4, 4, "pipe")), r"pipeline.vocabulary='ends' is not the schedule's 'pipe'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_do_not_fit_are_refused(case):
    changes, message = REFUSED[case]
    model, mesh = tiny_decoder(4), make_mesh(1, 4, 1)
    name, ranks, num, *vocabulary = changes.pop("schedule", ("1f1b", 4, 4))
    schedule = build(name, ranks, num)
    schedule = schedule.with_vocabulary(*vocabulary) if vocabulary else schedule
    if "layout" in changes:
        changes["layout"] = Layout.of(build(*changes["layout"]), 4)
    loss = changes.pop("loss", model.loss)
    with pytest.raises(SettingError, match=message):
        value_and_grad(model.layer, loss, schedule, mesh, embed=model.embed, tied=model.tied, **changes)


def test_parameters_that_do_not_fit_are_refused(tiny):
    """A missing layer must not be made up from another one's rows."""
    model, fn, params, batch = tiny
    short = jax.tree.map(lambda a: a[:1], params["layers"])
    with pytest.raises(SettingError, match=r"has shape .* but the layout has 2 packed rows"):
        fn({**params, "layers": short}, batch)
    with pytest.raises(
        SettingError, match=r"params\['layers'\] is a list, which is how packed rows of unrolled stages come"
    ):
        fn({**params, "layers": fn.layout.apart(params["layers"])}, batch)
    with pytest.raises(SettingError, match="tied='table' is no entry of params"):
        fn({**params, "embed": {"rows": params["embed"]["table"]}}, batch)
    with pytest.raises(SettingError, match="packed=True without layout"):
        value_and_grad(model.layer, model.loss, build("1f1b", 2, 3), make_mesh(2, 2, 2), packed=True)


def test_a_batch_that_does_not_divide_is_refused(tiny):
    _, fn, params, _ = tiny
    with pytest.raises(SettingError, match=r"train.global_batch=10 is not a multiple of mesh.data=2 x .*Use 6 or 12"):
        fn(params, tiny_batch(10))
    batch = tiny_batch(12)
    with pytest.raises(SettingError, match="leading dimensions"):
        fn(params, {**batch, "labels": batch["labels"][:6]})


def test_what_is_missing_or_unknown_is_named(tiny):
    model, fn, params, batch = tiny
    with pytest.raises(SettingError, match=r"params has .*'pos'.* Put 'pos' into one of them"):
        fn({**params, "pos": jnp.ones(3)}, batch)
    with pytest.raises(SettingError, match="Add 'labels'"):
        fn(params, {"inputs": batch["inputs"]})
    with pytest.raises(SettingError, match="Move 'mask' into side"):
        fn(params, {**batch, "mask": batch["inputs"]})
    free = value_and_grad(model.layer, model.loss, build("1f1b", 2, 3), make_mesh(2, 2, 2), embed=model.embed)
    with pytest.raises(SettingError, match=r"has no array.*Give layout=Layout.of"):
        free({**params, "layers": {}}, batch)


def test_tables_that_do_not_divide_are_refused():
    model, mesh = tiny_decoder(4), make_mesh(1, 4, 1)
    fn = pipeline(model, mesh, schedule_of("1f1b", 4, 4, 1, "pipe"), vocabulary="pipe")
    params = tiny_params(model)
    short = {**params, "embed": {"table": params["embed"]["table"][:VOCAB_SIZE]}}
    with pytest.raises(SettingError, match=r"has 13 rows, no multiple of mesh.pipe=4: .*Pad it to 16 rows"):
        fn(short, tiny_batch(4))


def test_tokens_must_be_known_before_the_first_forward():
    def loss(p, y, labels):
        return jnp.sum(y), jnp.sum(y > 0, dtype=jnp.int32)

    fn = value_and_grad(lambda p, x, side, rng: x @ p["w"], loss, build("1f1b", 1, 1), make_mesh(1, 1, 1))
    params = {"embed": {}, "layers": {"w": jnp.ones((1, 2, 2))}, "head": {}}
    with pytest.raises(TypeError, match="number of counted tokens depends on the parameters or on y"):
        fn(params, {"inputs": jnp.ones((1, 2)), "labels": jnp.ones(1, jnp.int32)})


def test_a_name_that_marks_nothing_is_refused(tiny):
    model, fn, params, batch = tiny
    fn = pipeline(model, make_mesh(2, 2, 2), schedule_of("1f1b", 2, 3), remat="names:qkv,gate")
    with pytest.raises(SettingError, match=r"asks for gate, which .* Use one of attended, gate_up, qkv"):
        fn(params, batch)
