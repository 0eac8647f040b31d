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


def psum_scatter(a, axes, dim):
    """`lax.psum_scatter`, each device keeping its slice of ``dim``, as `psum`; float32 only, for the same reason.

    Args:
      a: array whose ``dim`` the axes' devices divide.
      axes: an axis name or a tuple of them, the first one major.
      dim: which dim is cut.
    """
    axes = _proper(axes)
    return lax.psum_scatter(a, axes, scatter_dimension=dim, tiled=True) if axes else a


def reduce_to(axes, grad, param_spec, grad_spec):
    """One gradient summed over the devices that hold the same part of its parameter: into parts where it can be.

    Args:
      axes: the manual axes.
      grad: float32, this device's share of the sum.
      param_spec: PartitionSpec of the parameter; over its axes nothing is summed.
      grad_spec: the result's. An axis that splits a dim here and none of the parameter is scattered over it; over the
        axes in neither the result is whole.
    """
    rest = [axis for axis in axes if axis not in _axes_of(*param_spec)]
    for dim, split in enumerate(grad_spec):
        more = tuple(axis for axis in _axes_of(split) if axis in rest)
        grad = psum_scatter(grad, more, dim)
        rest = [axis for axis in rest if axis not in more]
    return psum(grad, tuple(rest))


def _axes_of(*dims):
    """All axis names of these entries of a PartitionSpec."""
    return [name for axes in dims if axes is not None for name in ((axes,) if isinstance(axes, str) else axes)]


def _proper(axes):
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if lax.axis_size(axis) > 1)
