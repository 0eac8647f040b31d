"""The decoder: what it computes, what it starts from, and the collectives its split costs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from reference import random_batch, random_params, reference_value_and_grad

from jaxpar.accounting.collectives import collectives, select
from jaxpar.errors import SettingError
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder, rotate
from jaxpar.models.model import init_params
from jaxpar.sharding import TENSOR_RULES

CONFIG = DecoderConfig(num_layers=3, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=37)


def _layer(config=CONFIG, index=0, seed=0):
    model = decoder(config)
    return jax.jit(model.layer), jax.tree.map(lambda leaf: leaf[index], random_params(model, seed)["layers"])


def _x(rows=2, steps=12, width=32, seed=1):
    return jax.random.normal(jax.random.key(seed), (rows, steps, width))


def test_attention_and_mlp_equal_numpy():
    """One layer against a plain NumPy transcription with separate q, k, v, gate and up."""
    layer, p = _layer()
    x = np.asarray(_x(1), np.float64)[0]
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def turn(x):  # [T, H]
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
        first, second = x[:, :half], x[:, half:]
        return np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                               second * np.cos(angle) + first * np.sin(angle)], -1)  # fmt: skip

    normed, out = norm(x, p["attention_norm"]["scale"]), np.zeros_like(x)
    qkv = p["attention"]["qkv"]["kernel"].reshape(x.shape[-1], 2, 4, 8)  # kv heads; two queries, key, value; head size
    back = p["attention"]["out"]["kernel"].reshape(2, 2, 8, x.shape[-1])
    for kv in range(2):
        key, value = turn(normed @ qkv[:, kv, 2]), normed @ qkv[:, kv, 3]
        for group in range(2):
            scores = turn(normed @ qkv[:, kv, group]) @ key.T / np.sqrt(8)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out += weights / weights.sum(-1, keepdims=True) @ value @ back[kv, group]
    x = x + out
    normed = norm(x, p["mlp_norm"]["scale"])
    hidden = (normed @ p["mlp"]["gate_up"]["kernel"]).reshape(
        len(x), math.gcd(p["mlp"]["out"]["kernel"].shape[0], 192), 2, -1
    )
    gate, up = hidden[:, :, 0].reshape(len(x), -1), hidden[:, :, 1].reshape(len(x), -1)
    x = x + (gate / (1 + np.exp(-gate)) * up) @ p["mlp"]["out"]["kernel"]
    np.testing.assert_allclose(layer(jax.tree.map(jnp.float32, p), _x(1), {}, None)[0], x, rtol=2e-5, atol=2e-5)


def test_no_token_sees_a_later_one():
    layer, p = _layer()
    x = _x()
    changed = x.at[:, 7:].add(1.0)
    before, after = layer(p, x, {}, None), layer(p, changed, {}, None)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert not np.allclose(before[:, 7:], after[:, 7:])


def test_packed_rows_equal_their_segments_alone():
    layer, p = _layer()
    x = _x(1, 12)
    side = {
        "segment_ids": jnp.array([[1] * 5 + [2] * 7]),
        "positions": jnp.array([[*range(5), *range(7)]]),
    }
    packed = layer(p, x, side, None)
    np.testing.assert_allclose(packed[:, :5], layer(p, x[:, :5], {}, None), atol=1e-5)
    np.testing.assert_allclose(packed[:, 5:], layer(p, x[:, 5:], {}, None), atol=1e-5)


def test_rotation_depends_on_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 16))
    near = rotate(q, jnp.array(3), 1e4) @ rotate(k, jnp.array(1), 1e4)
    far = rotate(q, jnp.array(103), 1e4) @ rotate(k, jnp.array(101), 1e4)
    np.testing.assert_allclose(near, far, rtol=1e-4)


def test_initial_loss_is_near_uniform_and_gradients_are_finite():
    model = decoder(CONFIG)
    params = jax.jit(lambda: init_params(model, jax.random.key(0)))()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    (loss, tokens), grads = reference_value_and_grad(model, params, random_batch(37, 4, 16))
    assert abs(loss - np.log(37)) < 0.8 and 0 < tokens < 64
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_padding_changes_nothing(tied):
    config = dataclasses.replace(CONFIG, num_layers=1, tie_embeddings=tied)
    plain, padded = decoder(config), decoder(config, vocab_multiple=8)
    small, parts = random_params(plain), ("embed",) if tied else ("embed", "head")
    large = {**small, **{p: {**small[p], "table": np.pad(small[p]["table"], ((0, 3), (0, 0)))} for p in parts}}
    batch = random_batch(37, 4, 16)
    (loss, _), grads = reference_value_and_grad(plain, small, batch)
    (padded_loss, _), padded_grads = reference_value_and_grad(padded, large, batch)
    np.testing.assert_allclose(padded_loss, loss, rtol=1e-6)
    for part in parts:
        assert not np.any(padded_grads[part]["table"][37:])
        np.testing.assert_allclose(padded_grads[part]["table"][:37], grads[part]["table"], rtol=1e-4, atol=1e-7)


def test_vocabulary_padding_leaves_initial_values_alone():
    small, large = (jax.jit(decoder(CONFIG, n).init_embed)(jax.random.key(3))["table"] for n in (1, 8))
    assert small.shape == (37, 32) and large.shape == (40, 32)
    np.testing.assert_array_equal(large[:37], small)
    assert not np.any(large[37:])


def test_bfloat16_computes_narrow_and_sums_wide():
    narrow = decoder(dataclasses.replace(CONFIG, dtype="bfloat16"))
    params, batch = random_params(narrow), random_batch(37, 4, 16)
    x = jax.eval_shape(narrow.embed, params["embed"], batch["inputs"])
    p = jax.tree.map(lambda leaf: leaf[0], params["layers"])
    assert x.dtype == jax.eval_shape(lambda p, x: narrow.layer(p, x, {}, None), p, x).dtype == jnp.bfloat16
    (loss, _), grads = reference_value_and_grad(narrow, params, batch)
    (wide_loss, _), _ = reference_value_and_grad(decoder(CONFIG), params, batch)
    assert loss.dtype == np.float32 and {leaf.dtype for leaf in jax.tree.leaves(grads)} == {np.dtype("float32")}
    np.testing.assert_allclose(loss, wide_loss, rtol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 2, 2), (1, 2, 4)])
def test_two_all_reduces_a_layer_forward_and_two_backward(shape, dtype):
    """Megatron's minimum (arXiv:1909.08053, section 3), and nothing else moves."""
    config = dataclasses.replace(CONFIG, num_heads=8, num_kv_heads=4, dtype=dtype)
    model, mesh = decoder(config), make_mesh(*shape, devices=jax.devices()[: np.prod(shape)])
    specs = jax.tree.map(lambda spec: NamedSharding(mesh, spec), TENSOR_RULES.specs(model.dims)["layers"])
    whole = NamedSharding(mesh, P())
    p = jax.eval_shape(lambda: model.init_layer(jax.random.key(0), 0))
    x = jax.ShapeDtypeStruct((2, 16, 32), dtype)

    def forward(p, x):
        return model.layer(p, x, {}, None)

    def both(p, x):
        y, vjp = jax.vjp(forward, p, x)
        return vjp(jnp.sin(y))  # a cotangent that needs y, so that all of the forward pass is there

    ahead = jax.jit(forward, in_shardings=(specs, whole), out_shardings=whole).lower(p, x)
    back = jax.jit(both, in_shardings=(specs, whole), out_shardings=(specs, whole)).lower(p, x)
    for lowered, count in ((ahead, 2), (back, 4)):
        found = collectives(lowered.compile().as_text(), mesh)
        assert len(found) == len(select(found, "all-reduce", "tensor")) == count
        assert all(one.axes == ("tensor",) for one in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 5}, r"model.width=32 is not a multiple of model.num_heads=5.*Use 30 or 35"),
        ({"num_kv_heads": 3}, r"model.num_heads=4 is not a multiple of model.num_kv_heads=3.*Use 3 or 6"),
        ({"num_heads": 32, "num_kv_heads": 2}, "heads of odd size 1"),
        ({"dtype": "float16"}, "model.dtype=float16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_kv_heads_that_do_not_split_are_refused_with_the_sizes_that_do():
    with pytest.raises(SettingError, match=r"model.num_kv_heads=2 does not divide by mesh.tensor=4.*1, 2"):
        TENSOR_RULES.check_sizes(CONFIG.sizes(), make_mesh(1, 2, 4).shape)
