"""What a table of counts reaches on the same text: a trained model should beat it.

Source: Witten and Bell 1991, "The zero-frequency problem", IEEE Trans. Information Theory 37(4), method C, in the
recursive form of Chen and Goodman 1998, section 2.6.
"""

import numpy as np

from jaxpar.data.rows import held_out_batches

NUM_SYMBOLS = 256
_AT_ONCE = 2**22  # windows that are counted together


def baseline_bits_per_byte(corpus, config):
    """What the order-2 byte model reaches on exactly the held-out tokens that a trained model is scored on.

    Args:
      corpus: Corpus.
      config: Config; reads data.

    Returns:
      float bits per byte; None where tokens are not bytes.
    """
    data = config.data
    if data.kind not in ("python_docs", "text") or data.tokenizer or data.end_token >= NUM_SYMBOLS:
        return None
    model = ByteModel(corpus.train.ids, corpus.train.starts)
    batches = held_out_batches(corpus.held_out, data.seq_len, data.max_held_out_bytes, num_rows=64)
    return model.bits_per_byte(window for batch in batches for window in scored_windows(batch))


def scored_windows(batch):
    """The documents of packed rows apart: each window's tokens but the first are the labels that count.

    Args:
      batch: as `jaxpar.data.rows.rows` gives it.

    Yields:
      int32 [N], at least two tokens.
    """
    for inputs, labels, segments in zip(batch["inputs"], batch["labels"], batch["side"]["segment_ids"], strict=True):
        cuts = np.flatnonzero(np.diff(segments)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(inputs)], strict=True):
            counted = labels[first:last][labels[first:last] >= 0]
            if counted.size:
                yield np.append(inputs[first], counted)


class ByteModel:
    """Order-2 byte model: p(c | ab) falls back on p(c | b), that on p(c), that on 1 / 256.

    Each level is (count + kinds x lower) / (total + kinds), where kinds is how many different bytes followed.
    """

    def __init__(self, text, starts=(0,), order=2):
        """Counts contexts of 0 .. order bytes in `text`, uint8 [N], within documents that start at `starts`."""
        self.levels = [_Counts(text, starts, length) for length in range(order + 1)]

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

    def __init__(self, text, starts, length):
        counts = np.zeros(NUM_SYMBOLS ** (length + 1), np.int64)
        starts = np.asarray(starts, np.int64)
        for at in range(0, len(text), _AT_ONCE):
            codes = _codes(np.asarray(text[at : at + _AT_ONCE + length], np.int64), length + 1)
            inside = np.ones(len(codes), bool)
            for back in range(1, length + 1):  # windows that begin before a document and end in it
                place = starts - back - at
                inside[place[(place >= 0) & (place < len(codes))]] = False
            counts += np.bincount(codes[inside], minlength=len(counts))
        self.codes = np.flatnonzero(counts)
        self.counts = counts[self.codes]
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
    if not len(keys):  # every document is shorter than the context
        return np.zeros(len(wanted), np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
