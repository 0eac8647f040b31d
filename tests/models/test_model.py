"""Initial parameters: the seed's and the global layer index's alone, wherever they come to lie."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxpar.accounting.memory import bytes_per_device
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params, layer_params
from jaxpar.sharding import TENSOR_RULES, param_shardings

CONFIG = DecoderConfig(4, width=32, num_heads=4, num_kv_heads=4, mlp_width=48, vocab_size=37, tie_embeddings=False)
ROWS = {  # name: rows [num_ranks, rows]
    "even": [[0, 1], [2, 3]],
    "interleaved": [[0, 2], [1, 3]],
    "uneven": [[0, 1, 2], [3, -1, -1]],
}


def _assert_same_bits(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(one).view(np.uint32), np.asarray(other).view(np.uint32))


@pytest.fixture(scope="module")
def alone():
    """A jitted key -> parameters by global index, on one device."""
    model = decoder(CONFIG, vocab_multiple=8)
    return jax.jit(lambda key: init_params(model, key))


@pytest.mark.parametrize(
    ("rows", "shape", "vocabulary"),
    [
        ("even", (1, 2, 4), "pipe"),
        ("interleaved", (2, 2, 2), "ends"),
        ("uneven", (4, 2, 1), "pipe"),
        ("uneven", (2, 2, 2), "ends"),
    ],
)
def test_initial_parameters_do_not_depend_on_mesh_or_layout(alone, rows, shape, vocabulary):
    model, mesh, rows = decoder(CONFIG, vocab_multiple=8), make_mesh(*shape), ROWS[rows]
    shardings = param_shardings(mesh, TENSOR_RULES.specs(model.dims), vocabulary)
    packed = jax.jit(lambda key: init_params(model, key, rows), out_shardings=shardings)(jax.random.key(7))
    for leaf, sharding in zip(jax.tree.leaves(packed), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding == sharding
    layout, packed, whole = (
        types.SimpleNamespace(rows=np.array(rows)),
        *jax.device_get((packed, alone(jax.random.key(7)))),
    )
    for index in range(4):
        _assert_same_bits(layer_params(packed, layout, index), jax.tree.map(lambda a, i=index: a[i], whole["layers"]))
    _assert_same_bits({k: packed[k] for k in ("embed", "head")}, {k: whole[k] for k in ("embed", "head")})


def test_layers_and_seeds_differ(alone):
    first, second = jax.device_get([alone(jax.random.key(seed)) for seed in (0, 1)])
    kernel = first["layers"]["mlp"]["out"]["kernel"]
    assert np.unique(kernel).size > 0.99 * kernel.size  # two equal layers would leave three quarters
    assert not np.any(kernel == second["layers"]["mlp"]["out"]["kernel"])
    assert not np.any((first["embed"]["table"] == first["head"]["table"])[: CONFIG.vocab_size])


def test_padding_rows_are_zero_and_no_layer_is_lost():
    model = decoder(CONFIG)
    packed = jax.jit(lambda: init_params(model, jax.random.key(0), ROWS["uneven"]))()
    kernel = packed["layers"]["mlp"]["out"]["kernel"]
    assert kernel.shape[0] == 6 and not np.any(kernel[4:]) and np.all(np.any(kernel[:4], axis=(1, 2)))


def test_a_layer_that_is_not_there_is_an_error():
    packed = {"w": np.zeros((6, 2))}
    layout = types.SimpleNamespace(rows=np.array(ROWS["uneven"]))
    for index in (-1, 4):
        with pytest.raises(IndexError, match=f"layer {index} is not one of the 4"):
            layer_params(packed, layout, index)


def test_making_parameters_in_place_holds_no_more_than_a_share():
    """The compiled program that makes them: temporaries and results of one device, against the whole."""
    config = DecoderConfig(8, width=128, num_heads=8, num_kv_heads=8, mlp_width=512, vocab_size=512)
    model, mesh = decoder(config, vocab_multiple=8), make_mesh(1, 4, 2)
    shardings = param_shardings(mesh, TENSOR_RULES.specs(model.dims), "pipe")
    rows = np.arange(8).reshape(4, 2)
    make = jax.jit(lambda key: init_params(model, key, rows), out_shardings=shardings)
    memory = make.lower(jax.random.key(0)).compile().memory_analysis()
    whole = bytes_per_device(jax.eval_shape(lambda: init_params(model, jax.random.key(0))))
    assert memory.output_size_in_bytes < whole / 8 * 1.1
    assert memory.temp_size_in_bytes < whole / 2


def test_shardings_name_every_leaf():
    model, mesh = decoder(CONFIG), make_mesh(2, 2, 2)
    shardings = param_shardings(mesh, TENSOR_RULES.specs(model.dims))
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    assert jax.tree.structure(params) == jax.tree.structure(shardings)
    assert all(isinstance(leaf, NamedSharding) for leaf in jax.tree.leaves(shardings))
