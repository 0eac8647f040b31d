"""Message patterns: for each channel, which (source, target) pairs are active together."""

import numpy as np

CHANNELS = ("act+1", "act-1", "grad+1", "grad-1")
MAX_PATTERNS = 32


def directions(placement, ranks):
    """The way from each stage to the next one: +1, -1, or 0 where it is on the same rank.

    Args:
      placement: "loop" (always +1 round the ring) or "v" (to and fro).
      ranks: int [S], the rank of each stage.

    Returns:
      int [S - 1].
    """
    step = np.diff(ranks)
    return np.where(step == 0, 0, 1) if placement == "loop" else np.sign(step)


def ring(channel, num_ranks):
    """All pairs of `channel` (one of CHANNELS): each rank to its neighbour."""
    step = 1 if channel.endswith("+1") else -1
    return tuple((rank, (rank + step) % num_ranks) for rank in range(num_ranks))


def patterns_of(channel, active):
    """The patterns of one channel, and which one each tick has.

    Args:
      channel: one of CHANNELS.
      active: bool [T, P]: the rank sends on this channel in this tick.

    Returns:
      (patterns, index): patterns[0] is (), the others are tuples of (source, target) in order of appearance, or the
      full ring alone where there would be more than MAX_PATTERNS; index is int32 [T].
    """
    pairs = ring(channel, active.shape[1])
    _, first, which = np.unique(np.packbits(active, axis=1), axis=0, return_index=True, return_inverse=True)
    distinct = [tuple(pairs[r] for r in np.flatnonzero(active[tick])) for tick in first]
    patterns = limit(channel, active.shape[1], [distinct[number] for number in np.argsort(first)])
    return patterns, reindex(patterns, distinct)[which.reshape(-1)]


def limit(channel, num_ranks, patterns):
    """`patterns` without repeats, () first; too many become the full ring."""
    unique = tuple(dict.fromkeys([(), *patterns]))
    return unique if len(unique) - 1 <= MAX_PATTERNS else ((), ring(channel, num_ranks))


def reindex(patterns, rows):
    """int32 [T]: where each row's pattern is in `patterns` (the ring serves any traffic)."""
    index = {pattern: i for i, pattern in enumerate(patterns)}
    return np.array([index.get(row, len(patterns) - 1) for row in rows], np.int32)
