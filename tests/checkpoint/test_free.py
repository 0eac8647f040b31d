"""The layout-free form: whatever the mesh, schedule and chunks, the same bits return; no padding, no aliases."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.accounting.memory import bytes_per_device
from jaxpar.checkpoint import FreeForm
from jaxpar.config import OptimizerConfig
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.state import init_state, new_state, state_shardings

# As wide as is needed for every device's part of a row to fill a vector register: XLA rounds narrower ones otherwise.
CONFIG = DecoderConfig(8, width=64, num_heads=4, num_kv_heads=2, mlp_width=128, vocab_size=37, tie_embeddings=False)
OPTIMIZER, _ = make_optimizer(OptimizerConfig(), 10)
EVEN, UNEVEN = (2, 2, 2, 2), (1, 3, 3, 1)

# mesh, layout (ranks, chunks, placement, layers of the stages), vocabulary, rows apart
LAYOUTS = {
    "one": ((1, 1, 8), (1, 1, "loop", (8,)), "ends", False),
    "loop": ((2, 2, 2), (2, 2, "loop", EVEN), "ends", False),
    "v": ((1, 2, 4), (2, 2, "v", UNEVEN), "pipe", False),
    "uneven": ((2, 4, 1), (4, 1, "loop", UNEVEN), "pipe", True),
    "interleaved apart": ((1, 4, 2), (4, 2, "loop", (1,) * 8), "ends", True),
}


def form_of(name, optimizer=OPTIMIZER):
    """(FreeForm, function that makes the run's initial state)."""
    shape, layout, vocabulary, apart = LAYOUTS[name]
    mesh, layout = make_mesh(*shape), Layout(*layout)
    model = decoder(CONFIG, vocab_multiple=shape[2] * (shape[1] if vocabulary == "pipe" else 1))
    shardings = state_shardings(model, optimizer, mesh, layout.rows, vocabulary, apart=apart)

    def make():
        return init_state(model, optimizer, jax.random.key(3), layout.rows, shardings)

    def shaped(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    packed = jax.tree.map(shaped, jax.eval_shape(make), shardings)
    small = decoder(CONFIG)
    free = jax.eval_shape(lambda: new_state(init_params(small, jax.random.key(0)), optimizer))
    return FreeForm.of(layout, packed, free), make


def random_like(tree, seed=0):
    """Arrays with no two alike, placed as the tree says."""
    rng = np.random.default_rng(seed)

    def leaf(a):
        values = rng.integers(0, 9, a.shape) if np.issubdtype(a.dtype, np.integer) else rng.standard_normal(a.shape)
        return jax.device_put(np.asarray(values, a.dtype), a.sharding)

    return jax.tree.map(leaf, tree)


def same_bits(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_one_layout_saves_any_other_restores_bitwise(name):
    here, _ = form_of(name)
    tree = random_like(here.free)
    whole = jax.device_get(tree)
    packed = here.adopt(tree)
    for leaf, wanted in zip(jax.tree.leaves(packed), jax.tree.leaves(here.packed), strict=True):
        assert (leaf.shape, leaf.dtype, leaf.sharding) == (wanted.shape, wanted.dtype, wanted.sharding)
    free = here.release(packed)
    same_bits(free, whole)
    for leaf, wanted in zip(jax.tree.leaves(free), jax.tree.leaves(here.free), strict=True):
        assert (leaf.shape, leaf.sharding) == (wanted.shape, wanted.sharding)


def test_the_free_form_of_every_layout_is_the_same():
    """The initial parameters of a seed, saved from any layout, are those of one device by global index."""
    model = decoder(CONFIG)
    wanted = jax.device_get(jax.jit(lambda: init_params(model, jax.random.key(3)))())
    shapes = jax.tree.map(np.shape, wanted)
    assert shapes["embed"]["table"] == (37, 64), "padding is not saved"
    for name in LAYOUTS:
        form, make = form_of(name)
        same_bits(form.release(make()).params, wanted)


def test_padding_comes_back_as_zeros():
    form, make = form_of("v")
    first = make()
    again = form.adopt(form.release(first))
    same_bits(again, first)
    assert again.params["embed"]["table"].shape[0] == 40 and not np.any(again.params["embed"]["table"][37:])


def test_every_device_holds_its_share_alone():
    for name in ("loop", "v"):
        form, _ = form_of(name)
        whole = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(form.free))
        # The table's 37 rows divide by nothing; its columns do.
        assert bytes_per_device(form.free) < 1.05 * whole / 8


@pytest.mark.parametrize("name", ["one", "uneven"])
def test_the_free_arrays_are_no_views_of_the_state(name):
    """An asynchronous save writes them while the next step overwrites the donated state."""
    form, make = form_of(name)
    state = make()
    free = form.release(state)
    before = jax.device_get(jax.tree.map(np.array, free))

    def buffers(tree):
        shards = (shard.data for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)
        return {shard.unsafe_buffer_pointer() for shard in shards}

    assert not buffers(state) & buffers(free)
    jax.jit(lambda s: jax.tree.map(lambda a: a * 0, s), donate_argnums=0)(state)
    same_bits(free, before)


def test_a_part_of_the_state_can_be_released_alone():
    form, make = form_of("loop")
    state = make()
    params = form.pick(lambda tree: tree.params).release(
        state.params, NamedSharding(make_mesh(2, 2, 2), PartitionSpec())
    )
    same_bits(params, form.release(state).params)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "lion", "sgd"])
def test_every_optimizers_state_comes_and_goes(optimizer):
    config = dataclasses.replace(OptimizerConfig(), name=optimizer)
    made, _ = make_optimizer(config, 10)
    for name in ("loop", "uneven"):
        form, make = form_of(name, made)
        tree = random_like(form.free)
        whole = jax.device_get(tree)
        same_bits(form.release(form.adopt(tree)), whole)
