"""Held-out loss equals the reference's mean, on any mesh, for any number of rows."""

import jax
import numpy as np
import pytest
from reference import assert_loss_close, random_batch, random_params, reference_loss

from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.sharding import TENSOR_RULES, param_shardings
from jaxpar.train.evaluate import evaluate, make_loss_fn

CONFIG = DecoderConfig(4, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=40)
ROWS = np.array([[0, 1, 2], [3, -1, -1]])


@pytest.fixture(scope="module")
def reference():
    model = decoder(CONFIG)
    params, fn = random_params(model), jax.jit(lambda p, b: reference_loss(model, p, b))
    batches = [random_batch(40, rows, 16, seed=rows, masked=0.1 * rows) for rows in (8, 3)]
    sums = [(float(mean) * int(tokens), int(tokens)) for mean, tokens in (fn(params, b) for b in batches)]
    return params, batches, sum(s for s, _ in sums), sum(t for _, t in sums)


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 2, 1)])
def test_the_mean_is_over_tokens_whatever_the_mesh(reference, shape, vocabulary):
    params, batches, nats, tokens = reference
    model, mesh = decoder(CONFIG), make_mesh(*shape)
    packed = {**params, "layers": jax.tree.map(lambda leaf: leaf[ROWS.reshape(-1)], params["layers"])}
    shardings = param_shardings(mesh, TENSOR_RULES.specs(model.dims), vocabulary)
    loss_fn = make_loss_fn(model, mesh, ROWS)
    mean, counted = evaluate(loss_fn, jax.device_put(packed, shardings), batches)
    assert counted == tokens
    assert_loss_close(mean, nats / tokens)


def test_bfloat16_runs_and_is_near(reference):
    params, batches, nats, tokens = reference
    model = decoder(DecoderConfig(**{**CONFIG.__dict__, "dtype": "bfloat16"}))
    mesh = make_mesh(2, 2, 2)
    packed = {**params, "layers": jax.tree.map(lambda leaf: leaf[ROWS.reshape(-1)], params["layers"])}
    packed = jax.device_put(packed, param_shardings(mesh, TENSOR_RULES.specs(model.dims)))
    mean, _ = evaluate(make_loss_fn(model, mesh, ROWS), packed, batches)
    assert_loss_close(mean, nats / tokens, 0.01)


def test_no_layer_is_gathered_whole(reference):
    """A layer at a time: temporaries stay far below the layers of all ranks."""
    config = DecoderConfig(8, width=128, num_heads=8, num_kv_heads=8, mlp_width=512, vocab_size=64)
    model, mesh = decoder(config), make_mesh(2, 4, 1)
    rows = np.arange(8).reshape(4, 2)
    shardings = param_shardings(mesh, TENSOR_RULES.specs(model.dims))
    shapes = jax.eval_shape(lambda: random_params(model))
    params = jax.tree.map(lambda s, d: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=d), shapes, shardings)
    batch = jax.eval_shape(lambda: random_batch(64, 8, 8))
    compiled = make_loss_fn(model, mesh, rows).lower(params, batch).compile()
    layers = sum(np.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(shapes["layers"]))
    assert compiled.memory_analysis().temp_size_in_bytes < 3 * layers / 8


def test_nothing_counted_is_zero():
    assert evaluate(lambda params, batch: (0.0, 0), None, [None, None]) == (0.0, 0)
    assert evaluate(lambda params, batch: (0.0, 0), None, []) == (0.0, 0)
