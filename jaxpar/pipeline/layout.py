"""Which rank holds which layer, and the order of the stacked parameters on the devices.

Parameters are known to users by *global layer index*: leaves [L, ...]. On the devices they are *packed*: leaves
[P * N, ...], split over ``pipe`` along dim 0, where a rank's N rows are its chunks' layers in order. A chunk begins at
the same row on all ranks; where they have unlike numbers of layers, the shorter ones end in rows of zeros that no
action reads.

Unrolled stages take the rows *apart*: a list of N trees with leaves [P, ...], so that each layer's parameters are an
array of their own that nothing has to be cut from.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.errors import SettingError


def split_evenly(num_layers, num_stages):
    """Layers of each stage, in stage order: as even as can be, the longer ones in the middle.

    The first and last stage also have the embedding and the head, so they are the last to get one more.

    Raises:
      SettingError: fewer layers than stages.
    """
    if num_layers < num_stages:
        raise SettingError(
            f"model.num_layers={num_layers} is less than the {num_stages} stages: every stage needs a layer. "
            f"Use at least {num_stages} layers, or fewer ranks or chunks."
        )
    base, more = divmod(num_layers, num_stages)
    middle_first = sorted(range(num_stages), key=lambda s: (abs(2 * s - (num_stages - 1)), s))
    longer = set(middle_first[:more])
    return tuple(base + (s in longer) for s in range(num_stages))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where every layer lives.

    Attributes:
      num_ranks, num_chunks: the schedule's.
      placement: "loop" (stage = chunk * P + rank) or "v" (odd chunks run backwards over the ranks).
      stage_layers: number of layers of each stage, in stage order; its sum is the model's number of layers.

    Raises:
      SettingError: not one positive number a stage.
    """

    num_ranks: int
    num_chunks: int
    placement: str
    stage_layers: tuple

    def __post_init__(self):
        stages = self.num_ranks * self.num_chunks
        if len(self.stage_layers) != stages or min(self.stage_layers) < 1:
            raise SettingError(
                f"pipeline.stage_layers={tuple(self.stage_layers)} does not give each of the {stages} stages "
                f"(ranks x chunks) its layers: every stage needs at least one. Give {stages} positive numbers."
            )

    @classmethod
    def of(cls, schedule, num_layers=None, stage_layers=None):
        """The layout of a schedule: even stages for ``num_layers``, or the given ``stage_layers``."""
        if stage_layers is None:
            stage_layers = split_evenly(num_layers, schedule.num_ranks * schedule.num_chunks)
        elif num_layers is not None and sum(stage_layers) != num_layers:
            raise SettingError(
                f"pipeline.stage_layers={tuple(stage_layers)} adds up to {sum(stage_layers)}, but "
                f"model.num_layers={num_layers}: each layer must be owned exactly once. Make them agree."
            )
        return cls(schedule.num_ranks, schedule.num_chunks, schedule.placement, tuple(stage_layers))

    @property
    def num_layers(self):
        """Layers of the whole model."""
        return sum(self.stage_layers)

    def stage_of(self, rank, chunk):
        """The stage that is ``rank``'s chunk-th."""
        backwards = self.placement == "v" and chunk % 2
        return chunk * self.num_ranks + (self.num_ranks - 1 - rank if backwards else rank)

    @property
    def last_rank(self):
        """The rank that owns the last stage."""
        chunk = self.num_chunks - 1
        return next(r for r in range(self.num_ranks) if self.stage_of(r, chunk) == len(self.stage_layers) - 1)

    @functools.cached_property
    def count(self):
        """int32 [P, V]: layers of each rank's chunks."""
        return np.array(
            [[self.stage_layers[self.stage_of(r, v)] for v in range(self.num_chunks)] for r in range(self.num_ranks)],
            np.int32,
        )

    @functools.cached_property
    def first(self):
        """Tuple [V]: the row where a chunk's layers begin, the same on all ranks."""
        most = self.count.max(axis=0)
        return tuple(int(row) for row in np.cumsum(most) - most)

    @functools.cached_property
    def rows(self):
        """int32 [P, N]: the global layer index in each row of each rank; -1 where there is none."""
        starts = np.cumsum((0, *self.stage_layers))
        rows = np.full((self.num_ranks, int(self.count.max(axis=0).sum())), -1, np.int32)
        for rank in range(self.num_ranks):
            for chunk, row in enumerate(self.first):
                stage = self.stage_of(rank, chunk)
                rows[rank, row : row + self.stage_layers[stage]] = np.arange(starts[stage], starts[stage + 1])
        return rows

    def pack(self, stacked):
        """[L, ...] by global layer index -> [P * N, ...]; zeros in rows without a layer. A pytree of JAX arrays."""
        rows = self.rows.reshape(-1)
        if np.array_equal(rows, np.arange(self.num_layers)):
            return stacked

        def leaf(a):
            taken = jnp.take(a, np.maximum(rows, 0), axis=0)
            empty = (rows < 0).reshape(-1, *[1] * (a.ndim - 1))
            return jnp.where(empty, jnp.zeros((), a.dtype), taken) if (rows < 0).any() else taken

        return jax.tree.map(leaf, stacked)

    def apart(self, packed):
        """Packed rows [P * N, ...] as a list of N trees with leaves [P, ...]."""
        num_ranks, num_rows = self.rows.shape
        split = jax.tree.map(lambda a: a.reshape(num_ranks, num_rows, *a.shape[1:]), packed)
        return [jax.tree.map(lambda a, n=n: a[:, n], split) for n in range(num_rows)]

    def together(self, layers):
        """The inverse of ``apart``; packed rows stay as they are."""
        if not isinstance(layers, list):
            return layers
        return jax.tree.map(lambda *rows: jnp.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:]), *layers)

    def unpack(self, packed):
        """The inverse of ``pack``, for packed rows together or apart."""
        packed = self.together(packed)
        rows = self.rows.reshape(-1)
        if np.array_equal(rows, np.arange(self.num_layers)):
            return packed
        where = np.empty(self.num_layers, np.int32)
        where[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        return jax.tree.map(lambda a: jnp.take(a, where, axis=0), packed)
