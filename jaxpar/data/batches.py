"""Rows for a step, as a pure function of (seed, position), where position counts samples and nothing else.

So a run that stops and goes on, with another batch size or on another mesh, neither repeats nor skips a sample.
Shape legend: B rows, T tokens of a row.
"""

import functools

import numpy as np


def num_samples(text, seq_len):
    """Rows in an epoch; a little text at the end stays over, so that each epoch can start at an offset of its own."""
    return max((len(text) - seq_len) // seq_len, 1)


def train_batch(text, seq_len, seed, position, num_rows):
    """The rows at positions position .. position + num_rows - 1 of an endless shuffled sequence.

    Every epoch visits each row of the text once, in an order and from an offset of its own.

    Args:
      text: uint8 [N], N > seq_len.
      position: samples before this batch.

    Returns:
      {"inputs": int32 [B, T], "labels": int32 [B, T]}: labels are inputs shifted by one token.
    """
    size = num_samples(text, seq_len)
    starts = np.empty(num_rows, np.int64)
    for row, sample in enumerate(range(position, position + num_rows)):
        order, offset = _epoch(len(text), seq_len, seed, sample // size)
        starts[row] = offset + seq_len * order[sample % size]
    return _rows(text, starts, seq_len)


@functools.lru_cache(maxsize=4)
def _epoch(length, seq_len, seed, epoch):
    rng = np.random.default_rng([seed, epoch])
    size = max((length - seq_len) // seq_len, 1)
    spare = length - 1 - size * seq_len
    return rng.permutation(size), int(rng.integers(min(spare, seq_len) + 1))


def held_out_starts(text, seq_len, max_bytes):
    """Starts of the rows an evaluation reads: disjoint, and evenly spread where the text is longer than max_bytes."""
    count = max((len(text) - 1) // seq_len, 1)
    wanted = min(count, max(max_bytes // seq_len, 1))
    return (np.arange(wanted) * count // wanted) * seq_len


def held_out_batches(text, seq_len, max_bytes, num_rows):
    """Batches of one shape that hold every held-out row once.

    Rows that fill up the last batch have labels -1, which do not count, so the mean over tokens is the whole set's.

    Returns:
      tuple of {"inputs", "labels"}, int32 [num_rows, T].
    """
    rows = _rows(text, held_out_starts(text, seq_len, max_bytes), seq_len)
    missing = -len(rows["inputs"]) % num_rows
    inputs = np.pad(rows["inputs"], ((0, missing), (0, 0)))
    labels = np.pad(rows["labels"], ((0, missing), (0, 0)), constant_values=-1)
    return tuple(
        {"inputs": inputs[first : first + num_rows], "labels": labels[first : first + num_rows]}
        for first in range(0, len(inputs), num_rows)
    )


def _rows(text, starts, seq_len):
    index_BT = starts[:, None] + np.arange(seq_len + 1)
    rows_BT = text[index_BT].astype(np.int32)
    return {"inputs": rows_BT[:, :-1], "labels": rows_BT[:, 1:]}
