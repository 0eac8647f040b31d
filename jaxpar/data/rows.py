"""Rows for a step: runs of a fixed length over documents that lie one after the other.

Row i holds tokens i * T .. i * T + T, the last of them only as a label, so that rows overlap by one token and every
token but the first is a label once. Documents in a row are told apart by segment ids, which attention respects, and no
document predicts the next one's first token.

Shape legend: B rows, T tokens of a row.
"""

import numpy as np


def num_rows(tokens, seq_len):
    """Whole rows in these tokens; the few tokens after the last one belong to none."""
    return max((len(tokens) - 1) // seq_len, 0)


def rows(tokens, seq_len, indices):
    """The rows with these numbers.

    Args:
      tokens: Tokens.
      seq_len: T.
      indices: int [B], each in 0 .. num_rows - 1.

    Returns:
      {"inputs", "labels", "side": {"segment_ids", "positions"}}, each int32 [B, T].
      Labels are the next tokens, -1 where the next token is another document's. Segment ids number the documents of a
      row from 1; positions count from 0 at each document's start, and at the row's.

    Raises:
      IndexError: there is no such row.
      SettingError: an id is not one of the model's.
    """
    indices = np.asarray(indices, np.int64)
    size = num_rows(tokens, seq_len)
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise IndexError(f"rows are 0 .. {size - 1}, asked for {indices.min()} .. {indices.max()}")
    first = indices * seq_len
    low, high = np.searchsorted(tokens.starts, first), np.searchsorted(tokens.starts, first + seq_len, "right")
    ids = np.empty((len(indices), seq_len + 1), np.int32)
    begins = np.zeros((len(indices), seq_len + 1), bool)
    for row, start in enumerate(first.tolist()):
        ids[row] = tokens.read(start, start + seq_len + 1)
        begins[row, tokens.starts[low[row] : high[row]] - start] = True
    begins[:, 0] = True
    place = np.arange(seq_len, dtype=np.int32)
    begun = np.maximum.accumulate(np.where(begins[:, :-1], place, 0), axis=1)
    return {
        "inputs": np.ascontiguousarray(ids[:, :-1]),
        "labels": np.where(begins[:, 1:], np.int32(-1), ids[:, 1:]),
        "side": {
            "segment_ids": np.cumsum(begins[:, :-1], axis=1, dtype=np.int32),
            "positions": (place - begun).astype(np.int32),
        },
    }


def held_out_rows(tokens, seq_len, max_bytes):
    """Numbers (int64) of the rows an evaluation reads: all, or evenly spread ones of max_bytes tokens in all."""
    count = num_rows(tokens, seq_len)
    wanted = min(count, max(max_bytes // seq_len, 1))
    return np.arange(wanted, dtype=np.int64) * count // max(wanted, 1)


def held_out_batches(tokens, seq_len, max_bytes, num_rows):
    """Batches of one shape that hold every held-out row once.

    Rows that fill up the last batch have labels -1, which do not count, so the mean over tokens is the whole set's.

    Args:
      tokens: the held-out Tokens.
      seq_len: T.
      max_bytes: the most tokens in all.
      num_rows: rows a batch.

    Returns:
      tuple of batches as `rows` gives them; what fills up has segment id 0.
    """
    indices = held_out_rows(tokens, seq_len, max_bytes)
    parts = [rows(tokens, seq_len, indices[at : at + num_rows]) for at in range(0, len(indices), num_rows)]
    return tuple(_filled_up(part, num_rows) for part in parts)


def _filled_up(batch, num_rows):
    def fill(leaf, value=0):
        return np.pad(leaf, ((0, num_rows - len(leaf)), (0, 0)), constant_values=value)

    return {
        "inputs": fill(batch["inputs"]),
        "labels": fill(batch["labels"], -1),
        "side": {name: fill(leaf) for name, leaf in batch["side"].items()},
    }
