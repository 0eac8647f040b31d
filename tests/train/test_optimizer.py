"""Optimizers by name: what they compute, and that packing, padding and lists of rows change nothing of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpar.config import OptimizerConfig
from jaxpar.errors import SettingError
from jaxpar.pipeline import Layout
from jaxpar.train.optimizer import decay_mask, make_optimizer

CONFIG = OptimizerConfig(peak_rate=1e-2, warmup_steps=4, final_rate_ratio=0.1, weight_decay=0.5, clip_norm=1.0)
NAMES = ("adamw", "adafactor", "lion", "sgd", "muon", "custom")
LAYOUT = Layout(2, 1, "loop", (2, 1))  # three layers and a row of padding
VOCAB_SIZE, VOCAB_ROWS, WIDTH = 130, 136, 132  # over the 128 from which adafactor factors
PARAMS = {
    "embed": {"table": np.ones((3, 2), np.float32)},
    "layers": {"norm": np.ones((4, 2), np.float32), "kernel": np.ones((4, 2, 2), np.float32)},
    "head": {"norm": np.ones(2, np.float32)},
}


def _custom(rate):
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(0.5), optax.scale_by_learning_rate(rate))


def _optimizer(name, **changes):
    config = dataclasses.replace(CONFIG, name=name, **changes)
    return make_optimizer(config, 10, custom=_custom, vocab_size=VOCAB_SIZE)[0]


def _random(seed):
    """By global layer index, without padding."""
    rng = np.random.default_rng(seed)
    shapes = {
        "embed": {"table": (VOCAB_SIZE, WIDTH)},
        "layers": {"norm": (3, WIDTH), "kernel": (3, WIDTH, 128)},
        "head": {"norm": (WIDTH,), "table": (VOCAB_SIZE, WIDTH)},
    }
    tree = jax.tree.map(lambda s: rng.standard_normal(s).astype(np.float32), shapes, is_leaf=lambda s: type(s) is tuple)
    for index in range(3):  # unlike layers: an optimizer that took them together would show
        for leaf in tree["layers"].values():
            leaf[index] *= 1 + index
    return tree


def _packed(tree, apart):
    def pad(leaf):
        return jnp.pad(leaf, [(0, VOCAB_ROWS - VOCAB_SIZE), (0, 0)]) if leaf.ndim == 2 else leaf

    layers = LAYOUT.pack(tree["layers"])
    ends = {name: jax.tree.map(pad, tree[name]) for name in ("embed", "head")}
    return {**ends, "layers": LAYOUT.apart(layers) if apart else layers}


def _unpacked(tree):
    def cut(leaf):
        return leaf[:VOCAB_SIZE] if leaf.ndim == 2 else leaf

    return {
        **{name: jax.tree.map(cut, tree[name]) for name in ("embed", "head")},
        "layers": LAYOUT.unpack(tree["layers"]),
    }


def _three_steps(optimizer, arrange):
    """The parameters after three steps."""

    @jax.jit
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = arrange(_random(0))
    state = jax.jit(optimizer.init)(params)
    for seed in (1, 2, 3):
        params, state = step(params, state, arrange(_random(seed)))
    return params


@pytest.mark.parametrize(
    ("name", "apart"),
    [(name, False) for name in NAMES] + [(name, True) for name in ("adafactor", "muon")],
)
def test_no_layout_changes_an_update(name, apart):
    """Against every layer by itself, without padding of rows or vocabulary."""
    optimizer = _optimizer(name)
    expected = _three_steps(optimizer, lambda tree: tree)
    params = _three_steps(optimizer, lambda tree: _packed(tree, apart))
    for leaf, want in zip(jax.tree.leaves(_unpacked(params)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    for leaf, like in zip(jax.tree.leaves(params), jax.tree.leaves(_packed(_unpacked(params), apart)), strict=True):
        np.testing.assert_array_equal(leaf, like)  # padding is zero still


@pytest.mark.parametrize("name", NAMES)
def test_the_states_leaves_say_where_they_belong(name):
    """Layers' leaves have the packed rows in front, embedding's and head's the same shape in every layout."""
    optimizer = _optimizer(name)
    free = jax.eval_shape(optimizer.init, _random(0))
    for apart in (False, True):
        state = jax.eval_shape(lambda: optimizer.init(_packed(_random(0), apart)))  # noqa: B023
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            keys = [getattr(entry, "key", None) for entry in path]
            if "layers" in keys:
                assert leaf.shape[0] == (2 if apart else 4)
            elif not {"embed", "head"} & set(keys):
                assert leaf.shape == ()
            assert leaf.dtype in (jnp.float32, jnp.int32)
        if not apart:
            assert jax.tree.structure(state) == jax.tree.structure(free)
            for leaf, want in zip(jax.tree.leaves(state), jax.tree.leaves(free), strict=True):
                assert leaf.shape in (want.shape, (4, *want.shape[1:]), (VOCAB_ROWS, *want.shape[1:]))


def _one_update(name, **changes):
    """(updates, gradients, parameters) of the first step, without clip: its rate is a quarter of the peak's."""
    params, grads, optimizer = _random(0), _random(1), _optimizer(name, clip_norm=0.0, **changes)
    return jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p)[0])(grads, params), grads, params


RATE = 1e-2 / 4


def test_adafactor_takes_a_layer_at_a_time():
    updates, grads, params = _one_update("adafactor")
    param, grad = ({"k": tree["layers"]["kernel"][1]} for tree in (params, grads))
    plain = optax.adafactor(RATE, weight_decay_rate=RATE * 0.5)
    want = jax.jit(lambda g, p: plain.update(g, plain.init(p), p)[0])(grad, param)
    np.testing.assert_allclose(updates["layers"]["kernel"][1], want["k"], rtol=1e-5, atol=1e-7)


def test_muon_makes_each_layers_matrix_orthogonal_and_the_rest_is_adamws():
    updates, _, _ = _one_update("muon", weight_decay=0.0)
    adamw, _, _ = _one_update("adamw", weight_decay=0.0)
    for layer in range(3):
        values = np.linalg.svd(updates["layers"]["kernel"][layer], compute_uv=False) / (RATE * 0.2 * np.sqrt(WIDTH))
        assert values.min() < values.max() < 1.5 and np.median(values) > 0.6
    for part, leaf in (("embed", "table"), ("head", "table"), ("head", "norm"), ("layers", "norm")):
        np.testing.assert_allclose(updates[part][leaf], adamw[part][leaf], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "update"),
    [("lion", lambda g, p: -RATE * (np.sign(g) + 0.5 * p)), ("sgd", lambda g, p: -RATE * (g + 0.5 * p))],
)
def test_lion_and_sgd_are_the_papers(name, update):
    updates, grads, params = _one_update(name)
    got, grad, param = (tree["layers"]["kernel"] for tree in (updates, grads, params))
    np.testing.assert_allclose(got, update(grad, param), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(updates["head"]["norm"], update(grads["head"]["norm"], 0), rtol=1e-5, atol=1e-7)


def test_norms_do_not_decay_though_they_are_stacked():
    mask = decay_mask(PARAMS)
    assert mask == {"embed": {"table": True}, "layers": {"norm": False, "kernel": True}, "head": {"norm": False}}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "custom"])
def test_zero_gradients_decay_matrices_alone(name):
    optimizer, _ = make_optimizer(dataclasses.replace(CONFIG, name=name), 10)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    updates = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p)[0])(zeros, PARAMS)
    assert not np.any(updates["layers"]["norm"]) and not np.any(updates["head"]["norm"])
    np.testing.assert_allclose(updates["layers"]["kernel"], -0.0025 * 0.5, rtol=1e-5)
    np.testing.assert_allclose(updates["embed"]["table"], -0.0025 * 0.5, rtol=1e-5)


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
    [
        ({"name": "adamm"}, "optimizer.name=adamm is not known"),
        ({"name": "custom"}, "get_optimizer"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 is negative"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(SettingError, match=message):
        make_optimizer(dataclasses.replace(CONFIG, **change), 10)
