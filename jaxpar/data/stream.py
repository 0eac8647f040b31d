"""Training batches in an order that depends on the seed alone, read ahead of the steps by Grain's threads.

The sample at position p of the endless sequence is a pure function of (seed, p): each epoch is a permutation of the
rows of its own. So nothing of Grain's is saved: a run that goes on, with another batch size, number of microbatches or
mesh, asks for the stream at the position where it stopped, and neither repeats nor skips a sample.
"""

import sys

import grain
import numpy as np

from jaxpar.data.rows import num_rows
from jaxpar.data.rows import rows as read_rows

_MOST_THREADS = 4  # reading is waiting for the disk; more threads only contend for Python's lock


def stream(tokens, *, seq_len, seed, global_batch, position, rows, prefetch):
    """An endless iterator of training batches.

    Args:
      tokens: Tokens of at least one row.
      seq_len: tokens a row.
      seed: 0 .. 2**32 - 1.
      global_batch: rows a step, over all processes.
      position: samples that were taken before the first batch.
      rows: int64 [B], which rows of the global batch this process needs; nothing else is read.
      prefetch: batches that threads read ahead; 0 reads each when it is asked for.

    Returns:
      Grain's iterator of batches of B rows as `jaxpar.data.rows.rows` gives them; it has `close()`.

    Raises (when a batch is taken):
      SettingError: an id in it is not one of the model's.
    """
    order, wanted = _order(tokens, seq_len, seed), np.asarray(rows, np.int64).tolist()

    def read(step):
        first = position + step * global_batch
        return read_rows(tokens, seq_len, [order[first + row] for row in wanted])

    options = grain.ReadOptions(num_threads=min(prefetch, _MOST_THREADS), prefetch_buffer_size=prefetch)
    return iter(grain.MapDataset.range(sys.maxsize).map(read).to_iter_dataset(options))


def sample_ids(tokens, *, seq_len, seed, position, count):
    """Which row of the data each sample is, in the stream's order.

    Args:
      tokens, seq_len, seed: as for `stream`.
      position: samples before the first.
      count: how many.

    Returns:
      int64 [count], each in 0 .. num_rows - 1; in an epoch each once.
    """
    order = _order(tokens, seq_len, seed)
    return np.array([order[at] for at in range(position, position + count)], np.int64)


def _order(tokens, seq_len, seed):
    """The endless sequence of row numbers, as a MapDataset that is indexed by position.

    Grain shuffles epoch e with seed + e: neighbouring seeds would share their orders, one epoch apart. Hence the hash.
    """
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return grain.MapDataset.range(num_rows(tokens, seq_len)).shuffle(seed).repeat()
