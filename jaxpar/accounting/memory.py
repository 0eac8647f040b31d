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


def bytes_by_rank(tree, rows):
    """Bytes that each rank's own part of a tree takes on one of its devices: padding of shorter ranks left out.

    Args:
      tree: packed parameters, or their optimizer's state, of ShapeDtypeStructs with shardings; leaves below a dict key
        "layers" have the packed rows in front.
      rows: int [num_ranks, rows], `Layout.rows`; -1 is padding.

    Returns:
      List of int, one a rank. All ranks run one program and allocate `bytes_per_device`, as much as the largest.
    """
    in_layers, rest = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        belongs = any(getattr(entry, "key", None) == "layers" for entry in path)
        (in_layers if belongs else rest).append(leaf)
    shared, held = bytes_per_device(rest), bytes_per_device(in_layers)
    return [shared + held * int(count) // rows.shape[1] for count in (rows >= 0).sum(axis=1)]


def temporary_bytes(compiled):
    """Temporary bytes per device of a compiled program (`jit(f).lower(...).compile()`), None where XLA does not say."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
