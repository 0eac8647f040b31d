"""Tokens made from the seed, for trials of speed: no file, no start-up, any vocabulary."""

import numpy as np

from jaxpar.data.tokens import Tokens

_LEAST_TOKENS = 2**20
_STREAM = 0x73796E  # told apart from everything else that is made from the seed


def synthetic_tokens(seed, num_ids, seq_len, part=0):
    """Documents of random lengths whose ids follow Zipf's law, so that there is a little to learn.

    Args:
      seed: whole number; with the other arguments it decides every token.
      num_ids: ids are under it, id k about as frequent as 1 / (k + 1).
      seq_len: documents have between a quarter of a row and two rows.
      part: 0 to train on, 1 held out.

    Returns:
      Tokens of 2 ** 20 ids, or of eight rows where that is more.
    """
    rng = np.random.default_rng([seed, _STREAM, part])
    size = max(_LEAST_TOKENS, 8 * seq_len + 1)
    ids = np.exp(rng.random(size) * np.log(num_ids + 1)).astype(np.int64) - 1  # P(id < k) = log(k + 1) / log(n + 1)
    ids = np.clip(ids, 0, num_ids - 1).astype(np.min_scalar_type(num_ids - 1))
    low, high = max(seq_len // 4, 1), 2 * seq_len
    lengths = rng.integers(low, high + 1, size // low + 1)
    starts = np.cumsum(lengths) - lengths
    return Tokens(ids, starts[starts < size])
