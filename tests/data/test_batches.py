"""Rows are a function of the seed and of how many samples came before, and of nothing else."""

import numpy as np
import pytest

from jaxpar.data.batches import held_out_batches, held_out_starts, num_samples, train_batch

TEXT = np.arange(1000, dtype=np.int64).astype(np.uint16)  # every token is its own place


def rows(seed, position, count, seq_len=8, text=TEXT):
    return train_batch(text, seq_len, seed, position, count)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_batches_of_any_size_give_the_same_samples(size):
    together = rows(0, 0, 350)["inputs"]
    apart = np.concatenate([rows(0, at, size)["inputs"] for at in range(0, 350, size)])[:350]
    np.testing.assert_array_equal(together, apart)


def test_labels_are_the_next_tokens():
    batch = rows(0, 5, 20)
    assert batch["inputs"].dtype == batch["labels"].dtype == np.int32
    assert batch["inputs"].shape == batch["labels"].shape == (20, 8)
    np.testing.assert_array_equal(batch["labels"], batch["inputs"] + 1)
    np.testing.assert_array_equal(batch["labels"][:, :-1], batch["inputs"][:, 1:])


def test_an_epoch_repeats_and_skips_nothing():
    size = num_samples(TEXT, 8)
    for epoch in range(3):
        starts = np.sort(rows(0, epoch * size, size)["inputs"][:, 0])
        np.testing.assert_array_equal(np.diff(starts), 8)
        assert len(set(starts)) == size


def test_epochs_and_seeds_differ_in_order():
    size = num_samples(TEXT, 8)
    first, second, other = rows(0, 0, size), rows(0, size, size), rows(1, 0, size)
    assert not np.array_equal(first["inputs"], second["inputs"])
    assert not np.array_equal(first["inputs"], other["inputs"])


@pytest.mark.parametrize("length", [9, 10, 16, 17, 18, 25])
def test_short_texts(length):
    batch = rows(0, 0, 40, text=TEXT[:length])
    assert batch["labels"].max() < length
    np.testing.assert_array_equal(batch["labels"], batch["inputs"] + 1)


@pytest.mark.parametrize("num_rows", [1, 4, 7])
def test_held_out_rows_are_each_there_once_and_filled_up_with_uncounted_ones(num_rows):
    text = TEXT[:101]
    batches = held_out_batches(text, 8, 10**9, num_rows)
    assert all(batch["inputs"].shape == batch["labels"].shape == (num_rows, 8) for batch in batches)
    labels = np.concatenate([batch["labels"].ravel() for batch in batches])
    np.testing.assert_array_equal(labels[labels >= 0], np.arange(1, 97))
    filled = labels.reshape(-1, 8)
    assert all((row < 0).all() or (row >= 0).all() for row in filled)


def test_a_cap_spreads_the_held_out_rows_evenly():
    starts = held_out_starts(TEXT, 8, 80)
    assert len(starts) == 10 and len(set(starts)) == 10
    assert starts[0] == 0 and starts[-1] > 800 and set(starts % 8) == {0}
    assert len(held_out_starts(TEXT, 8, 1)) == 1
