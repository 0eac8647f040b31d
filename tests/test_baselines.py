"""The order-2 byte model against the same formula written with dictionaries."""

import math
from collections import Counter

import numpy as np
import pytest

from jaxpar import baselines
from jaxpar.baselines import ByteModel, baseline_bits_per_byte, scored_windows
from jaxpar.config import resolve
from jaxpar.data.corpus import Corpus
from jaxpar.data.rows import held_out_batches
from jaxpar.data.tokens import Tokens

TEXT = b"the theme then thawed; there, these thin things."


def slow_probability(text, context, byte):
    """Witten-Bell, spelled out."""
    lower = slow_probability(text, context[1:], byte) if context else 1 / 256
    length = len(context)
    after = Counter(text[i + length] for i in range(len(text) - length) if text[i : i + length] == context)
    if not after:
        return lower
    return (after[byte] + len(after) * lower) / (sum(after.values()) + len(after))


@pytest.mark.parametrize("window", [TEXT[5:25], b"the zebra", b"\x00\xff\x00", b"ab"])
def test_equals_the_formula(window):
    model = ByteModel(np.frombuffer(TEXT, np.uint8))
    expected = [
        math.log2(slow_probability(TEXT, window[max(place - 2, 0) : place], window[place]))
        for place in range(1, len(window))
    ]
    found = model.log2_probability(np.frombuffer(window, np.uint8))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_probabilities_sum_to_one():
    model = ByteModel(np.frombuffer(TEXT, np.uint8))
    for context in (b"th", b"zz", b"ez"):
        windows = [np.frombuffer(context + bytes([byte]), np.uint8) for byte in range(256)]
        assert sum(2 ** model.log2_probability(window)[-1] for window in windows) == pytest.approx(1)


def test_knows_what_it_has_read_and_not_what_it_has_not():
    text = np.frombuffer(b"abcabcabc" * 100, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, 300).astype(np.uint8)
    model = ByteModel(text)
    assert model.bits_per_byte([text[:50]]) < 0.1
    assert model.bits_per_byte([noise]) > 8


def test_contexts_end_with_their_document():
    """Counting two documents apart is counting each, and adding up."""
    first, second = TEXT[:21], TEXT[21:]
    text = np.frombuffer(TEXT, np.uint8)
    model = ByteModel(text, starts=[0, 21])
    windows = Counter(part[i : i + 3] for part in (first, second) for i in range(len(part) - 2))
    found = {
        int(code).to_bytes(3, "big"): int(n)
        for code, n in zip(model.levels[2].codes, model.levels[2].counts, strict=True)
    }
    assert found == windows
    assert ByteModel(text).levels[2].counts.sum() == len(TEXT) - 2
    assert ByteModel(text, starts=range(len(text))).log2_probability(text).shape == (len(text) - 1,)


def test_long_texts_are_counted_in_parts(monkeypatch):
    text = np.random.default_rng(0).integers(0, 4, 1000).astype(np.uint8)
    starts = [0, 249, 251, 252, 500]
    whole = ByteModel(text, starts)
    monkeypatch.setattr(baselines, "_AT_ONCE", 250)
    parts = ByteModel(text, starts)
    for a, b in zip(whole.levels, parts.levels, strict=True):
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_array_equal(a.counts, b.counts)


def _corpus(documents):
    lengths = [len(document) for document in documents]
    tokens = Tokens(np.frombuffer(b"".join(documents), np.uint8), np.cumsum([0, *lengths[:-1]]))
    return Corpus(tokens, tokens, "", 1.0)


@pytest.mark.parametrize("cap", [9, 10**6])
def test_scores_exactly_the_tokens_that_a_model_is_scored_on(cap):
    corpus = _corpus([TEXT[:20], b"x", TEXT[20:30], TEXT])
    config = resolve({"data": {"kind": "python_docs", "seq_len": 9, "max_held_out_bytes": cap}})
    batches = held_out_batches(corpus.held_out, 9, cap, 4)
    windows = [window for batch in batches for window in scored_windows(batch)]
    counted = sum(int((batch["labels"] >= 0).sum()) for batch in batches)
    assert sum(len(window) - 1 for window in windows) == counted == (9 if cap == 9 else 72 - 3)
    expected, model = [], ByteModel(corpus.train.ids, corpus.train.starts)
    for batch in batches:
        for row in range(4):
            segments, past = batch["side"]["segment_ids"][row], []
            for place, label in enumerate(batch["labels"][row].tolist()):
                fresh = place == 0 or segments[place] != segments[place - 1]
                past = ([] if fresh else past) + [int(batch["inputs"][row][place])]
                if label >= 0:
                    expected.append(-model.log2_probability([*past, label])[-1])
    assert baseline_bits_per_byte(corpus, config) == pytest.approx(np.mean(expected))


def test_no_baseline_where_tokens_are_not_bytes():
    corpus = _corpus([TEXT])
    for data in ({"kind": "synthetic"}, {"tokenizer": "x"}, {"end_token": 256}):
        assert baseline_bits_per_byte(corpus, resolve({"data": data, "model": {"vocab_size": 300}})) is None
