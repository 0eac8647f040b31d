"""Rows packed from documents against a slow reference; attention stays inside a document."""

import pathlib
import re

import jax
import numpy as np
import pytest
from reference import random_params

from jaxpar.data.rows import held_out_batches, held_out_rows, num_rows, rows
from jaxpar.data.tokens import Tokens
from jaxpar.errors import SettingError
from jaxpar.models.decoder import DecoderConfig, decoder


def make(lengths, dtype=np.uint16):
    """Documents of these lengths; every token is its own place."""
    starts = np.cumsum([0, *lengths[:-1]])
    return Tokens(np.arange(sum(lengths)).astype(dtype), starts.astype(np.int64))


def slow_row(tokens, seq_len, index):
    """(inputs, labels, segment ids, positions) of one row, token by token."""
    starts, out = set(tokens.starts.tolist()), []
    segment, position = 0, 0
    for place in range(index * seq_len, (index + 1) * seq_len):
        if place in starts or place == index * seq_len:
            segment, position = segment + 1, 0
        label = -1 if place + 1 in starts else int(tokens.ids[place + 1])
        out.append((int(tokens.ids[place]), label, segment, position))
        position += 1
    return np.array(out, np.int32).T


@pytest.mark.parametrize("seed", range(20))
def test_rows_equal_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, [3, 8, 40][seed % 3], 30).tolist()
    tokens, seq_len = make(lengths), int(rng.integers(1, 12))
    count = num_rows(tokens, seq_len)
    assert count * seq_len < len(tokens) <= (count + 1) * seq_len
    indices = rng.permutation(count)
    batch = rows(tokens, seq_len, indices)
    found = (batch["inputs"], batch["labels"], batch["side"]["segment_ids"], batch["side"]["positions"])
    assert all(leaf.dtype == np.int32 and leaf.shape == (count, seq_len) for leaf in found)
    for row, index in enumerate(indices):
        np.testing.assert_array_equal([leaf[row] for leaf in found], slow_row(tokens, seq_len, index))


def test_every_token_but_the_documents_first_ones_is_a_label_once():
    tokens = make([5, 1, 9, 6])
    labels = rows(tokens, 4, np.arange(5))["labels"]
    assert sorted(labels[labels >= 0].tolist()) == sorted(set(range(21)) - {0, 5, 6, 15})


def test_the_drawing_in_the_docs_is_the_codes():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "data.md").read_text()
    lines = re.findall(r"^(tokens|labels|segment ids|positions) (.*\|.*)$", page, re.M)
    drawn = {name: [row.split() for row in text.split("|")] for name, text in lines}
    batch = rows(make([5, 2, 10]), 8, [0, 1])
    names = ["-", *(f"{document}{n}" for document, size in (("a", 5), ("b", 2), ("c", 10)) for n in range(size))]
    assert drawn["tokens"] == [[names[token + 1] for token in row] for row in batch["inputs"]]
    assert drawn["labels"] == [[names[token + 1] for token in row] for row in batch["labels"]]
    assert drawn["segment ids"] == [[str(n) for n in row] for row in batch["side"]["segment_ids"]]
    assert drawn["positions"] == [[str(n) for n in row] for row in batch["side"]["positions"]]


def test_a_row_that_is_not_there_is_refused():
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="rows are 0 .. 2"):
            rows(make([13]), 4, [0, wrong])


@pytest.mark.parametrize(("ids", "bad"), [([1, 2, 3, 9, 1], 9), ([1, 2, 3, -4, 1], -4)])
def test_an_id_that_is_not_the_models_is_refused_when_it_is_read(ids, bad):
    tokens = Tokens(np.array([0] * 40 + ids), np.zeros(1, np.int64), source="data.path=x.bin", offset=100, num_ids=5)
    assert rows(tokens.part(4, 40), 5, [0, 1])["inputs"].max() == 0
    with pytest.raises(SettingError, match=rf"data.path=x.bin has id {bad} at token 143 .*model.vocab_size=5 has"):
        rows(tokens.part(4, 45), 5, [7])


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_held_out_rows_are_each_there_once_and_filled_up_with_uncounted_ones(batch_size):
    tokens = make([30, 2, 69])
    batches = held_out_batches(tokens, 8, 10**9, batch_size)
    assert isinstance(batches, tuple) and len(batches) == -(-12 // batch_size)
    for batch in batches:
        assert all(leaf.shape == (batch_size, 8) and leaf.dtype == np.int32 for leaf in jax.tree.leaves(batch))
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    expected = rows(tokens, 8, np.arange(12))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:12], b), together, expected)
    assert (together["labels"][12:] == -1).all() and (together["side"]["segment_ids"][12:] == 0).all()


def test_a_cap_spreads_the_held_out_rows_evenly():
    tokens = make([1000])
    found = held_out_rows(tokens, 8, 80)
    assert len(set(found.tolist())) == 10 and found[0] == 0 and found[-1] > 100
    assert held_out_rows(tokens, 8, 1).tolist() == [0]
    np.testing.assert_array_equal(held_out_rows(tokens, 8, 10**9), np.arange(124))


def test_a_document_in_a_packed_row_is_as_if_alone():
    """A packed row's loss is that of its documents in rows of their own."""
    config = DecoderConfig(num_layers=2, width=16, num_heads=2, num_kv_heads=1, mlp_width=24, vocab_size=32)
    model = decoder(config)
    params = random_params(model)
    rng = np.random.default_rng(0)
    lengths = [7, 1, 12, 4]
    tokens = Tokens(rng.integers(0, 32, 25), np.cumsum([0, *lengths[:-1]]))

    @jax.jit
    def loss(batch):
        x = model.embed(params["embed"], batch["inputs"])
        for index in range(2):
            x = model.layer(jax.tree.map(lambda leaf, i=index: leaf[i], params["layers"]), x, batch["side"], None)
        return model.loss(model.head(params), x, batch["labels"])

    packed = held_out_batches(tokens, 23, 24, 4)[0]
    apart = {"inputs": np.zeros((4, 23), np.int32), "labels": np.full((4, 23), -1, np.int32)}
    for row, (start, length) in enumerate(zip(tokens.starts.tolist(), lengths, strict=True)):
        apart["inputs"][row, :length] = tokens.ids[start : start + length]
        apart["labels"][row, : length - 1] = tokens.ids[start + 1 : start + length]
    apart["side"] = {name: np.tile(np.arange(23, dtype=np.int32) * n, (4, 1)) for n, name in enumerate(packed["side"])}
    nats, counted = loss(packed)
    assert int(counted) == int(loss(apart)[1]) == 20
    np.testing.assert_allclose(nats, loss(apart)[0], rtol=1e-5)
    one = {**packed, "side": {**packed["side"], "segment_ids": np.ones((4, 23), np.int32)}}
    assert abs(loss(one)[0] - nats) > 1e-2, "without segments it would differ"
