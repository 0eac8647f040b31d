"""Bytes per device, of arrays and of compiled temporaries."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.accounting.memory import bytes_by_rank, bytes_per_device, temporary_bytes
from jaxpar.mesh import make_mesh


def test_arrays_count_by_their_shards():
    mesh = make_mesh(1, 4, 2)
    split = jax.device_put(jnp.ones((8, 6)), NamedSharding(mesh, P("pipe", "tensor")))
    whole = jax.device_put(jnp.ones((8, 6), jnp.bfloat16), NamedSharding(mesh, P()))
    assert bytes_per_device({"a": split, "b": [whole]}) == 8 * 6 * 4 // 8 + 8 * 6 * 2
    assert bytes_per_device(jax.ShapeDtypeStruct((3,), jnp.float32)) == 12


def test_temporaries_are_one_devices():
    mesh = make_mesh(1, 8, 1)
    x = jax.ShapeDtypeStruct((8, 512, 512), jnp.float32, sharding=NamedSharding(mesh, P("pipe")))

    def f(x):
        return jnp.sum(lax.fori_loop(0, 3, lambda i, y: y @ x + y, x), axis=(1, 2))

    share = 512 * 512 * 4
    assert share <= temporary_bytes(jax.jit(f).lower(x).compile()) < 4 * share


def test_ranks_need_what_their_own_layers_do():
    """Ranks of two layers and of one: the second allocates a row of padding that it does not need."""
    mesh, rows = make_mesh(2, 2, 2), np.array([[0, 1], [2, -1]])

    def shaped(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    tree = {"layers": {"w": shaped((4, 8, 6), "pipe", "data", "tensor")}, "head": {"w": shaped((8,), "tensor")}}
    layer, head = 8 * 6 * 4 // 4, 8 * 4 // 2
    assert bytes_by_rank(tree, rows) == [2 * layer + head, layer + head]
    assert bytes_per_device(tree) == max(bytes_by_rank(tree, rows))
    assert bytes_by_rank({"mu": tree, "count": jax.ShapeDtypeStruct((), jnp.int32)}, rows)[1] == layer + head + 4
