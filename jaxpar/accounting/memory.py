"""Bytes per device: of arrays, by their shardings, and of a compiled program's temporaries."""

import math

import jax


def bytes_per_device(tree):
    """Bytes that one device holds of a tree of arrays (or ShapeDtypeStructs with shardings): its shards' sizes."""

    def leaf_bytes(leaf):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(leaf_bytes, jax.tree.leaves(tree)))


def temporary_bytes(compiled):
    """Temporary bytes per device of a compiled program (`jit(f).lower(...).compile()`), None where XLA does not say."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
