"""What a table of counts reaches on the same text: a trained model should beat it.

Source: Witten and Bell 1991, "The zero-frequency problem", IEEE Trans. Information Theory 37(4), method C, in the
recursive form of Chen and Goodman 1998, section 2.6.
"""

import numpy as np

NUM_SYMBOLS = 256


class ByteModel:
    """Order-2 byte model: p(c | ab) falls back on p(c | b), that on p(c), that on 1 / 256.

    Each level is (count + kinds x lower) / (total + kinds), where kinds is how many different bytes followed.
    """

    def __init__(self, text, order=2):
        """Counts contexts of 0 .. order bytes in `text`, uint8 [N]."""
        self.levels = [_Counts(text, length) for length in range(order + 1)]

    def log2_probability(self, window):
        """float64 [N - 1]: log2 p of each byte of `window` but the first, given what precedes it in the window."""
        window = np.asarray(window, np.int64)
        probability = np.full(len(window), 1.0 / NUM_SYMBOLS)
        for length, counts in enumerate(self.levels):
            probability[length:] = counts.blend(window, length, probability[length:])
        return np.log2(probability[1:])

    def bits_per_byte(self, windows):
        """Mean over all predicted bytes of the windows (each uint8 or int [N])."""
        bits = np.concatenate([-self.log2_probability(window) for window in windows])
        return float(bits.mean())


class _Counts:
    """How often each context of `length` bytes was seen, with what after it, and with how many different bytes."""

    def __init__(self, text, length):
        codes = _codes(np.asarray(text, np.int64), length + 1)
        self.codes, self.counts = np.unique(codes, return_counts=True)
        contexts, first = np.unique(self.codes // NUM_SYMBOLS, return_index=True)
        self.contexts = contexts
        self.totals = np.add.reduceat(self.counts, first)
        self.kinds = np.diff(np.append(first, len(self.codes)))

    def blend(self, window, length, lower):
        """This level's probability of window[length:], where `lower` is the level's below."""
        codes = _codes(window, length + 1)
        count = _look_up(self.codes, self.counts, codes)
        total = _look_up(self.contexts, self.totals, codes // NUM_SYMBOLS)
        kinds = _look_up(self.contexts, self.kinds, codes // NUM_SYMBOLS)
        seen = total > 0
        return np.where(seen, (count + kinds * lower) / np.where(seen, total + kinds, 1), lower)


def _codes(text, length):
    """Each run of `length` bytes as one number."""
    size = max(len(text) - length + 1, 0)
    code = np.zeros(size, np.int64)
    for place in range(length):
        code = code * NUM_SYMBOLS + text[place : place + size]
    return code


def _look_up(keys, values, wanted):
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
