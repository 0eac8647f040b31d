"""The device mesh: axes ``data``, ``pipe`` and ``tensor``, and which device sits where.

Tensor groups talk most (several all-reduces a layer), data groups once a step but with every gradient, pipe
neighbours little (one activation a microbatch). So devices are dealt in the order tensor, data, pipe: a tensor group is
consecutive devices of one node, and it is the pipeline that crosses nodes.
Source: Narayanan et al. 2021, arXiv:2104.04473, section 3 (takeaway 1 and 2).

JAX is imported where devices are needed, so that settings can be checked before it loads.
"""

import math

import numpy as np

from jaxpar.errors import SettingError

AXES = ("data", "pipe", "tensor")
_MAX_LISTED = 12


def resolve_shape(num_devices, data, pipe, tensor):
    """(data, pipe, tensor) with a single -1 filled in so that the product is `num_devices`.

    Raises:
      SettingError: a size is neither positive nor -1, several are -1, or no product fits; lists factorisations that do.
    """
    sizes = dict(zip(AXES, (data, pipe, tensor), strict=True))
    for axis, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or (size < 1 and size != -1):
            raise SettingError(
                f"mesh.{axis}={size!r} is not a size: an axis has a whole number of devices, or -1 to take what the "
                f"others leave. Use one of {_listed(divisors(num_devices))}, or -1."
            )
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise SettingError(
            f"mesh.{open_axes[0]}=-1 and mesh.{open_axes[1]}=-1 cannot both be inferred: only one axis may take what "
            "the others leave. Give all sizes but one."
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and num_devices % known == 0:
        sizes[open_axes[0]] = num_devices // known
    elif open_axes or known != num_devices:
        raise SettingError(_misfit(num_devices, sizes, known))
    return tuple(int(sizes[axis]) for axis in AXES)


def make_mesh(data, pipe, tensor, devices=None):
    """A `jax.sharding.Mesh` with axes ("data", "pipe", "tensor"), all of type Auto.

    Args:
      data, pipe, tensor: sizes; one may be -1 and takes what the others leave.
      devices: sequence of devices; default all of `jax.devices()`. Their order does not matter.

    Raises:
      SettingError: the product is not the number of devices, or a tensor group would span two nodes.
    """
    import jax
    from jax.sharding import AxisType, Mesh

    devices = jax.devices() if devices is None else list(devices)
    data, pipe, tensor = resolve_shape(len(devices), data, pipe, tensor)
    groups = _tensor_groups(devices, tensor)
    array = np.empty((pipe * data, tensor), dtype=object)
    for index, group in enumerate(groups):
        array[index] = group
    array = array.reshape(pipe, data, tensor).transpose(1, 0, 2)
    return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def divisors(number):
    """All positive divisors of a positive number, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def factorizations(num_devices):
    """All (data, pipe, tensor) whose product is `num_devices`."""
    return [(d, p, num_devices // d // p) for d in divisors(num_devices) for p in divisors(num_devices // d)]


def _node(device):
    """What a tensor group must not leave: the domain of fast links, as far as the platform tells.

    A TPU slice is one such domain however many hosts it has. GPUs tell by slice_index which of them share a machine,
    also where each has a process of its own. Elsewhere a process counts as a node, which makes several CPU processes a
    faithful rehearsal of several nodes.
    """
    slice_index = getattr(device, "slice_index", None)
    if slice_index is not None:
        return slice_index
    return 0 if device.platform == "tpu" else device.process_index


def _tensor_groups(devices, tensor):
    nodes = {}
    for device in sorted(devices, key=lambda d: (_node(d), d.process_index, d.id)):
        nodes.setdefault(_node(device), []).append(device)
    groups = []
    for members in nodes.values():
        if len(members) % tensor:
            per_node = math.gcd(*map(len, nodes.values()))
            raise SettingError(
                f"mesh.tensor={tensor} does not divide a node's {len(members)} devices: a tensor group may not span "
                f"nodes, whose links are too slow for it. Use one of {_listed(divisors(per_node))}."
            )
        groups += [members[i : i + tensor] for i in range(0, len(members), tensor)]
    return groups


def _misfit(num_devices, sizes, known):
    given = " x ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
    if -1 in sizes.values():
        rule = f"leaves no whole size for the axis to infer: {known} does not divide {num_devices} device(s)"
    else:
        rule = f"does not fit: the product is {known}, but there are {num_devices} device(s)"
    wanted = tuple(sizes.values())

    def distance(shape):
        return sum(abs(math.log2(w) - math.log2(s)) for w, s in zip(wanted, shape, strict=True) if w != -1)

    fits = sorted(factorizations(num_devices), key=distance)
    options = _listed(["x".join(map(str, shape)) for shape in fits])
    return f"{given} {rule}. Use data x pipe x tensor = {options}, or -1 for one axis."


def _listed(options):
    shown = ", ".join(map(str, options[:_MAX_LISTED]))
    return shown if len(options) <= _MAX_LISTED else f"{shown}, ..."
