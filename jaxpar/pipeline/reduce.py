"""Reductions over manual mesh axes, inside ``shard_map``."""

from jax import lax


def psum(tree, axes):
    """`lax.psum` over the axes of more than one device; reduce in float32 (see docs/design.md).

    With every manual axis of size one and another axis automatic, XLA's partitioner refuses the reduction ("must be in
    manual partitioning mode") instead of dropping it.

    Args:
      tree: arrays.
      axes: an axis name or a tuple of them.
    """
    axes = _proper(axes)
    return lax.psum(tree, axes) if axes else tree


def pmax(a, axes):
    """`lax.pmax`, as `psum`."""
    axes = _proper(axes)
    return lax.pmax(a, axes) if axes else a


def _proper(axes):
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if lax.axis_size(axis) > 1)
