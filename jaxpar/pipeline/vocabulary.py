"""Embedding and head as values a schedule can place: whole on the end ranks, or split over all ranks.

With ``vocabulary="ends"`` any callable serves as embedding and loss. With ``vocabulary="pipe"`` the tables are split
along the vocabulary over the mesh axis ``pipe``, so the executor must see inside: it needs the two classes below, which
are also plain callables (on one device, in tests, in evaluation).

Shape legend: B rows of a microbatch, T tokens, D width, V vocabulary (padded), S this rank's slice of it.

Source: Yeung et al. 2024, "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv:2411.05288, section 4.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.pipeline.reduce import pmax, psum

NEVER = -1e30  # a logit with no probability; finite, so that no inf - inf can arise


@dataclasses.dataclass(frozen=True)
class VocabularyEmbedding:
    """Looks tokens up in ``p_embed[table]``, float [V, D]; then ``finish(p_embed, rows_BTD)`` if given (a cast)."""

    table: str = "table"
    finish: Callable | None = None

    def __call__(self, p_embed, tokens_BT):
        """x [B, T, D] for int32 tokens in [0, V)."""
        return self.complete(p_embed, jnp.take(p_embed[self.table], tokens_BT, axis=0))

    def complete(self, p_embed, rows_BTD):
        """What follows the lookup; replicated work, cheap beside it."""
        return rows_BTD if self.finish is None else self.finish(p_embed, rows_BTD)

    def without_table(self, p_embed):
        """The parameters that every rank holds whole."""
        return {name: value for name, value in p_embed.items() if name != self.table}


@dataclasses.dataclass(frozen=True)
class VocabularyLoss:
    """Cross-entropy of ``features(p_head, y) @ p_head[table].T``, in nats.

    Attributes:
      features: (p_head, y_BTD) -> z_BTD, the final norm say; must not read the table.
      table: name of the [V, D] table in p_head (for a tied table the executor puts the embedding's there).
      vocab_size: rows at and above it are padding: no probability, no gradient. None: all rows count.
    """

    features: Callable
    table: str = "table"
    vocab_size: int | None = None

    def __call__(self, p_head, y_BTD, labels_BT):
        """(nats, tokens): the sum over counted tokens, float32, and their number, int32."""
        z_BTD = self.features(p_head, y_BTD)
        return token_loss(self.logits(p_head[self.table], z_BTD), labels_BT)

    def logits(self, table_SD, z_BTD, first_row=0):
        """Float32 logits [B, T, S] for table rows first_row and on; padding rows get a logit with no probability."""
        logits_BTS = jnp.einsum(
            "btd,sd->bts", z_BTD, table_SD.astype(z_BTD.dtype), preferred_element_type=jnp.float32
        ).astype(jnp.float32)
        if self.vocab_size is None:
            return logits_BTS
        row_S = first_row + jnp.arange(table_SD.shape[0])
        return jnp.where(row_S < self.vocab_size, logits_BTS, NEVER)


def token_loss(logits_BTV, labels_BT):
    """Cross-entropy summed over tokens, and how many tokens counted.

    A sum, not a mean: microbatch sums add up, microbatch means do not. The label's logit is selected by comparison, not
    gathered, so that a vocabulary split over a mesh axis stays split.

    Args:
      logits_BTV: float; computed in float32 whatever its width.
      labels_BT: int32 in [0, V); -1 marks a token that does not count.

    Returns:
      (nats, tokens): float32 and int32 scalars.

    Raises:
      ValueError: leading shapes differ (at trace time).
    """
    if logits_BTV.shape[:-1] != labels_BT.shape:
        raise ValueError(f"logits {logits_BTV.shape} and labels {labels_BT.shape} differ in their leading dimensions")
    logits_BTV = logits_BTV.astype(jnp.float32)
    peak_BT = lax.stop_gradient(jnp.max(logits_BTV, axis=-1))
    total_BT = jnp.sum(jnp.exp(logits_BTV - peak_BT[..., None]), axis=-1)
    nats_BT = peak_BT + jnp.log(total_BT) - _label_logit(logits_BTV, labels_BT)
    counted_BT = labels_BT >= 0
    return jnp.sum(jnp.where(counted_BT, nats_BT, 0.0)), jnp.sum(counted_BT, dtype=jnp.int32)


def _label_logit(logits_BTS, labels_BT, first_row=0):
    rows = first_row + lax.broadcasted_iota(labels_BT.dtype, logits_BTS.shape, logits_BTS.ndim - 1)
    return jnp.sum(jnp.where(rows == labels_BT[..., None], logits_BTS, 0.0), axis=-1)


def split_lookup(embed, p_embed, tokens_BT, axis):
    """The embedding where each rank of the manual ``axis`` holds a slice of the table's rows; the same x on all."""
    return embed.complete(p_embed, _rows(p_embed[embed.table], tokens_BT, axis))


def lookup_grad(embed, p_embed, tokens_BT, dx_BTD, grad, axis=None):
    """Adds the embedding's gradient to ``grad`` (structure of p_embed, float32), in place and row by row.

    Args:
      embed: VocabularyEmbedding.
      dx_BTD: gradient of the embedding's output.
      axis: None where the table is whole here. Else the manual axis that splits its rows: each rank adds to its own,
        ``dx_BTD`` must be the same on all, and leaves besides the table are counted on the first rank alone, since
        the executor sums them over the axis.
    """
    table_SD = p_embed[embed.table]
    rest = embed.without_table(p_embed)
    d_rest, d_rows_BTD = rest, dx_BTD
    if embed.finish is not None:
        rows_BTD = _rows(table_SD, tokens_BT, axis)
        _, vjp = jax.vjp(lambda rest, rows: embed.complete({**rest, embed.table: table_SD}, rows), rest, rows_BTD)
        d_rest, d_rows_BTD = vjp(dx_BTD)
    out = dict(grad)
    if embed.finish is not None:
        out.update({name: _count_once(grad[name], d_rest[name], 0, axis) for name in rest})
    local_BT, mine_BT = _local_rows(table_SD, tokens_BT, axis)
    d_rows_BTD = jnp.where(mine_BT[..., None], d_rows_BTD, 0).astype(jnp.float32)
    out[embed.table] = grad[embed.table].at[local_BT].add(d_rows_BTD)
    return out


def _rows(table_SD, tokens_BT, axis):
    local_BT, mine_BT = _local_rows(table_SD, tokens_BT, axis)
    rows_BTD = jnp.take(table_SD, local_BT, axis=0)
    if axis is None:
        return rows_BTD
    # float32: a narrower reduction over a manual axis aborts XLA on CPU (and one rank alone contributes: exact).
    rows_BTD = jnp.where(mine_BT[..., None], rows_BTD, 0).astype(jnp.float32)
    return psum(rows_BTD, axis).astype(table_SD.dtype)


def _local_rows(table_SD, tokens_BT, axis):
    first_row = 0 if axis is None else lax.axis_index(axis) * table_SD.shape[0]
    local_BT = tokens_BT - first_row
    mine_BT = (local_BT >= 0) & (local_BT < table_SD.shape[0])
    return jnp.where(mine_BT, local_BT, 0), mine_BT


def _count_once(total, update, owner, axis):
    counts = True if axis is None else lax.axis_index(axis) == owner
    return jax.tree.map(lambda t, u: t + jnp.where(counts, u, 0).astype(t.dtype), total, update)


def split_loss(loss, p_head, y_BTD, labels_BT, scale, grad, owner, axis):
    """Loss and all its gradients at once, each rank of the manual ``axis`` with its slice of the vocabulary.

    Args:
      loss: VocabularyLoss.
      p_head: holds the table's local slice [S, D].
      y_BTD: the last stage's output, the same on all ranks.
      scale: float32, what one nat weighs in the objective.
      grad: float32, structure of p_head; returned with this microbatch's gradient added (leaves besides the table on
        rank ``owner`` alone, since the executor sums them over the axis).

    Returns:
      (nats, tokens, dy_BTD, grad): nats and tokens are the whole vocabulary's, the same on all ranks.
    """
    table_SD = p_head[loss.table]
    rest = {name: value for name, value in p_head.items() if name != loss.table}
    z_BTD, vjp = jax.vjp(lambda rest, y: loss.features({**rest, loss.table: table_SD}, y), rest, y_BTD)
    first_row = lax.axis_index(axis) * table_SD.shape[0]
    logits_BTS = loss.logits(table_SD, z_BTD, first_row)
    peak_BT = pmax(jnp.max(logits_BTS, axis=-1), axis)
    odds_BTS = jnp.exp(logits_BTS - peak_BT[..., None])
    sums = jnp.stack([jnp.sum(odds_BTS, axis=-1), _label_logit(logits_BTS, labels_BT, first_row)])
    total_BT, label_BT = psum(sums, axis)
    counted_BT = labels_BT >= 0
    nats = jnp.sum(jnp.where(counted_BT, peak_BT + jnp.log(total_BT) - label_BT, 0.0))

    weight_BT = jnp.where(counted_BT, scale, 0.0)
    rows = first_row + lax.broadcasted_iota(labels_BT.dtype, logits_BTS.shape, logits_BTS.ndim - 1)
    hot_BTS = rows == labels_BT[..., None]
    d_logits_BTS = odds_BTS * (weight_BT / total_BT)[..., None] - jnp.where(hot_BTS, weight_BT[..., None], 0.0)
    d_logits_BTS = d_logits_BTS.astype(z_BTD.dtype)
    narrow = table_SD.astype(z_BTD.dtype)
    dz_BTD = jnp.einsum("bts,sd->btd", d_logits_BTS, narrow, preferred_element_type=jnp.float32)
    d_table_SD = jnp.einsum("bts,btd->sd", d_logits_BTS, z_BTD, preferred_element_type=jnp.float32)
    dz_BTD = psum(dz_BTD.astype(jnp.float32), axis).astype(z_BTD.dtype)
    d_rest, dy_BTD = vjp(dz_BTD)
    out = {name: _count_once(grad[name], d_rest[name], owner, axis) for name in rest}
    out[loss.table] = grad[loss.table] + d_table_SD
    return nats, jnp.sum(counted_BT, dtype=jnp.int32), dy_BTD, out
