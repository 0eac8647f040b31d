"""The learning rate's curve, the one global clip, and which leaves decay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpar.config import OptimizerConfig
from jaxpar.errors import SettingError
from jaxpar.train.optimizer import decay_mask, make_optimizer, rate_schedule

CONFIG = OptimizerConfig(peak_rate=1e-2, warmup_steps=4, final_rate_ratio=0.1, weight_decay=0.5, clip_norm=1.0)
PARAMS = {
    "embed": {"table": np.ones((3, 2), np.float32)},
    "layers": {"norm": np.ones((4, 2), np.float32), "kernel": np.ones((4, 2, 2), np.float32)},
    "head": {"norm": np.ones(2, np.float32)},
}


def test_rate_rises_to_the_peak_and_falls_by_a_cosine():
    rate = jax.jit(jax.vmap(rate_schedule(CONFIG, 25)))(jnp.arange(30))
    np.testing.assert_allclose(rate[:4], [0.0025, 0.005, 0.0075, 0.01], rtol=1e-6)
    np.testing.assert_allclose(rate[4], 0.01, rtol=1e-6)
    np.testing.assert_allclose(rate[14], 0.0055, rtol=1e-6)
    np.testing.assert_allclose(rate[24:], 0.001, rtol=1e-6)
    assert np.all(np.diff(rate[4:25]) < 0)


def test_no_warm_up_starts_at_the_peak_and_a_whole_warm_up_ends_there():
    np.testing.assert_allclose(rate_schedule(dataclasses.replace(CONFIG, warmup_steps=0), 10)(0), 0.01, rtol=1e-6)
    np.testing.assert_allclose(rate_schedule(dataclasses.replace(CONFIG, warmup_steps=10), 10)(9), 0.01, rtol=1e-6)


def test_norms_do_not_decay_though_they_are_stacked():
    mask = decay_mask(PARAMS)
    assert mask == {"embed": {"table": True}, "layers": {"norm": False, "kernel": True}, "head": {"norm": False}}


def test_zero_gradients_decay_matrices_alone():
    optimizer, _ = make_optimizer(CONFIG, 10)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = optimizer.update(zeros, optimizer.init(PARAMS), PARAMS)
    assert not np.any(updates["layers"]["norm"]) and not np.any(updates["head"]["norm"])
    np.testing.assert_allclose(updates["layers"]["kernel"], -0.0025 * 0.5, rtol=1e-5)


def test_updates_equal_adamw_after_one_clip_over_all_leaves():
    grads = jax.tree.map(lambda leaf: np.full_like(leaf, 3.0), PARAMS)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(grads)))
    plain, rate = make_optimizer(dataclasses.replace(CONFIG, clip_norm=0.0), 10)
    clipped, _ = make_optimizer(dataclasses.replace(CONFIG, clip_norm=2.0), 10)
    by_hand = jax.tree.map(lambda g: g * 2.0 / norm, grads)
    expected, _ = plain.update(by_hand, plain.init(PARAMS), PARAMS)
    updates, _ = clipped.update(grads, clipped.init(PARAMS), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, expected)
    reference = optax.adamw(rate, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.5, mask=decay_mask)
    want, _ = reference.update(by_hand, reference.init(PARAMS), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), expected, want)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"name": "sgd"}, "optimizer.name=sgd"), ({"clip_norm": -1.0}, "clip_norm=-1.0 is negative")],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(SettingError, match=message):
        make_optimizer(dataclasses.replace(CONFIG, **change), 10)
