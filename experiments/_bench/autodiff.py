"""The baseline: GPipe as JAX users write it, by differentiating through a loop over ticks.

Forward is a ``lax.scan`` over M + P - 1 ticks in which every rank runs its stage and passes the result on; backward
is whatever JAX makes of it. That keeps every microbatch's residuals until the forward pass has ended, and every
rank computes in the bubbles too. Otherwise this is the strongest form of it that we know: embedding and head stay
outside the loop, the head runs microbatch by microbatch, and the vocabulary is split over the ranks.

Shape legend: M microbatches, B rows of one, T tokens, D width, V vocabulary (padded), S a rank's slice of it.

Source: Huang et al. 2018, "GPipe", arXiv:1811.06965; the form is that of JAX's documentation on pipelines by shard_map,
praxis and MaxText.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

PIPE = "pipe"


def gpipe_by_autodiff(model, mesh, num_microbatches, remat=False):
    """Loss and gradients by reverse-mode differentiation of a pipelined forward pass.

    Args:
      model: jaxpar.models.model.Model whose embed is a VocabularyEmbedding and whose loss is a VocabularyLoss. The
        number of layers must be a multiple of the ranks.
      mesh: jax.sharding.Mesh with an axis ``pipe``; other axes have size 1.
      num_microbatches: int; rows of the batch must be a multiple.
      remat: keep only what enters a stage and the head, and compute the rest again in the backward pass.

    Returns:
      (params, batch) -> (loss, grads), to be jitted: loss in nats per counted token, layers stacked by global index.
    """
    num_ranks = mesh.shape[PIPE]

    def loss(params, batch):
        mapped = jax.shard_map(
            functools.partial(_nats, model, num_ranks, num_microbatches, remat),
            mesh=mesh,
            axis_names={PIPE},
            in_specs=(param_specs(params), P()),
            out_specs=P(),
        )
        labels_BT = batch["labels"]
        num_tokens = jnp.maximum(jnp.sum(labels_BT >= 0), 1).astype(jnp.float32)
        return mapped(params, {"inputs": batch["inputs"], "labels": labels_BT}) / num_tokens

    return jax.value_and_grad(loss)


def param_specs(params):
    """PartitionSpecs over ``pipe``: layers and the vocabulary's tables by dim 0, the rest whole."""

    def spec(path, _):
        return P(PIPE) if path[0].key == "layers" or path[-1].key == "table" else P()

    return jax.tree_util.tree_map_with_path(spec, params)


def _nats(model, num_ranks, num_microbatches, remat, params, batch):
    """Sum of nats over the batch, on every rank the same; inside shard_map."""
    batch = jax.tree.map(lambda a: a.reshape(num_microbatches, -1, *a.shape[1:]), batch)
    x_MBTD = _embed(model.embed, params["embed"], batch["inputs"])
    stage = functools.partial(_stage, model.layer)
    head = functools.partial(_head, model.loss, num_ranks - 1)
    if remat:  # in a scan nothing is shared between the passes, so the barriers against it would only cost time
        stage = jax.checkpoint(stage, prevent_cse=False)
        head = jax.checkpoint(head, prevent_cse=False)
    y_MBTD = _ticks(stage, num_ranks, params["layers"], x_MBTD)
    p_head = model.head(params)

    def body(total, one):
        return total + head(p_head, *one), None

    return lax.scan(body, jnp.float32(0), (y_MBTD, batch["labels"]))[0]


def _ticks(stage, num_ranks, layers, x_MBTD):
    """The last rank's outputs, [M, B, T, D]; what the other ranks return has no meaning."""
    rank = lax.axis_index(PIPE)
    right = [(source, source + 1) for source in range(num_ranks - 1)]

    def tick(received, x):
        y = stage(layers, jnp.where(rank == 0, x, received))
        return lax.ppermute(y, PIPE, right), y

    # Inputs and outputs pass through the scan as its xs and ys: indexing them in the body would make the backward pass
    # carry the whole of them around.
    drain = jnp.zeros((num_ranks - 1, *x_MBTD.shape[1:]), x_MBTD.dtype)
    start = lax.pcast(jnp.zeros_like(x_MBTD[0]), PIPE, to="varying")
    _, y = lax.scan(tick, start, jnp.concatenate([x_MBTD, drain]))
    return y[num_ranks - 1 :]


def _stage(layer, layers, x_BTD):
    for index in range(jax.tree.leaves(layers)[0].shape[0]):
        x_BTD = layer(jax.tree.map(lambda a, i=index: a[i], layers), x_BTD, {}, None)
    return x_BTD


def _embed(embed, p_embed, tokens):
    """Each rank looks up the tokens in its slice of the table; one rank has each."""
    table_SD = p_embed[embed.table]
    local = tokens - lax.axis_index(PIPE) * table_SD.shape[0]
    mine = (local >= 0) & (local < table_SD.shape[0])
    rows = jnp.where(mine[..., None], jnp.take(table_SD, jnp.where(mine, local, 0), axis=0), 0)
    return embed.complete(p_embed, lax.psum(rows, PIPE))


def _head(loss, last_rank, p_head, y_BTD, labels_BT):
    """Nats of one microbatch, summed; each rank with its slice of the vocabulary."""
    y_BTD = lax.psum(jnp.where(lax.axis_index(PIPE) == last_rank, y_BTD, 0), PIPE)
    table_SD = p_head[loss.table]
    first_row = lax.axis_index(PIPE) * table_SD.shape[0]
    logits_BTS = loss.logits(table_SD, loss.features(p_head, y_BTD), first_row)
    peak_BT = lax.pmax(lax.stop_gradient(jnp.max(logits_BTS, axis=-1)), PIPE)
    rows = first_row + lax.broadcasted_iota(labels_BT.dtype, logits_BTS.shape, logits_BTS.ndim - 1)
    label_BT = jnp.sum(jnp.where(rows == labels_BT[..., None], logits_BTS, 0), axis=-1)
    odds_BT = jnp.sum(jnp.exp(logits_BTS - peak_BT[..., None]), axis=-1)
    total_BT, label_BT = lax.psum((odds_BT, label_BT), PIPE)
    return jnp.sum(jnp.where(labels_BT >= 0, peak_BT + jnp.log(total_BT) - label_BT, 0))
