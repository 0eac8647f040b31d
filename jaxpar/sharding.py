"""Rules: which logical dim of an array goes to which mesh axis. One object says it for the whole model.

A model names the dims of its parameters ("width", "mlp", ...) and knows no mesh. Rules turn such names into
`PartitionSpec`s and refuse what cannot be meant: an axis that does not exist, a dim without a rule, two dims of one
array on one axis, a size the axis does not divide.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.errors import SettingError
from jaxpar.mesh import AXES, divisors


def _is_dims(x):
    return isinstance(x, tuple)


def _is_spec(x):
    return isinstance(x, PartitionSpec)


def _as_tuple(axis):
    return () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)


def _nearest(word, words):
    near = difflib.get_close_matches(str(word), list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


@dataclasses.dataclass(frozen=True)
class Rules:
    """A map from logical dim to mesh axis (or None: not split; or a tuple of axes, the first one major).

    Raises:
      SettingError: a rule names an axis that is not one of `axes`, or one axis twice.
    """

    table: tuple = ()
    axes: tuple = AXES

    @classmethod
    def of(cls, table: Mapping, axes=AXES):
        """Rules from a mapping such as ``{"mlp": "tensor", "width": None}``."""
        return cls(tuple(table.items()), tuple(axes))

    def __post_init__(self):
        for dim, axis in self.table:
            for name in _as_tuple(axis):
                if name not in self.axes:
                    raise SettingError(
                        f"rule {dim}={axis!r} names no axis of the mesh: {name!r} is unknown. "
                        f"Use one of {', '.join(self.axes)}, or None.{_nearest(name, self.axes)}"
                    )
            if len(set(_as_tuple(axis))) != len(_as_tuple(axis)):
                raise SettingError(
                    f"rule {dim}={axis!r} uses an axis twice: a dim is split over an axis once. Drop one."
                )

    def axis(self, dim):
        """The mesh axis, tuple of axes, or None for one logical dim; None (no name) is not split."""
        table = dict(self.table)
        if dim is not None and dim not in table:
            raise SettingError(
                f"dim {dim!r} has no rule: every named dim must say where it goes. "
                f"Name one of {', '.join(table)}, or add a rule.{_nearest(dim, table)}"
            )
        return table.get(dim)

    def spec(self, dims):
        """The `PartitionSpec` of an array whose dims have these names (None for a dim that is never split)."""
        taken = {}
        for dim in dims:
            for axis in _as_tuple(self.axis(dim)):
                if axis in taken:
                    raise SettingError(
                        f"dims {tuple(dims)} collide: {taken[axis]!r} and {dim!r} of one array both go to mesh axis "
                        f"{axis!r}, which can split only one. Map one of them to None."
                    )
                taken[axis] = dim
        axes = [self.axis(dim) for dim in dims]
        while axes and axes[-1] is None:  # one spelling for one sharding: P("x") and P("x", None) differ to a cache
            axes.pop()
        return PartitionSpec(*axes)

    def specs(self, dims_tree):
        """`spec` for a tree whose leaves are tuples of dim names."""
        return jax.tree.map(self.spec, dims_tree, is_leaf=_is_dims)

    def replace(self, **changes):
        """These rules with some dims sent elsewhere: ``rules.replace(vocab=None)``."""
        return Rules(tuple({**dict(self.table), **changes}.items()), self.axes)

    def check_sizes(self, sizes, axis_sizes, setting="model"):
        """Checks that every split dim divides.

        Args:
          sizes: logical dim -> size.
          axis_sizes: mesh axis -> number of devices (`mesh.shape` will do).
          setting: prefix of the dims' names in messages.

        Raises:
          SettingError: names the dim, the axis and the axis sizes that would do.
        """
        for dim, size in sizes.items():
            axes = _as_tuple(self.axis(dim))
            parts = math.prod(axis_sizes[axis] for axis in axes)
            if size % parts:
                names = " x ".join(f"mesh.{axis}={axis_sizes[axis]}" for axis in axes)
                raise SettingError(
                    f"{setting}.{dim}={size} does not divide by {names}: each device holds an equal share of it. "
                    f"Use a multiple of {parts}, or {' x '.join(f'mesh.{axis}' for axis in axes)} of "
                    f"{', '.join(map(str, divisors(size)))}."
                )


# Megatron's split of a transformer: heads and the MLP's width over `tensor`, everything along `width` whole.
# Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
TENSOR_RULES = Rules.of(
    {
        "vocab": "tensor",
        "width": None,
        "num_kv_heads": "tensor",
        "head_dim": None,
        "mlp_width": "tensor",
    }
)


def spread(spec, shape, sizes, axes=AXES):
    """The spec of an array that is split over further mesh axes, each on a dim that it divides.

    Axes that `spec` has stay where they are. `data` and `pipe` take the first dim that divides and is not split over
    `tensor`, whose shares XLA would have to move; `tensor` takes the last that divides. An axis that finds none is left
    out: the array stays whole over it.

    Args:
      spec: PartitionSpec.
      shape: the array's.
      sizes: mesh axis -> number of devices (`mesh.shape` will do).
      axes: those to add, in the order in which they choose.

    Returns:
      PartitionSpec.
    """
    dims = [_as_tuple(split) for split in (*spec, *[None] * (len(shape) - len(spec)))]
    for axis in axes:
        if sizes[axis] == 1 or any(axis in split for split in dims):
            continue
        for d in range(len(dims)) if axis != "tensor" else reversed(range(len(dims))):
            free = axis == "tensor" or "tensor" not in dims[d] or sizes["tensor"] == 1
            if free and shape[d] % (sizes[axis] * math.prod(sizes[other] for other in dims[d])) == 0:
                dims[d] = (*dims[d], axis)
                break
    return _spec_of(dims)


def keep_axes(spec, axes):
    """The spec with these mesh axes alone."""
    return _spec_of([tuple(axis for axis in _as_tuple(dim) if axis in axes) for dim in spec])


def _spec_of(dims):
    """One spelling for one sharding: P("x") and P("x", None) differ to a cache, as P("x") and P(("x",)) do."""
    axes = [None if not dim else dim[0] if len(dim) == 1 else dim for dim in dims]
    while axes and axes[-1] is None:
        axes.pop()
    return PartitionSpec(*axes)


def param_shardings(mesh, specs, vocabulary="ends", tables=("table",)):
    """`NamedSharding`s of the packed parameters {"embed", "layers", "head"}.

    Args:
      mesh: the device mesh.
      specs: tree of PartitionSpec without the packed dim, `tensor` axis only (as `param_specs` of the pipeline);
        "layers" a list of such where rows are apart.
      vocabulary: "ends" (embedding and head whole on every rank) or "pipe" (their tables split over pipe, then tensor).
      tables: names of the leaves that are [vocabulary, width] tables.

    Returns:
      Tree like `specs`: layers are split over `pipe` along dim 0, the rest as `vocabulary` says.
    """

    def layer(spec):
        return NamedSharding(mesh, PartitionSpec("pipe", *spec))

    def ends(path, spec):
        if vocabulary == "pipe" and getattr(path[-1], "key", None) in tables:
            first, rest = (spec[0], spec[1:]) if len(spec) else (None, ())
            spec = PartitionSpec(("pipe", *_as_tuple(first)), *rest)
        return NamedSharding(mesh, spec)

    out = {"layers": jax.tree.map(layer, specs["layers"], is_leaf=_is_spec)}
    for part in ("embed", "head"):
        if part in specs:
            out[part] = jax.tree_util.tree_map_with_path(ends, specs[part], is_leaf=_is_spec)
    return out
