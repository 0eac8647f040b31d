"""The training step, with plain gradients and the pipeline's in parts: equal curves, equal copies, one compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import assert_loss_close, random_batch, random_params, reference_loss

from jaxpar.config import OptimizerConfig
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.pipeline import Layout, Output
from jaxpar.schedule import build
from jaxpar.train.grads import make_grad_fn
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.shards import update_shardings
from jaxpar.train.state import init_state, new_state, state_shardings
from jaxpar.train.step import make_train_step

CONFIG = DecoderConfig(4, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=37)
MODEL = decoder(CONFIG, vocab_multiple=4)
OPTIMIZER, RATE = make_optimizer(OptimizerConfig(peak_rate=1e-2, warmup_steps=2), 6)


def _plain(params, batch, rng):
    def loss(params):
        mean, tokens = reference_loss(MODEL, params, batch)
        return mean, tokens

    (mean, tokens), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return Output(mean, tokens, jnp.float32(0)), grads


@pytest.fixture(scope="module")
def plain_step():
    return make_train_step(_plain, OPTIMIZER, RATE)


def _fresh(params=None):
    return new_state(jax.tree.map(jnp.array, params or random_params(MODEL)), OPTIMIZER)


def _same_bits(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def test_a_step_learns_and_reports(plain_step):
    state, losses = _fresh(), []
    for number in range(5):
        state, metrics = plain_step(state, random_batch(37, 8, 16))
        losses.append(float(metrics["loss"]))
        assert int(metrics["skipped"]) == 0 and float(metrics["grad_norm"]) > 0
        np.testing.assert_allclose(metrics["learning_rate"], RATE(number), rtol=1e-6)
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.2
    assert int(state.step) == 5 and int(state.skipped) == 0
    assert int(metrics["num_tokens"]) == np.sum(random_batch(37, 8, 16)["labels"] >= 0)


def test_a_batch_without_a_counted_token_changes_nothing_and_says_so(plain_step):
    state, _ = plain_step(_fresh(), random_batch(37, 8, 16))
    before = jax.device_get(state)
    empty = random_batch(37, 8, 16)
    empty["labels"] = np.full_like(empty["labels"], -1)
    state, metrics = plain_step(state, empty)
    assert float(metrics["loss"]) == 0 and int(metrics["num_tokens"]) == 0
    assert int(metrics["skipped"]) == 1 and int(metrics["nonfinite"]) == 0
    _same_bits((before.params, before.opt_state, before.step), (state.params, state.opt_state, state.step))
    assert int(state.skipped) == 1


def test_a_gradient_that_is_not_finite_skips_the_step():
    def broken(params, batch, rng):
        output, grads = _plain(params, batch, rng)
        grads["head"]["norm"] = grads["head"]["norm"].at[0].set(jnp.nan)
        return output, grads

    state = _fresh()
    before = jax.device_get(state)
    state, metrics = make_train_step(broken, OPTIMIZER, RATE)(state, random_batch(37, 8, 16))
    _same_bits((before.params, before.opt_state), (state.params, state.opt_state))
    assert int(metrics["skipped"]) == int(metrics["nonfinite"]) == int(state.skipped) == 1 and int(state.step) == 0


def test_the_key_is_folded_with_the_batchs_number():
    seen = []

    def watch(params, batch, rng):
        jax.debug.callback(lambda bits: seen.append(bits.tolist()), jax.random.key_data(rng))
        return Output(jnp.float32(1), batch["tokens"], jnp.float32(0)), jax.tree.map(jnp.ones_like, params)

    step, state = make_train_step(watch, OPTIMIZER, RATE), new_state({"layers": {"w": jnp.ones((2, 3, 3))}}, OPTIMIZER)
    for tokens in (1, 0, 1):  # a skipped batch has a number of its own too
        state, _ = step(state, {"tokens": jnp.int32(tokens)}, jax.random.key(5))
    jax.effects_barrier()
    assert seen == [jax.random.key_data(jax.random.fold_in(jax.random.key(5), n)).tolist() for n in range(3)]


@pytest.mark.parametrize(("shape", "vocabulary"), [((2, 2, 2), "ends"), ((1, 4, 2), "pipe")])
def test_the_pipelines_curve_is_the_plain_one_and_copies_stay_equal(plain_step, shape, vocabulary):
    mesh = make_mesh(*shape)
    model = decoder(CONFIG, vocab_multiple=8)
    schedule = build("1f1b", shape[1], 4)
    layout = Layout.of(schedule.with_vocabulary(vocabulary), 4)
    shards = update_shardings(model, mesh, layout.rows, vocabulary)
    grad_fn = make_grad_fn(model, schedule, mesh, layout=layout, vocabulary=vocabulary, shards=shards)
    shardings = state_shardings(model, OPTIMIZER, mesh, layout.rows, vocabulary, shards=shards)
    step = make_train_step(grad_fn, OPTIMIZER, RATE, shardings, shards)
    state = init_state(model, OPTIMIZER, jax.random.key(0), layout.rows, shardings)
    params = jax.device_get(state.params)
    order = np.argsort(layout.rows.reshape(-1))  # packed to global; even layers, so no padding
    plain = _fresh({**params, "layers": jax.tree.map(lambda leaf: leaf[order], params["layers"]),
                    "embed": {"table": params["embed"]["table"][:40]}})  # fmt: skip
    for number in range(4):
        batch = random_batch(37, 16, 16, seed=number)
        state, metrics = step(state, batch)
        plain, expected = plain_step(plain, batch)
        for name in ("loss", "grad_norm", "learning_rate"):
            assert_loss_close(metrics[name], expected[name], 1e-4)
        assert int(metrics["num_tokens"]) == int(expected["num_tokens"])
    assert step._cache_size() == 1
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding == sharding
        _assert_copies_equal(leaf)


def _assert_copies_equal(leaf):
    first = {}
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data)
        np.testing.assert_array_equal(data, first.setdefault(str(shard.index), data))


def test_the_old_state_is_given_away(plain_step):
    state = _fresh()
    plain_step(state, random_batch(37, 8, 16))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
