"""ZeRO-1: the optimizer's state split over all devices, the same updates as without, one reduction and one gather."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from reference import random_params

from jaxpar.accounting.collectives import collectives, select
from jaxpar.accounting.memory import bytes_per_device, temporary_bytes
from jaxpar.config import OptimizerConfig
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout, Output
from jaxpar.schedule import build
from jaxpar.train.grads import make_grad_fn
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.shards import make_shardings, update_shardings
from jaxpar.train.state import new_state, state_shardings
from jaxpar.train.step import make_train_step

CONFIG = DecoderConfig(4, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=37, tie_embeddings=False)
NAMES = ("adamw", "adafactor", "lion", "sgd", "muon", "custom")
SHAPES = [(2, 2, 2), (4, 2, 1), (2, 4, 1), (8, 1, 1), (1, 4, 2)]


def _custom(rate):
    return optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=4), optax.clip_by_block_rms(0.5),
                       optax.scale_by_learning_rate(rate))  # fmt: skip


def _optimizer(name):
    config = OptimizerConfig(name=name, peak_rate=1e-2, warmup_steps=2)
    return make_optimizer(config, 6, custom=_custom, vocab_size=37)


def _model():
    return decoder(CONFIG, vocab_multiple=8)


def _layout(num_ranks):
    return Layout(num_ranks, 1, "loop", {1: (4,), 2: (3, 1), 4: (1, 1, 1, 1)}[num_ranks])


def _shapes(tree, shardings):
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, shardings)


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_device_holds_its_share_of_the_state(name, shape, apart, vocabulary):
    """total / (data x pipe x tensor) within 5 %.

    Factored moments are so small that norms and scalars, which not every axis splits, may add 0.2 % of the parameters.
    """
    config = DecoderConfig(8, 256, 8, 8, 1024, 256, tie_embeddings=False)
    model, mesh, rows = decoder(config, 8), make_mesh(*shape), np.arange(8).reshape(shape[1], -1)
    optimizer, options = _optimizer(name)[0], {"vocabulary": vocabulary, "apart": apart}
    shards = update_shardings(model, mesh, rows, **options)
    shardings = state_shardings(model, optimizer, mesh, rows, shards=shards, **options)
    state = jax.eval_shape(lambda: new_state(init_params(model, jax.random.key(0), rows, apart), optimizer))
    opt_state = _shapes(state.opt_state, shardings.opt_state)
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(opt_state))
    small = 0.002 * bytes_per_device(_shapes(state.params, shardings.params)) if name in ("adafactor", "custom") else 0
    assert bytes_per_device(opt_state) <= 1.05 * total / mesh.size + small
    assert shardings.params == make_shardings(model, mesh, rows, **options)


def test_a_state_of_odd_sizes_stays_whole_and_is_counted():
    """Nothing is padded in secret: what no axis divides, every device holds."""
    model, mesh = decoder(DecoderConfig(3, 30, 3, 3, 45, 31)), make_mesh(4, 1, 1, jax.devices()[:4])
    optimizer, rows = _optimizer("adamw")[0], np.arange(3).reshape(1, 3)
    shardings = state_shardings(model, optimizer, mesh, rows, shards=update_shardings(model, mesh, rows))
    state = jax.eval_shape(lambda: new_state(init_params(model, jax.random.key(0), rows), optimizer))
    moments = _shapes(state.opt_state, shardings.opt_state)
    sizes = jax.tree.leaves(
        jax.tree.map(lambda a: 8 * a.size // (4 if any(n % 4 == 0 for n in a.shape) else 1), state.params)
    )
    assert bytes_per_device(moments) == sum(sizes) + 8


def _given_gradients(params, batch, rng):
    """The batch is the gradients."""
    return Output(jnp.float32(1), jnp.int32(1), jnp.float32(0)), batch


def _gradients(params, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: np.where(a == 0, 0, rng.standard_normal(a.shape)).astype(np.float32), params)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (2, 2, 2)) for name in NAMES if name != "custom"),
        ("adafactor", (4, 2, 1)),
        pytest.param("muon", (4, 2, 1), marks=pytest.mark.slow),
        pytest.param("custom", (2, 2, 2), marks=pytest.mark.slow),
    ],
)
def test_updates_equal_those_of_one_device(name, shape):
    """Rows of layers that data does not divide and that it does; with a batch that is skipped in between."""
    model, mesh, layout = _model(), make_mesh(*shape), _layout(shape[1])
    optimizer, rate = _optimizer(name)
    packed = layout.pack(random_params(model)["layers"])
    params = jax.device_get({**random_params(model), "layers": packed})
    params["embed"]["table"][37:], params["head"]["table"][37:] = 0, 0
    shards = update_shardings(model, mesh, layout.rows)
    shardings = state_shardings(model, optimizer, mesh, layout.rows, shards=shards)
    step = make_train_step(_given_gradients, optimizer, rate, shardings, shards)
    plain = make_train_step(_given_gradients, optimizer, rate)
    split = jax.jit(lambda p: new_state(p, optimizer), out_shardings=shardings)(params)
    whole = new_state(jax.tree.map(jnp.array, params), optimizer)
    for number in range(4):
        grads = _gradients(params, number)
        if number == 2:
            grads["embed"]["table"][3, 1] = np.inf
            before = jax.device_get(split)
        split, metrics = step(split, grads)
        whole, expected = plain(whole, grads)
        np.testing.assert_allclose(metrics["grad_norm"], expected["grad_norm"], rtol=1e-6)
        assert int(metrics["nonfinite"]) == int(metrics["skipped"]) == (number == 2)
        if number == 2:
            _assert_same_bits(
                (before.params, before.opt_state, before.step), (split.params, split.opt_state, split.step)
            )
    for leaf, want, old in zip(*map(jax.tree.leaves, (split.params, whole.params, params)), strict=True):
        change = np.linalg.norm(np.asarray(want, np.float64) - old)
        assert np.linalg.norm(np.asarray(leaf, np.float64) - want) <= 1e-4 * change
    assert step._cache_size() == 1
    for leaf, sharding in zip(jax.tree.leaves(split), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        _assert_copies_equal(leaf)


def _assert_same_bits(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def _assert_copies_equal(leaf):
    first = {}
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data)
        np.testing.assert_array_equal(data, first.setdefault(str(shard.index), data))


@functools.cache
def _compiled(split, layers="loop", vocabulary="ends", num_microbatches=4, shape=(2, 2, 2)):
    """(compiled step of the pipeline, its lowered text, mesh, TrainState of shapes)."""
    model, mesh = decoder(DecoderConfig(4, 64, 4, 4, 128, 64, tie_embeddings=False), 8), make_mesh(*shape)
    schedule, (optimizer, rate) = build("1f1b", shape[1], num_microbatches), _optimizer("adamw")
    layout, apart = Layout.of(schedule, 4), layers == "unroll"
    options = {"vocabulary": vocabulary, "apart": apart}
    shards = update_shardings(model, mesh, layout.rows, **options) if split else None
    grad_fn = make_grad_fn(model, schedule, mesh, layout=layout, layers=layers, vocabulary=vocabulary, shards=shards)
    shardings = state_shardings(model, optimizer, mesh, layout.rows, shards=shards, **options)
    state = jax.eval_shape(lambda: new_state(init_params(model, jax.random.key(0), layout.rows, apart), optimizer))
    state = _shapes(state, shardings)
    tokens = jax.ShapeDtypeStruct(
        (2 * num_microbatches * shape[0], 16), jnp.int32, sharding=NamedSharding(mesh, P("data"))
    )
    lowered = make_train_step(grad_fn, optimizer, rate, shardings, shards).lower(
        state, {"inputs": tokens, "labels": tokens}
    )
    return lowered.compile(), lowered.as_text(), mesh, state


def test_one_reduction_and_one_gather_a_leaf_and_none_a_microbatch():
    compiled, text, mesh, state = _compiled(True)
    num_leaves = len(jax.tree.leaves(state.params))
    assert text.count("stablehlo.reduce_scatter") == num_leaves
    found = collectives(compiled.as_text(), mesh)
    assert not select(found, axis="data", in_loop=True)
    gathers = select(found, kind="all-gather")
    assert len(gathers) == num_leaves and not select(gathers, in_loop=True)
    assert sum(one.num_bytes for one in gathers) == bytes_per_device(state.params)


def test_temporaries_do_not_grow():
    assert temporary_bytes(_compiled(True)[0]) <= 1.02 * temporary_bytes(_compiled(False)[0])
