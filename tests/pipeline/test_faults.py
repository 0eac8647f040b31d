"""What breaks elsewhere: one test a kind of fault, each fails when its cure is taken out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from reference import assert_grads_close
from tiny import (
    VOCAB_SIZE,
    make_mesh,
    pipeline,
    place,
    reference,
    schedule_of,
    tiny_batch,
    tiny_decoder,
    tiny_params,
)

from jaxpar.pipeline import value_and_grad
from jaxpar.schedule import build

WIDTH = 4
MASKED = -1


def _square_loss(p, y, labels):
    """Sum of squares over rows that count."""
    counted = labels >= 0
    return jnp.sum(jnp.where(counted, jnp.sum((y * p["w"]) ** 2, -1), 0)), jnp.sum(counted, dtype=jnp.int32)


def _small(layer, num_layers=4, dtype=jnp.float32, seed=0, **options):
    """(fn, params, batch, reference) of a model without vocabulary on data 1 x pipe 4 x tensor 1."""
    rng = np.random.default_rng(seed)
    params = {
        "embed": {},
        "layers": {"w": jnp.asarray(rng.standard_normal((num_layers, WIDTH, WIDTH)) * 0.5, dtype)},
        "head": {"w": jnp.asarray(rng.standard_normal(WIDTH), dtype)},
    }
    batch = {"inputs": jnp.asarray(rng.standard_normal((8, WIDTH)), dtype), "labels": jnp.zeros(8, jnp.int32)}
    fn = value_and_grad(layer, _square_loss, build("1f1b", 4, 4), make_mesh(1, 4, 1), **options)

    def plain(params, batch, aux_weight=1.0):
        x, aux = batch["inputs"], 0.0
        for l in range(num_layers):
            x = layer({"w": params["layers"]["w"][l]}, x, {}, None)
            if isinstance(x, tuple):
                x, aux = x[0], aux + x[1]
        nats, tokens = _square_loss(params["head"], x, batch["labels"])
        return nats / tokens + aux

    return fn, params, batch, jax.value_and_grad(plain)


def test_garbage_in_bubbles_never_enters_the_arithmetic():
    """x/|x| has no value at zero, nor a gradient: one masked idle tick would make all gradients nan."""

    def layer(p, x, side, rng):
        return (x @ p["w"]) / jnp.linalg.norm(x @ p["w"], axis=-1, keepdims=True)

    fn, params, batch, plain = _small(layer)
    output, grads = fn(params, batch)
    loss, expected = plain(params, batch)
    np.testing.assert_allclose(output.loss, loss, rtol=1e-5)
    assert_grads_close(jax.device_get(grads), jax.device_get(expected))


@pytest.mark.parametrize("layers", ["loop", "unroll"])
def test_a_stage_runs_once_a_microbatch_and_never_in_a_bubble(layers):
    calls = []

    def layer(p, x, side, rng):
        jax.debug.callback(lambda s: calls.append(float(s)), jnp.sum(x))
        return x @ p["w"]

    fn, params, batch, _ = _small(layer, num_layers=7, layers=layers)
    jax.block_until_ready(fn(params, batch))
    jax.effects_barrier()
    assert len(calls) == 7 * 4


def test_auxiliary_losses_of_every_stage_count_once():
    def layer(p, x, side, rng):
        return jnp.tanh(x @ p["w"]), 0.3 * jnp.mean(x**2)

    fn, params, batch, plain = _small(layer)
    output, grads = fn(params, batch)
    total, expected = plain(params, batch)
    np.testing.assert_allclose(output.loss + output.aux, total, rtol=1e-5)
    assert_grads_close(jax.device_get(grads), jax.device_get(expected))


def test_bfloat16_parameters_accumulate_in_float32():
    """512 microbatches of gradient 1/512: summed in bfloat16 they would stop growing half way."""
    params = {"embed": {}, "layers": {"w": jnp.zeros((1, 1), jnp.bfloat16)}, "head": {"w": jnp.ones(1, jnp.bfloat16)}}
    batch = {"inputs": jnp.ones((512, 1), jnp.bfloat16), "labels": jnp.zeros(512, jnp.int32)}

    def loss(p, y, labels):
        return jnp.sum(y.astype(jnp.float32) * p["w"].astype(jnp.float32)), jnp.sum(labels >= 0, dtype=jnp.int32)

    fn = value_and_grad(lambda p, x, side, rng: x + p["w"], loss, build("1f1b", 1, 512), make_mesh(1, 1, 1))
    _, grads = fn(params, batch)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))
    np.testing.assert_allclose(grads["layers"]["w"], 1.0, rtol=1e-3)


@pytest.fixture(scope="module")
def tiny():
    """(model, fn, placed parameters, batch) on data 2 x pipe 2 x tensor 2, three microbatches of two rows."""
    model, mesh = tiny_decoder(2), make_mesh(2, 2, 2)
    fn = pipeline(model, mesh, schedule_of("1f1b", 2, 3))
    return model, fn, place(tiny_params(model), mesh, fn.layout, model), tiny_batch(12)


def test_every_microbatch_is_in_the_gradient(tiny):
    """Unmasked one at a time, each gives what its rows alone give; together they give the whole."""
    model, fn, params, batch = tiny
    counted = (batch["labels"] >= 0).sum()
    total = None
    for data, microbatch in np.ndindex(2, 3):
        rows = slice(data * 6 + microbatch * 2, data * 6 + microbatch * 2 + 2)
        labels = np.full_like(batch["labels"], MASKED)
        labels[rows] = batch["labels"][rows]
        output, grads = fn(params, {**batch, "labels": labels})
        share = np.float32(int(output.num_tokens) / counted)
        assert any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(grads)))
        part = jax.tree.map(lambda g, share=share: np.asarray(g) * share, grads)
        total = part if total is None else jax.tree.map(np.add, total, part)
    (_, tokens), expected = reference(model, 12)
    assert tokens == counted
    assert_grads_close(total, expected)


def test_a_masked_microbatch_changes_nothing(tiny):
    model, fn, params, batch = tiny
    labels = batch["labels"].copy()
    labels[2:4] = MASKED
    inputs = batch["inputs"].copy()
    before = fn(params, {**batch, "labels": labels})
    inputs[2:4] = (inputs[2:4] + 1) % VOCAB_SIZE
    after = fn(params, {**batch, "labels": labels, "inputs": inputs})
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_masked_batch_has_loss_and_gradients_zero(tiny):
    _, fn, params, batch = tiny
    output, grads = fn(params, {**batch, "labels": np.full_like(batch["labels"], MASKED)})
    assert float(output.loss) == 0 and int(output.num_tokens) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(grads)))


def test_side_inputs_are_the_microbatchs_own(tiny):
    """Rows permuted together with their side inputs give the same sums; alone they do not."""
    _, fn, params, batch = tiny
    order = np.random.default_rng(0).permutation(12)
    together = jax.tree.map(lambda a: a[order], batch)
    alone = {**together, "side": batch["side"]}
    loss = float(fn(params, batch)[0].loss)
    np.testing.assert_allclose(float(fn(params, together)[0].loss), loss, rtol=1e-5)
    assert abs(float(fn(params, alone)[0].loss) - loss) > 1e-4 * loss


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
def test_padding_rows_of_the_vocabulary_have_no_gradient(vocabulary):
    model, mesh = tiny_decoder(4, tied=False), make_mesh(1, 4, 2)
    fn = pipeline(model, mesh, schedule_of("1f1b", 4, 4, 1, vocabulary), vocabulary=vocabulary)
    _, grads = fn(place(tiny_params(model), mesh, fn.layout, model, vocabulary), tiny_batch(4))
    for part in ("embed", "head"):
        table = np.asarray(grads[part]["table"])
        assert table.shape[0] == 16 and not table[VOCAB_SIZE:].any() and table[:VOCAB_SIZE].any(axis=1).all()


def _dropout_layer(p, x, side, rng):
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, x.shape[1:]))(rng)
    return x + jnp.where(keep, x @ p["w"], 0)


def test_dropout_is_the_rows_own_on_any_mesh_and_schedule():
    """Equal under data, pipe, number of microbatches, chunks and recompute; unlike between rows and layers."""
    rng = np.random.default_rng(3)
    params = {
        "embed": {},
        "layers": {"w": jnp.asarray(rng.standard_normal((4, WIDTH, WIDTH)), jnp.float32)},
        "head": {"w": jnp.ones(WIDTH)},
    }
    row = rng.standard_normal((1, WIDTH)).astype(np.float32)
    batch = {"inputs": np.repeat(row, 8, axis=0), "labels": np.zeros(8, np.int32)}
    results = []
    for data, pipe, name, num_microbatches, chunks, remat in (
        (1, 1, "gpipe", 1, 1, "none"),
        (2, 4, "1f1b", 4, 1, "none"),
        (1, 2, "interleaved_1f1b", 2, 2, "full"),
    ):
        schedule = build(name, pipe, num_microbatches, chunks)
        fn = value_and_grad(_dropout_layer, _square_loss, schedule, make_mesh(data, pipe, 1), remat=remat)
        output, grads = fn(params, batch, jax.random.key(7))
        results.append((float(output.loss), jax.device_get(grads)))
    for loss, grads in results[1:]:
        np.testing.assert_allclose(loss, results[0][0], rtol=1e-5)
        assert_grads_close(grads, results[0][1])
    no_key = value_and_grad(lambda p, x, side, rng: x + x @ p["w"], _square_loss, build("gpipe", 1, 1),
                            make_mesh(1, 1, 1))(params, batch)  # fmt: skip
    assert abs(float(no_key[0].loss) - results[0][0]) > 1e-3 * results[0][0]


def test_tensor_ranks_drop_the_same_units():
    """The key does not know the tensor axis: a split over it changes no mask."""
    rng = np.random.default_rng(4)
    params = {"embed": {}, "layers": {"w": jnp.asarray(rng.standard_normal((2, WIDTH, WIDTH)), jnp.float32)},
              "head": {"w": jnp.ones(WIDTH)}}  # fmt: skip
    batch = {"inputs": rng.standard_normal((4, WIDTH)).astype(np.float32), "labels": np.zeros(4, np.int32)}
    specs = {"embed": {}, "layers": {"w": P(None, "tensor")}, "head": {"w": P()}}
    losses = [
        float(
            value_and_grad(_dropout_layer, _square_loss, build("1f1b", 2, 2), make_mesh(1, 2, t), param_specs=specs)(
                params, batch, jax.random.key(1)
            )[0].loss
        )
        for t in (1, 2)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("mesh", [(1, 4, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
def test_bfloat16_runs_on_every_mesh(mesh, vocabulary):
    model, made = tiny_decoder(4, dtype="bfloat16"), make_mesh(*mesh)
    fn = pipeline(model, made, schedule_of("1f1b", mesh[1], 2, 1, vocabulary), vocabulary=vocabulary)
    output, grads = fn(place(tiny_params(model), made, fn.layout, model, vocabulary), tiny_batch(4 * mesh[0]))
    (loss, _), _ = reference(tiny_decoder(4), 4 * mesh[0])
    np.testing.assert_allclose(float(output.loss), float(loss), rtol=0.01)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    "mesh",
    [(2, 2, 2), *(pytest.param(m, marks=pytest.mark.slow) for m in ((1, 4, 2), (2, 4, 1), (1, 2, 1), (1, 1, 2)))],
    ids=str,
)
def test_bfloat16_follows_float32_for_20_steps(mesh):
    made, curves = make_mesh(*mesh), {}
    optimizer = optax.adam(3e-3)
    for dtype in ("float32", "bfloat16"):
        model = tiny_decoder(4, dtype=dtype)
        fn = pipeline(model, made, schedule_of("1f1b", mesh[1], 2))
        params = place(tiny_params(model), made, fn.layout, model)
        state, curves[dtype] = optimizer.init(params), []
        update = jax.jit(lambda grads, state, params: _apply(optimizer, grads, state, params))
        for _ in range(20):
            output, grads = fn(params, tiny_batch(8))
            params, state = update(grads, state, params)
            curves[dtype].append(float(output.loss))
    assert curves["float32"][-1] < 0.9 * curves["float32"][0]
    np.testing.assert_allclose(curves["bfloat16"], curves["float32"], rtol=0.01)


def _apply(optimizer, grads, state, params):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def test_without_layout_or_packing_layers_go_by_global_index():
    model, mesh = tiny_decoder(5), make_mesh(1, 4, 1)
    fn = value_and_grad(model.layer, model.loss, build("1f1b", 4, 4), mesh, embed=model.embed, tied=model.tied)
    output, grads = fn(tiny_params(model), tiny_batch(4))
    (loss, _), expected = reference(model, 4)
    np.testing.assert_allclose(output.loss, loss, rtol=1e-5)
    assert_grads_close(jax.device_get(grads), expected)


def test_loss_alone_keeps_nothing_and_agrees():
    model, mesh = tiny_decoder(4), make_mesh(1, 4, 2)
    for vocabulary in ("ends", "pipe"):
        schedule = schedule_of("1f1b", 4, 4, 1, vocabulary)
        fn = pipeline(model, mesh, schedule, vocabulary=vocabulary, train=False)
        output, grads = fn(place(tiny_params(model), mesh, fn.layout, model, vocabulary), tiny_batch(4))
        assert grads is None
        np.testing.assert_allclose(output.loss, reference(model, 4)[0][0], rtol=1e-5)


def test_fractional_weights_count_as_they_are():
    """A count cut to a whole number once scaled loss and gradients by up to a half, and said nothing."""

    def loss(p, y, labels):
        return jnp.sum(labels * jnp.sum((y * p["w"]) ** 2, -1)), jnp.sum(labels)

    params = {"layers": {"w": jnp.ones((2, WIDTH, WIDTH))}, "head": {"w": jnp.ones(WIDTH)}}
    batch = {"inputs": jnp.ones((4, WIDTH)), "labels": jnp.asarray([0.1, 0.2, 0.05, 0.3])}
    fn = value_and_grad(lambda p, x, side, rng: x @ p["w"] / 4, loss, build("1f1b", 2, 2), make_mesh(1, 2, 1))
    output, grads = fn(params, batch)
    np.testing.assert_allclose(output.num_tokens, 0.65, rtol=1e-6)
    np.testing.assert_allclose(output.loss, WIDTH, rtol=1e-6)
    assert set(grads) == {"layers", "head"}
