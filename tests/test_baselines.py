"""The order-2 byte model against the same formula written with dictionaries."""

import math
from collections import Counter

import numpy as np
import pytest

from jaxpar.baselines import ByteModel

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
