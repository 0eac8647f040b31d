"""Dropout masks are the row's and the layer's own: schedule, mesh, microbatches and recomputation change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import assert_grads_close, assert_loss_close
from tiny import SEQ_LEN, VOCAB_ROWS, VOCAB_SIZE, make_mesh, pipeline, place, schedule_of, tiny_batch, tiny_params

from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.functions import drop
from jaxpar.pipeline import Layout

NUM_LAYERS, NUM_ROWS, SHARE = 4, 16, 0.3
MODEL = decoder(DecoderConfig(NUM_LAYERS, 16, 2, 2, 32, VOCAB_SIZE, dropout=SHARE), VOCAB_ROWS)


def _row_keys(key, layer, num_rows):
    """As documented: the step's key, then the global layer, then the global row."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, layer), jnp.arange(num_rows))


@functools.cache
def _reference():
    """((loss, tokens), grads) on one device, the whole batch at once."""

    def loss(params, batch):
        x = MODEL.embed(params["embed"], batch["inputs"])
        for layer in range(NUM_LAYERS):
            p = jax.tree.map(lambda leaf: leaf[layer], params["layers"])  # noqa: B023
            x = MODEL.layer(p, x, batch["side"], _row_keys(jax.random.key(7), layer, NUM_ROWS))
        nats, tokens = MODEL.loss(MODEL.head(params), x, batch["labels"])
        return nats / tokens, tokens

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(tiny_params(MODEL), tiny_batch(NUM_ROWS)))


@pytest.mark.parametrize(
    ("name", "num_chunks", "mesh", "num_microbatches", "options"),
    [
        ("1f1b", 1, (2, 2, 2), 2, {}),
        pytest.param("1f1b", 1, (1, 1, 8), 4, {"remat": "dots"}, marks=pytest.mark.slow),
        ("zb_h1", 1, (1, 4, 2), 8, {"remat": "full"}),
        ("interleaved_1f1b", 2, (4, 2, 1), 4, {"layers": "unroll"}),
        ("zb_v", 2, (2, 2, 2), 4, {"vocabulary": "pipe"}),
        pytest.param("gpipe", 1, (8, 1, 1), 1, {}, marks=pytest.mark.slow),
    ],
)
def test_masks_are_the_same_everywhere(name, num_chunks, mesh, num_microbatches, options):
    (loss, tokens), expected = _reference()
    mesh, vocabulary = make_mesh(*mesh), options.get("vocabulary", "ends")
    schedule = schedule_of(name, mesh.shape["pipe"], num_microbatches, num_chunks, vocabulary)
    layout = Layout.of(schedule, NUM_LAYERS)
    fn = pipeline(MODEL, mesh, schedule, layout, **options)
    placed = place(tiny_params(MODEL), mesh, layout, MODEL, vocabulary, apart=options.get("layers") == "unroll")
    output, grads = fn(placed, tiny_batch(NUM_ROWS), jax.random.key(7))
    assert int(output.num_tokens) == int(tokens)
    assert_loss_close(output.loss, loss)
    host = jax.device_get(grads)
    assert_grads_close({**host, "layers": jax.device_get(layout.unpack(host["layers"]))}, expected)


def test_masks_differ_by_row_layer_site_and_step_and_drop_their_share():
    x = jnp.ones((8, SEQ_LEN, 64))
    masks = []
    for step in range(2):
        for layer in range(2):
            for site in range(2):
                out = drop(x, SHARE, _row_keys(jax.random.fold_in(jax.random.key(7), step), layer, 8), site)
                np.testing.assert_allclose(out[out != 0], 1 / (1 - SHARE), rtol=1e-6)
                masks += list(np.asarray(out == 0))
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    assert abs(np.mean(masks) - SHARE) < 0.01


def test_without_a_key_or_a_share_nothing_is_dropped():
    x = jnp.ones((2, 3), jnp.bfloat16)
    keys = _row_keys(jax.random.key(0), 0, 2)
    assert drop(x, SHARE, None, 0) is x and drop(x, 0.0, keys, 0) is x
    assert drop(x, SHARE, keys, 0).dtype == jnp.bfloat16
