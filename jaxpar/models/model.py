"""What the trainer needs to know of a model family, and parameters laid out for the pipeline.

Parameters are {"embed", "layers", "head"}. The layers' leaves are stacked along dim 0: by global layer index, or
*packed*: [num_ranks * rows, ...] with the rows of a rank together, so that dim 0 splits over the mesh axis ``pipe``;
or packed and *apart*: a list with a tree a row, leaves [num_ranks, ...].
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# Constants folded into the seed's key, one stream a part. A layer folds its global index besides, never its rank or
# stage, so that the initial parameters are the seed's alone.
_EMBED, _HEAD, _LAYER = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as the pipeline sees it: functions of pure parameter trees, and no mesh.

    Attributes:
      num_layers: layers of the whole model.
      layer: (p, x, side, rng) -> x, or (x, aux); p is one layer's parameters.
      embed: (p_embed, inputs_BT) -> x_BTD.
      loss: (p_head, y_BTD, labels_BT) -> (sum of nats, counted tokens).
      init_layer: (key, index) -> one layer's parameters; key is the seed's, index the global layer index.
      init_embed, init_head: (key) -> parameters.
      dims: {"embed", "layers", "head"}: trees of tuples of logical dim names, one a leaf; layers': of one layer.
      tied: names of embedding tables that the head uses too (`tied` of `value_and_grad`).
    """

    num_layers: int
    layer: Callable
    embed: Callable
    loss: Callable
    init_layer: Callable
    init_embed: Callable
    init_head: Callable
    dims: dict
    tied: tuple = ()

    def head(self, params):
        """The head's parameters with the tied tables among them, as `loss` wants them."""
        return {**params["head"], **{name: params["embed"][name] for name in self.tied}}


def layer_key(key, index):
    """The key of the layer with this global index."""
    return jax.random.fold_in(jax.random.fold_in(key, _LAYER), index)


def embed_key(key):
    """The embedding's key."""
    return jax.random.fold_in(key, _EMBED)


def head_key(key):
    """The head's key."""
    return jax.random.fold_in(key, _HEAD)


def init_params(model, key, rows=None, apart=False):
    """Initial parameters; under `jit` with shardings, nothing is made whole on any device.

    Args:
      model: Model.
      key: PRNG key of the seed.
      rows: int [...], the global layer index of each row of the stacked layers, -1 for padding (zeros), as
        `Layout.rows`; default: all layers by global index.
      apart: whether each row [num_ranks] is a tree of its own, as `Layout.apart` makes them.

    Returns:
      {"embed", "layers", "head"}; layers stacked along dim 0 in the order of the flattened rows, or the list of them.
    """
    rows = jnp.asarray(np.arange(model.num_layers) if rows is None else rows, jnp.int32)

    def row(index):
        leaves = model.init_layer(key, jnp.maximum(index, 0))
        return jax.tree.map(lambda leaf: jnp.where(index >= 0, leaf, jnp.zeros_like(leaf)), leaves)

    layers = [jax.vmap(row)(ranks) for ranks in rows.T] if apart else jax.vmap(row)(rows.reshape(-1))
    return {"embed": model.init_embed(key), "layers": layers, "head": model.init_head(key)}


def layer_params(params, layout, index):
    """One layer's parameters by its global index, wherever the layout put it.

    Args:
      params: packed parameters (together or apart), or their "layers" alone.
      layout: `Layout`; its `rows` [num_ranks, rows] say which layer is where.
      index: global layer index.

    Raises:
      IndexError: there is no such layer.
    """
    found = np.flatnonzero(np.asarray(layout.rows).reshape(-1) == index)
    if index < 0 or found.size == 0:
        raise IndexError(f"layer {index} is not one of the {int(np.max(layout.rows)) + 1} layers")
    layers = params["layers"] if isinstance(params, dict) and "layers" in params else params
    if isinstance(layers, list):
        rank, row = divmod(int(found[0]), len(layers))
        return jax.tree.map(lambda leaf: leaf[rank], layers[row])
    return jax.tree.map(lambda leaf: leaf[int(found[0])], layers)
