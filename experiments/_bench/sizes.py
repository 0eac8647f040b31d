"""The sizes that the bench runs. No JAX here: the number of devices is settled before it loads."""

import dataclasses

from jaxpar.schedule import chunk_counts


@dataclasses.dataclass(frozen=True)
class Size:
    """A decoder with tied vocabulary, and how it is split.

    Attributes:
      num_ranks: pipeline ranks, one emulated device each.
      layers_per_rank, width, num_heads, mlp_width, vocab_size: of the decoder.
      seq_len: tokens of a microbatch, which is one row.
      num_microbatches: tuple of ints, each measured apart.
    """

    num_ranks: int
    layers_per_rank: int
    width: int
    num_heads: int
    mlp_width: int
    vocab_size: int
    seq_len: int
    num_microbatches: tuple

    @property
    def num_layers(self):
        """Layers of the whole model."""
        return self.num_ranks * self.layers_per_rank


FULL = Size(
    num_ranks=4,
    layers_per_rank=2,
    width=512,
    num_heads=4,
    mlp_width=2048,
    vocab_size=8192,
    seq_len=128,
    num_microbatches=(8, 32),
)
QUICK = Size(
    num_ranks=2,
    layers_per_rank=2,
    width=32,
    num_heads=2,
    mlp_width=64,
    vocab_size=96,
    seq_len=16,
    num_microbatches=(4,),
)


def two_ranks(size):
    """The same model on two ranks, for the wall clock on two cores; the first number of microbatches alone."""
    return dataclasses.replace(
        size,
        num_ranks=2,
        layers_per_rank=size.num_layers // 2,
        num_microbatches=size.num_microbatches[:1],
    )


def num_chunks_of(schedule):
    """Chunks a rank that the bench gives to a schedule: two where it takes them."""
    return max(chunk_counts(schedule))
