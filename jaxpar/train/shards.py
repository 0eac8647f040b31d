"""ZeRO-1: every device keeps the optimizer's state of a part of its parameters, and updates that part.

Gradients are summed right into these parts once a step, and the new parameters gathered once. The parts are cut along
dims that divide: over `data`, and over `pipe` for the embedding and the head that every rank has. Norms, which
every tensor rank has whole, stay so (a second gather costs more than they do). What divides by nothing stays whole.

Rows of layers come first: where the data ranks divide them, each has whole layers, and an optimizer that works on
matrices needs no other rank.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
"""

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.models.model import init_params
from jaxpar.sharding import TENSOR_RULES, keep_axes, param_shardings, spread

_PARTS = ("embed", "layers", "head")
_MANUAL = ("data", "pipe")


def make_shardings(model, mesh, rows, vocabulary="ends", rules=TENSOR_RULES, apart=False):
    """`NamedSharding`s of the packed parameters of a Model, see `jaxpar.sharding.param_shardings`.

    Args:
      model: Model.
      mesh: the device mesh.
      rows: int [num_ranks, rows], `Layout.rows`.
      vocabulary: "ends" or "pipe".
      rules: Rules for the model's dims.
      apart: whether each row of layers is a tree of its own, see `init_params`.
    """
    specs = rules.specs(model.dims)
    if apart:
        specs = {**specs, "layers": [specs["layers"]] * rows.shape[1]}
    return param_shardings(mesh, specs, vocabulary)


def update_shardings(model, mesh, rows, vocabulary="ends", rules=TENSOR_RULES, apart=False):
    """`NamedSharding`s of the parts in which parameters are updated. Takes what `make_shardings` takes.

    Give them as `shards` to `make_grad_fn`, `state_shardings` and `make_train_step`.
    """
    whole = make_shardings(model, mesh, rows, vocabulary, rules, apart)
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0), rows, apart))
    return jax.tree.map(lambda s, a: NamedSharding(mesh, spread(s.spec, a.shape, mesh.shape, _MANUAL)), whole, shapes)


def manual_specs(shards):
    """The shards over `data` and `pipe` alone, as `grad_specs` of `value_and_grad` wants them."""
    return jax.tree.map(lambda sharding: keep_axes(sharding.spec, _MANUAL), shards)


def opt_state_shardings(opt_state, params, shardings, split):
    """`NamedSharding`s of an optimizer's state.

    A leaf belongs to a parameter if its path ends as the parameter's does. Of the same shape (a moment, a float32
    copy), it lies as the parameter is updated. With one dim less (a factored moment), it lies as the dims it has; any
    other leaf of the layers splits over `pipe` along its rows; and these, which are small, are then split over all axes
    that divide them. The rest is replicated.

    Args:
      opt_state: the state, of ShapeDtypeStructs; leaves below a dict key "embed", "layers" or "head" belong there.
      params: packed parameters, of ShapeDtypeStructs.
      shardings: how they are updated: `update_shardings`, or where they lie.
      split: whether leaves are split over all axes (ZeRO-1).
    """
    mesh = jax.tree.leaves(shardings)[0].mesh
    known, apart = {}, isinstance(params["layers"], list)
    for (path, leaf), sharding in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
    ):
        part, inner = _place(path, apart)
        known.setdefault(part, []).append((inner, leaf.shape, sharding.spec))

    def place(path, leaf):
        part, inner = _place(path, apart)
        spec, own = _spec(leaf.shape, part, inner, known.get(part, []))
        return NamedSharding(mesh, spread(spec, leaf.shape, mesh.shape) if split and part and not own else spec)

    return jax.tree_util.tree_map_with_path(place, opt_state)


def _place(path, apart):
    """((part, row or None), the keys after it) of a leaf of parameters or of their state; None: in no part."""
    keys = [getattr(entry, "key", getattr(entry, "idx", None)) for entry in path]
    keys = [key for key in keys if key is not None]
    at = next((i for i, key in enumerate(keys) if key in _PARTS), None)
    if at is None:
        return None, tuple(keys)
    by_row = apart and keys[at] == "layers"
    return (keys[at], keys[at + 1] if by_row else None), tuple(keys[at + 1 + by_row :])


def _spec(shape, part, inner, known):
    """(where a leaf of the state lies, whether that is a parameter's place); `known` has the part's parameters."""
    owners = [param for param in known if inner[len(inner) - len(param[0]) :] == param[0]]
    if owners:
        _, whole, spec = max(owners, key=lambda param: len(param[0]))
        if shape == whole:
            return spec, True
        axes = [*spec, *[None] * (len(whole) - len(spec))]
        for dim in range(part[0] == "layers", len(whole)):
            if shape == whole[:dim] + whole[dim + 1 :]:
                return PartitionSpec(*axes[:dim], *axes[dim + 1 :]), False
    rows = known[0][1][:1] if known and part[0] == "layers" else None
    return PartitionSpec("pipe") if rows and shape[:1] == rows else PartitionSpec(), False
