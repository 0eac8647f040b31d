"""The four parts of a layer together are its forward and its backward pass, and each does only its share."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_batch, tiny_decoder, tiny_params

from jaxpar.pipeline.graph import trace
from jaxpar.pipeline.remat import checkpointed
from jaxpar.pipeline.split import split_layer

ROWS, SEQ_LEN, WIDTH = 2, 8, 16
SIDE = {name: value[:ROWS] for name, value in tiny_batch(4)["side"].items()}


def _decoder_layer():
    model = tiny_decoder(2)
    p = jax.tree.map(lambda a: jnp.asarray(a[0]), tiny_params(model)["layers"])
    return model.layer, p


def _dropout(p, x, side, rng):
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (SEQ_LEN, 24)))(rng)
    return x + jnp.where(keep, jnp.tanh(x @ p["a"]) / 0.8, 0) @ p["b"]


@jax.custom_vjp
def _double(x):
    return 2 * x


_double.defvjp(lambda x: (2 * x, x), lambda x, ct: (ct * 2 + 0 * x,))


def _custom(p, x, side, rng):
    return x + _double(x @ p["a"]) @ p["b"], jnp.mean(x**2)


def _nested(p, x, side, rng):
    inner = jax.jit(lambda a, x: jax.checkpoint(lambda a, x: jnp.sin(x @ a))(a, x))
    return x + inner(p["a"], x) @ p["b"]


def _scan(p, x, side, rng):
    """A loop over time cannot be cut: it goes to I whole."""
    _, ys = jax.lax.scan(lambda h, row: (jnp.tanh(row @ p["a"] + h),) * 2, jnp.zeros((ROWS, 24)), x.swapaxes(0, 1))
    return x + ys.swapaxes(0, 1) @ p["b"]


MATRICES = {"a": np.random.default_rng(0).standard_normal((WIDTH, 24)) * 0.3}
MATRICES = {**MATRICES, "b": MATRICES["a"].T.copy(), "unused": np.ones(3), "steps": np.arange(3, dtype=np.int32)}
MATRICES = {name: a.astype(np.float32) if a.dtype == float else a for name, a in MATRICES.items()}
LAYERS = {"dropout": _dropout, "custom_vjp": _custom, "nested": _nested, "scan": _scan}


def _case(name):
    return _decoder_layer() if name == "decoder" else (LAYERS[name], MATRICES)


def _run(split, p, x, side, rng, ct, ct_aux):
    y, aux, pools = split.forward(p, x, side, rng)
    pools |= split.recompute(p, side, rng, pools)
    dx, stash, early = split.input_grad(p, side, rng, ct, ct_aux, {n: pools[n] for n in ("FI", "FW", "RI", "RW")})
    pools |= stash
    late = split.weight_grad(p, side, rng, ct_aux, {n: pools[n] for n in ("FW", "RW", "IW")})
    return y, aux, dx, {**early, **late}


@pytest.mark.filterwarnings("ignore:W has")
@pytest.mark.parametrize("remat", ["none", "dots", "full", "names:qkv,gate_up"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["decoder", *LAYERS])
def test_parts_equal_vjp(name, dtype, remat):
    layer, p = _case(name)
    if dtype == "bfloat16":
        p = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.dtype == np.float32 else a, p)
        if name == "decoder":
            layer = tiny_decoder(2, dtype="bfloat16").layer
        if name == "scan":
            pytest.skip("its carry is float32")
    x, ct = jax.random.normal(jax.random.key(1), (2, ROWS, SEQ_LEN, WIDTH)).astype(dtype)
    rng, ct_aux = jax.random.split(jax.random.key(2), ROWS), jnp.float32(0.7)
    split = split_layer(checkpointed(layer, remat), p, x, SIDE, rng)
    y, aux, dx, dp = jax.jit(lambda *a: _run(split, *a))(p, x, SIDE, rng, ct, ct_aux)

    floats = [i for i, a in enumerate(jax.tree.leaves(p)) if jnp.issubdtype(a.dtype, jnp.floating)]
    assert sorted(dp) == floats

    def plain(p_float, x):
        leaves, treedef = jax.tree.flatten(p)
        for i, leaf in zip(floats, p_float, strict=True):
            leaves[i] = leaf
        out = layer(jax.tree.unflatten(treedef, leaves), x, SIDE, rng)
        return (out[0], out[1].astype(jnp.float32)) if isinstance(out, tuple) else (out, jnp.float32(0))

    (y_ref, aux_ref), vjp = jax.vjp(plain, [jax.tree.leaves(p)[i] for i in floats], x)
    dp_ref, dx_ref = vjp((ct, ct_aux))
    tolerance = 2e-6 if dtype == "float32" else 3e-2
    for got, want in [(y, y_ref), (aux, aux_ref), (dx, dx_ref), *zip([dp[i] for i in floats], dp_ref, strict=True)]:
        got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
        assert np.linalg.norm(got - want) <= tolerance * max(np.linalg.norm(want), 1e-6)


def _wide_layer():
    """Large enough for matrix products to be all that counts."""
    from jaxpar.models.decoder import DecoderConfig, decoder

    model = decoder(DecoderConfig(2, 128, 4, 4, 512, 64))
    p = jax.eval_shape(lambda: model.init_layer(jax.random.key(0), 0))
    return model.layer, p, jax.ShapeDtypeStruct((2, 64, 128), jnp.float32)


def test_input_and_weight_gradient_each_do_their_share():
    layer, p, x = _wide_layer()
    split = split_layer(layer, p, x, {}, None)
    total = split.flops["F"] + split.flops["I"] + split.flops["W"]
    for kind in "IW":
        assert 0.25 <= split.flops[kind] / total <= 0.45, split.flops
    assert split.flops["R"] == 0


def test_nothing_is_computed_twice():
    """F + I + W is what one vjp computes; two vjps would run the inner backward twice."""
    from jaxpar.pipeline.flops import count_flops

    layer, p, x = _wide_layer()
    split = split_layer(layer, p, x, {}, None)
    whole = trace(lambda p, x, ct: jax.vjp(lambda p, x: layer(p, x, {}, None), p, x)[1](ct), p, x, x)
    parts = split.flops["F"] + split.flops["I"] + split.flops["W"]
    assert parts <= 1.02 * count_flops(whole)


def test_names_keep_what_they_mark():
    layer, p, x = _wide_layer()
    full, some, none = (split_layer(checkpointed(layer, r), p, x, {}, None) for r in ("full", "names:gate_up", "none"))
    assert none.flops["R"] < some.flops["R"] < full.flops["R"]
    kept = [a.shape for pool in ("FR", "FI", "FW") for a in some.pools[pool]]
    assert sorted(kept) == sorted([x.shape, (*x.shape[:2], 1024)])


def test_recompute_runs_the_forward_again_and_keeps_the_input_alone():
    layer, p, x = _wide_layer()
    none, full = (split_layer(checkpointed(layer, remat), p, x, {}, None) for remat in ("none", "full"))
    kept = sum(len(full.pools[pool]) for pool in ("FR", "FI", "FW"))
    assert kept == 1 and full.pools["FW"][0].shape == x.shape
    assert 0.6 * none.flops["F"] <= full.flops["R"] <= none.flops["F"]
    assert full.flops["I"] <= 1.02 * none.flops["I"]


def test_masks_and_parameters_are_never_kept():
    layer, p, x = _wide_layer()
    side = {"segment_ids": jax.ShapeDtypeStruct((2, 64), jnp.int32)}
    split = split_layer(layer, p, x, side, None)
    shapes = [a.shape for pool in split.pools.values() for a in pool]
    params = {a.shape for a in jax.tree.leaves(p) if len(a.shape) > 1}
    assert not any(shape in params or shape == (2, 64, 64) for shape in shapes)
    assert all(jnp.issubdtype(a.dtype, jnp.floating) for pool in split.pools.values() for a in pool)


def test_a_layer_that_cannot_be_cut_says_so():
    with pytest.warns(UserWarning, match="'scan' cannot be cut and went to I whole"):
        split = split_layer(lambda p, x, side, rng: _scan({**p, "b": jnp.ones((24, WIDTH))}, x, side, rng),
                            {"a": MATRICES["a"]}, jnp.ones((ROWS, SEQ_LEN, WIDTH)), {}, None)  # fmt: skip
    assert split.flops["W"] < 0.2 * split.flops["I"]


def test_a_layer_that_can_be_cut_is_silent():
    """So is one that has nothing to cut."""
    layer, p = _decoder_layer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert split_layer(layer, p, jnp.ones((ROWS, SEQ_LEN, WIDTH)), SIDE, None).flops["W"] > 0
        split_layer(lambda p, x, side, rng: 2 * x + jnp.sum(p["none"]), {"none": jnp.ones(0)}, jnp.ones(3), {}, None)


def test_what_does_not_fit_between_stages_is_refused():
    x = jnp.ones((ROWS, SEQ_LEN, WIDTH))
    with pytest.raises(TypeError, match=r"maps float32\[2, 8, 16\] to float32\[2, 8, 24\]"):
        split_layer(lambda p, x, side, rng: x @ p["a"], MATRICES, x, {}, None)
    with pytest.raises(TypeError, match="has dtype int32, but what travels between stages must be float"):
        split_layer(lambda p, x, side, rng: x, MATRICES, {"x": x, "ids": jnp.ones((2,), jnp.int32)}, {}, None)
