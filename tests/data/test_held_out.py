"""Whole documents are held out."""

import numpy as np
import pytest

from jaxpar.data.documents import Document
from jaxpar.data.held_out import split_documents, split_tokens
from jaxpar.data.tokens import Tokens


def test_whole_documents_are_held_out_by_name_alone():
    docs = tuple(sorted((Document(f"file{i}", b"x" * i) for i in range(200)), key=lambda d: d.position))
    train, held_out = split_documents(docs, 0.25)
    assert sorted(d.name for d in train + held_out) == sorted(d.name for d in docs)
    assert 30 < len(held_out) < 70
    fewer = tuple(d for d in docs if d.name != train[0].name)
    assert split_documents(fewer, 0.25)[1] == held_out, "another document more or less moves none"
    for fraction in (0.0001, 0.9999):
        assert all(split_documents(docs[:2], fraction)), "neither side is empty"


@pytest.mark.parametrize(
    ("lengths", "fraction", "expected"),
    [
        ([100], 0.1, (90, 10)),
        ([45, 45, 10], 0.1, (90, 10)),
        ([45, 40, 15], 0.1, (85, 15)),
        ([50, 45, 5], 0.1, (95, 5)),
        ([1, 99], 0.1, (1, 99)),
        ([99, 1], 0.9, (99, 1)),
        ([10] * 10, 0.34, (70, 30)),
    ],
)
def test_the_last_documents_of_a_token_file_are_held_out(lengths, fraction, expected):
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int64)
    train, held_out = split_tokens(Tokens(np.arange(100), starts, offset=7), fraction)
    assert (len(train), len(held_out)) == expected
    np.testing.assert_array_equal(np.concatenate([train.ids, held_out.ids]), np.arange(100))
    assert train.starts[0] == held_out.starts[0] == 0 and held_out.offset == 7 + len(train)
    both = np.concatenate([train.starts, held_out.starts + len(train)])
    np.testing.assert_array_equal(both, starts if len(lengths) > 1 else [0, 90])
    assert np.shares_memory(train.ids, held_out.ids.base), "nothing is copied"
