"""The layout-free form of a training state: one array a logical tensor, layers by global index, no padding.

A run's own form is packed for its mesh, schedule and chunks. The free form knows none of them, so what one run saved
another restores, whatever its layout, and all moves are copies: bitwise.

Which leaf is what is told by its path. Below a key "layers" dim 0 is the packed rows (or there is a list of rows);
all other leaves differ in size at most, where a vocabulary is padded.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.mesh import AXES


@dataclasses.dataclass(frozen=True, eq=False)
class FreeForm:
    """How one run's trees become layout-free and come back.

    Attributes:
      layout: the run's Layout.
      packed: the run's tree as ShapeDtypeStructs with shardings.
      free: the same tree, layout-free: ShapeDtypeStructs whose shardings spread every array over the whole mesh.
    """

    layout: Any
    packed: Any
    free: Any

    @classmethod
    def of(cls, layout, packed, free):
        """The FreeForm of a run.

        Args:
          layout: Layout.
          packed: tree of ShapeDtypeStructs with NamedShardings, as the run holds it.
          free: tree of the same structure (but for lists of rows) with layers stacked by global index and nothing
            padded; shardings are chosen here.
        """
        mesh = jax.tree.leaves(packed)[0].sharding.mesh
        beside = cls(layout, packed, None)._beside

        def spread(path, free_leaf, packed_leaf):
            spec = _spread(path, free_leaf.shape, packed_leaf, mesh)
            return jax.ShapeDtypeStruct(free_leaf.shape, free_leaf.dtype, sharding=NamedSharding(mesh, spec))

        return cls(layout, packed, jax.tree_util.tree_map_with_path(spread, free, beside))

    def pick(self, choose):
        """The form of a part of the tree: `choose` takes the whole tree and returns the part."""
        return FreeForm(self.layout, choose(self.packed), choose(self.free))

    def release(self, tree, shardings=None):
        """The tree in its free form, in buffers of its own, which no later step can touch.

        Args:
          tree: arrays as `packed`.
          shardings: where the result lies (a sharding or a tree of them); default spread over the whole mesh.
        """
        out = shardings or jax.tree.map(lambda leaf: leaf.sharding, self.free)
        return jax.jit(self._release, out_shardings=out)(tree)

    def adopt(self, tree):
        """The inverse of `release`: arrays as `free` -> arrays as `packed`, in their shardings."""
        out = jax.tree.map(lambda leaf: leaf.sharding, self.packed)
        return jax.jit(self._adopt, out_shardings=out)(tree)

    def _release(self, tree):
        def leaf(path, a, free, packed):
            a = lax.with_sharding_constraint(a, _between(packed, free, a.shape))
            if _in_layers(path):
                a = self.layout.unpack(a)
            return jnp.copy(a[tuple(slice(size) for size in free.shape)])

        return jax.tree_util.tree_map_with_path(leaf, _together(tree, self.layout.together), self.free, self._beside)

    def _adopt(self, tree):
        def leaf(path, a, free, packed):
            a = lax.with_sharding_constraint(a, _between(packed, free, a.shape))
            if _in_layers(path):
                a = self.layout.pack(a)
            more = [(0, packed.shape[dim] - size) for dim, size in enumerate(a.shape)]
            a = jnp.pad(a, more) if any(added for _, added in more) else a
            return lax.with_sharding_constraint(a, _between(packed, free, a.shape))

        tree = jax.tree_util.tree_map_with_path(leaf, tree, self.free, self._beside)
        return _apart_like(tree, self.packed, self.layout)

    @property
    def _beside(self):
        """`packed` with rows joined, so that its structure is `free`'s."""
        return _together(self.packed, lambda rows: _stacked_struct(rows, self.layout))


def _in_layers(path):
    return any(getattr(key, "key", None) == "layers" for key in path)


def _holds_layers(node):
    return isinstance(node, dict) and "layers" in node


def _together(tree, join):
    """The tree with every list of rows below "layers" joined along a packed dim."""

    def node(found):
        if not _holds_layers(found):
            return found
        layers = found["layers"]
        return {**found, "layers": join(layers) if isinstance(layers, list) else layers}

    return jax.tree.map(node, tree, is_leaf=_holds_layers)


def _apart_like(tree, like, layout):
    """The inverse of `_together`, where `like` has lists."""

    def node(found, wanted):
        if not _holds_layers(found) or not isinstance(wanted["layers"], list):
            return found
        return {**found, "layers": layout.apart(found["layers"])}

    return jax.tree.map(node, tree, like, is_leaf=_holds_layers)


def _stacked_struct(rows, layout):
    """Rows apart, [P, ...] each, as one ShapeDtypeStruct [P * N, ...]."""
    num_rows = layout.rows.size

    def leaf(first, *_):
        return jax.ShapeDtypeStruct((num_rows, *first.shape[1:]), first.dtype, sharding=first.sharding)

    return jax.tree.map(leaf, *rows)


def _spread(path, shape, packed, mesh):
    """A PartitionSpec that splits an array over as many mesh axes as divide it.

    What the packed array splits stays where it is; the other axes take the first dim that they divide. Not the dim of
    layers: taking rows out of it is then each device's own work.
    """
    first = 1 if _in_layers(path) and shape else 0
    given = [*packed.sharding.spec, *[None] * len(shape)][: len(shape)]
    dims = [() if dim < first else _axes(axes) for dim, axes in enumerate(given)]
    dims = [axes if size % _ways(mesh, axes) == 0 else () for size, axes in zip(shape, dims, strict=True)]
    taken = {axis for axes in dims for axis in axes}
    for axis in reversed(AXES):
        if axis in taken or mesh.shape[axis] == 1:
            continue
        for dim in range(first, len(shape)):
            if shape[dim] % _ways(mesh, (*dims[dim], axis)) == 0:
                dims[dim] = (*dims[dim], axis)
                break
    return PartitionSpec(*(axes or None for axes in dims))


def _axes(entry):
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _ways(mesh, axes):
    return math.prod(mesh.shape[axis] for axis in axes)


def _between(packed, free, shape):
    """The sharding on the way from one form to the other: the free one's, over the axes that both split.

    From there one form is an exchange between ranks away, the other a slice or a gather. At once XLA would make every
    array whole first. Dims of a padded array that the axes do not divide stay whole.
    """
    mesh, spec = free.sharding.mesh, [*free.sharding.spec, *[None] * len(shape)][: len(shape)]
    both = {axis for axes in packed.sharding.spec for axis in _axes(axes)}
    kept = [tuple(axis for axis in _axes(axes) if axis in both) for axes in spec]
    fits = (axes or None if size % _ways(mesh, axes) == 0 else None for size, axes in zip(shape, kept, strict=True))
    return NamedSharding(mesh, PartitionSpec(*fits))
