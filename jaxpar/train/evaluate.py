"""Held-out loss: the forward pass alone, over full batches.

No pipeline is needed where nothing is kept for a backward pass: every (data, pipe) rank takes rows of its own through
all layers, and each layer's parameters visit all ranks, one layer at a time. No rank idles, and no device ever holds
more than its own parameters and one layer more.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxpar.pipeline.reduce import psum


def make_loss_fn(model, mesh, rows):
    """A jitted loss(params, batch) -> (sum of nats float32, counted tokens int32), without gradients.

    Args:
      model: Model.
      mesh: the device mesh.
      rows: int [num_ranks, rows], `Layout.rows`: params are packed accordingly.

    Returns:
      Function of packed params and a global batch {"inputs", "labels", "side"} of any number of rows.
    """
    rows = np.asarray(rows)
    places = np.stack([np.argwhere(rows == index)[0] for index in range(model.num_layers)])  # [L, (rank, row)]
    forward = functools.partial(_forward, model, jnp.asarray(places, jnp.int32))
    ranks = mesh.shape["data"] * mesh.shape["pipe"]
    part = P(("data", "pipe"))

    @jax.jit
    def loss(params, batch):
        batch = jax.tree.map(lambda leaf: _pad(leaf, ranks), {**batch, "labels": batch["labels"] + 1})
        batch["labels"] = batch["labels"] - 1  # so that padding, which is zero, became -1: it does not count
        specs = {name: P("pipe") if name == "layers" else P() for name in params}
        return jax.shard_map(
            forward, mesh=mesh, in_specs=(specs, part), out_specs=P(), axis_names={"data", "pipe"}, check_vma=False
        )(params, batch)

    return loss


def evaluate(loss_fn, params, batches):
    """Mean nats a token over all batches: sums are divided once, so unequal batches weigh as their tokens do.

    Args:
      loss_fn: (params, batch) -> (nats, tokens).
      params: its parameters.
      batches: iterable of batches.

    Returns:
      (mean nats, tokens): float and int; (0.0, 0) where nothing counts.
    """
    totals = [loss_fn(params, batch) for batch in batches]
    nats = sum(float(nats) for nats, _ in totals)
    tokens = sum(int(tokens) for _, tokens in totals)
    return (nats / tokens if tokens else 0.0), tokens


def _forward(model, places, params, batch):
    x, layers = model.embed(params["embed"], batch["inputs"]), params["layers"]
    if isinstance(layers, list):  # rows apart
        layers = jax.tree.map(lambda *rows: jnp.concatenate(rows), *layers)

    def layer(index, x):
        out = model.layer(_fetch(layers, *places[index]), x, batch.get("side", {}), None)
        return out[0] if isinstance(out, tuple) else out

    y = lax.fori_loop(0, model.num_layers, layer, x)
    nats, tokens = model.loss(model.head(params), y, batch["labels"])
    return psum(nats.astype(jnp.float32), ("data", "pipe")), psum(tokens, ("data", "pipe"))


def _fetch(layers, rank, row):
    """One layer's parameters from the rank that has them. Reduced in float32: narrower aborts XLA on CPU."""
    mine = lax.axis_index("pipe") == rank

    def one(leaf):
        value = lax.dynamic_index_in_dim(leaf, row, keepdims=False)
        return psum(jnp.where(mine, value, 0).astype(jnp.float32), "pipe").astype(leaf.dtype)

    return jax.tree.map(one, layers)


def _pad(leaf, multiple):
    return jnp.pad(leaf, [(0, -leaf.shape[0] % multiple)] + [(0, 0)] * (leaf.ndim - 1))
