"""bfloat16 parameters: float32 gradients and moments, master weights, the same initial values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from reference import assert_loss_close, random_batch

from jaxpar.config import OptimizerConfig
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout, Output, value_and_grad
from jaxpar.schedule import build
from jaxpar.train.grads import make_grad_fn
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.precision import MasterState, apply
from jaxpar.train.shards import update_shardings
from jaxpar.train.state import init_state, new_state, state_shardings
from jaxpar.train.step import make_train_step

CONFIG = DecoderConfig(
    2, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=37, dtype="bfloat16", param_dtype="bfloat16"
)
OPTIMIZER = OptimizerConfig(peak_rate=1e-2, warmup_steps=0, schedule="constant")


def _initial(param_dtype):
    model = decoder(dataclasses.replace(CONFIG, param_dtype=param_dtype))
    return jax.jit(lambda key: init_params(model, key))(jax.random.key(3))


def test_initial_values_are_the_float32_ones_rounded():
    narrow, wide = _initial("bfloat16"), _initial("float32")
    for leaf, want in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        assert leaf.dtype == jnp.bfloat16 and want.dtype == jnp.float32
        np.testing.assert_array_equal(leaf, want.astype(jnp.bfloat16))


def test_microbatch_gradients_add_up_in_float32():
    """512 + 1 is 512 in bfloat16: the small gradients of many microbatches after a large one would all be lost."""
    num_microbatches = 64
    scale = np.ones(num_microbatches, np.float32)
    scale[0] = 512
    params = {"layers": {"w": jnp.zeros((4, 1), jnp.bfloat16)}, "head": {"w": jnp.ones(1, jnp.bfloat16)}}
    batch = {
        "inputs": jnp.zeros((num_microbatches, 1), jnp.bfloat16),
        "labels": jnp.zeros(num_microbatches, jnp.int32),
        "side": {"scale": jnp.asarray(scale, jnp.bfloat16)},
    }

    def loss(p, y, labels):
        return jnp.sum((y * p["w"]).astype(jnp.float32)), jnp.sum(labels >= 0, dtype=jnp.int32)

    def layer(p, x, side, rng):
        return x + p["w"] * side["scale"][:, None]

    for layers in ("loop", "unroll"):
        fn = value_and_grad(layer, loss, build("1f1b", 4, num_microbatches), make_mesh(1, 4, 2), layers=layers)
        _, grads = fn(params, batch)
        assert grads["layers"]["w"].dtype == jnp.float32
        np.testing.assert_array_equal(grads["layers"]["w"], np.float32(512 + 63) / num_microbatches)


def _ones(params, batch, rng):
    return Output(jnp.float32(1), jnp.int32(1), jnp.float32(0)), jax.tree.map(
        lambda p: jnp.full(p.shape, batch, jnp.bfloat16), params
    )


def _state(optimizer):
    """Weights near one, where bfloat16 has steps of 1/128 above and 1/256 below."""
    layers = {"w": jnp.ones((2, 4, 4), jnp.bfloat16), "norm": jnp.ones((2, 4), jnp.bfloat16)}
    return new_state({"layers": layers}, optimizer)


def test_master_weights_keep_updates_that_the_parameters_lose():
    config = dataclasses.replace(OPTIMIZER, name="sgd", peak_rate=1e-3, momentum=0.0, weight_decay=0.0, clip_norm=0.0)
    results = {}
    for master in (False, True):
        optimizer, rate = make_optimizer(dataclasses.replace(config, master_weights=master), 100)
        step, state = make_train_step(_ones, optimizer, rate), _state(optimizer)
        for _ in range(100):
            state, _ = step(state, jnp.float32(1))
        results[master] = state
    np.testing.assert_array_equal(results[False].params["layers"]["w"], jnp.ones((2, 4, 4), jnp.bfloat16))
    master = results[True].opt_state
    assert isinstance(master, MasterState)
    np.testing.assert_allclose(master.master["layers"]["w"], 0.9, rtol=1e-5)
    np.testing.assert_array_equal(
        results[True].params["layers"]["w"], master.master["layers"]["w"].astype(jnp.bfloat16)
    )


def test_moments_and_updates_are_float32_for_every_optimizer():
    for name in ("adamw", "adafactor", "lion", "sgd", "muon"):
        for master in (False, True):
            optimizer, _ = make_optimizer(dataclasses.replace(OPTIMIZER, name=name, master_weights=master), 100)
            state = _state(optimizer)
            grads = jax.tree.map(lambda p: jnp.ones(p.shape, jnp.float32), state.params)
            updates, opt_state = jax.eval_shape(optimizer.update, grads, state.opt_state, state.params)
            assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype("float32")}
            same = jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, opt_state, state.opt_state)
            assert all(jax.tree.leaves(same))
            assert {leaf.dtype for leaf in jax.tree.leaves(opt_state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
            new = jax.eval_shape(apply, state.params, updates, opt_state)
            assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("bfloat16")}


def test_a_skipped_step_leaves_master_weights_alone():
    optimizer, rate = make_optimizer(dataclasses.replace(OPTIMIZER, master_weights=True), 100)
    step = make_train_step(_ones, optimizer, rate)
    state, _ = step(_state(optimizer), jnp.float32(1))
    before = jax.device_get(state)
    state, metrics = step(state, jnp.float32(np.nan))
    assert int(metrics["nonfinite"]) == int(metrics["skipped"]) == 1
    for a, b in zip(jax.tree.leaves(before.opt_state), jax.tree.leaves(state.opt_state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_bfloat16_run_follows_the_float32_one():
    """Sharded master weights on a mesh, against float32 on one device: near, and parameters are the masters' cast."""
    losses = {}
    for dtype, shape in (("bfloat16", (2, 2, 2)), ("float32", (1, 1, 1))):
        model = decoder(dataclasses.replace(CONFIG, dtype=dtype, param_dtype=dtype), 8)
        mesh = make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
        config = dataclasses.replace(OPTIMIZER, master_weights=dtype == "bfloat16")
        optimizer, rate = make_optimizer(config, 10, vocab_size=37)
        schedule = build("1f1b", shape[1], 4)
        layout = Layout.of(schedule, 2)
        shards = update_shardings(model, mesh, layout.rows)
        shardings = state_shardings(model, optimizer, mesh, layout.rows, shards=shards)
        step = make_train_step(
            make_grad_fn(model, schedule, mesh, layout=layout, shards=shards), optimizer, rate, shardings, shards
        )
        state = init_state(model, optimizer, jax.random.key(0), layout.rows, shardings)
        losses[dtype] = []
        for number in range(4):
            state, metrics = step(state, random_batch(37, 16, 16, seed=number))
            assert metrics["loss"].dtype == metrics["grad_norm"].dtype == jnp.float32
            losses[dtype].append(float(metrics["loss"]))
        if dtype == "bfloat16":
            for leaf, master in zip(
                jax.tree.leaves(state.params), jax.tree.leaves(state.opt_state.master), strict=True
            ):
                assert leaf.dtype == jnp.bfloat16 and master.dtype == jnp.float32
                np.testing.assert_array_equal(leaf, master.astype(jnp.bfloat16))
    for narrow, wide in zip(losses["bfloat16"], losses["float32"], strict=True):
        assert_loss_close(narrow, wide, 0.01)
