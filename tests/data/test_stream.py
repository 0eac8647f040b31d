"""The stream is a function of the seed and of how many samples came before, and of nothing else (USERS 29, 30)."""

import itertools
import time

import jax
import numpy as np
import pytest

from jaxpar.data.rows import num_rows, rows
from jaxpar.data.stream import sample_ids, stream
from jaxpar.data.tokens import Tokens
from jaxpar.errors import SettingError

SEQ_LEN = 8
TOKENS = Tokens(np.arange(400, dtype=np.uint16), np.array([0, 3, 50, 51, 200]))  # 49 rows an epoch


def take(count, *, batch=6, position=0, wanted=None, seed=0, prefetch=2, tokens=TOKENS):
    """The first batches of a stream, as one."""
    wanted = np.arange(batch) if wanted is None else wanted
    found = stream(
        tokens, seq_len=SEQ_LEN, seed=seed, global_batch=batch, position=position, rows=wanted, prefetch=prefetch
    )
    batches = list(itertools.islice(found, count))
    found.close()
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_stream_holds_the_samples_of_sample_ids():
    ids = sample_ids(TOKENS, seq_len=SEQ_LEN, seed=5, position=11, count=60)
    assert ids.dtype == np.int64 and ids.shape == (60,)
    equal(take(10, position=11, seed=5), rows(TOKENS, SEQ_LEN, ids))


@pytest.mark.parametrize("position", [1, 6, 17, 48, 49, 50, 97, 98, 200, 10**9])
@pytest.mark.parametrize("batch", [1, 6, 7])
def test_going_on_anywhere_gives_the_rest_of_the_stream(position, batch):
    """Mid-epoch, at its boundary and past it, with the same or another global batch."""
    first = max(position - 30, 0)
    skipped = position - first
    whole = take((skipped + 42) // 6, batch=6, position=first)
    rest = take(42 // batch, batch=batch, position=position)
    count = min(42 // batch * batch, len(whole["inputs"]) - skipped)
    assert count > 30
    equal(
        jax.tree.map(lambda leaf: leaf[:count], rest),
        jax.tree.map(lambda leaf: leaf[skipped : skipped + count], whole),
    )


def test_every_epoch_is_a_permutation_of_its_own():
    size = num_rows(TOKENS, SEQ_LEN)
    epochs = sample_ids(TOKENS, seq_len=SEQ_LEN, seed=0, position=0, count=4 * size).reshape(4, size)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(size), (4, 1)))
    others = [sample_ids(TOKENS, seq_len=SEQ_LEN, seed=s, position=0, count=4 * size).reshape(4, size) for s in (1, 2)]
    orders = {tuple(order) for orders in (epochs, *others) for order in orders.tolist()}
    assert len(orders) == 12, "neighbouring seeds share no epoch's order"


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_data_ranks_read_disjoint_rows_that_cover_the_batch(ranks):
    whole = take(9)
    size = 6 // ranks
    parts = [take(9, wanted=np.arange(rank * size, (rank + 1) * size)) for rank in range(ranks)]
    for name in ("inputs", "labels"):
        by_step = [part[name].reshape(9, size, SEQ_LEN) for part in parts]
        np.testing.assert_array_equal(np.concatenate(by_step, axis=1).reshape(-1, SEQ_LEN), whole[name])
    spread = take(9, wanted=np.array([0, 2, 5]))  # rows of a process need not lie together
    np.testing.assert_array_equal(spread["inputs"].reshape(9, 3, -1), whole["inputs"].reshape(9, 6, -1)[:, [0, 2, 5]])


def test_only_the_rows_asked_for_are_read():
    class Counting:
        dtype, read = np.dtype(np.uint16), 0

        def __len__(self):
            return 400

        def __getitem__(self, key):
            self.read += 1
            return TOKENS.ids[key]

    ids = Counting()
    take(4, wanted=np.array([1, 4]), prefetch=0, tokens=Tokens(ids, TOKENS.starts))
    assert ids.read == 8


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7])
def test_reading_ahead_changes_nothing(prefetch):
    equal(take(20, prefetch=prefetch), take(20, prefetch=0))


def test_a_text_of_one_row_repeats_it():
    found = take(3, tokens=Tokens(np.arange(9), np.zeros(1, np.int64)))
    assert (found["inputs"] == np.arange(8)).all() and len(found["inputs"]) == 18


def test_an_error_of_a_reading_thread_reaches_the_reader():
    with pytest.raises(SettingError) as caught:
        take(20, tokens=Tokens(np.arange(400), np.zeros(1, np.int64), source="data.path=x", num_ids=40))
    assert str(caught.value).startswith("data.path=x has id ") and "\n" not in str(caught.value)


class Slow:
    """Ids that take their time."""

    dtype = np.dtype(np.uint16)

    def __len__(self):
        return 400

    def __getitem__(self, key):
        time.sleep(0.02)
        return TOKENS.ids[key]


def test_a_slow_source_hides_behind_the_steps():
    """Waiting for a batch, with steps that take as long as reading one does; sleeping needs no core."""

    def waited(prefetch):
        batches = stream(
            Tokens(Slow(), TOKENS.starts),
            seq_len=SEQ_LEN,
            seed=0,
            global_batch=1,
            position=0,
            rows=np.arange(1),
            prefetch=prefetch,
        )
        next(batches)
        total = 0.0
        for _ in range(15):
            time.sleep(0.03)
            start = time.perf_counter()
            next(batches)
            total += time.perf_counter() - start
        batches.close()
        return total

    assert waited(2) < 0.5 * waited(0)
