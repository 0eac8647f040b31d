"""Every layer is owned once, wherever stages and chunks lie."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.errors import SettingError
from jaxpar.pipeline import Layout, split_evenly
from jaxpar.schedule import build


@pytest.mark.parametrize(("num_layers", "num_stages"), [(n, s) for s in range(1, 9) for n in range(s, 20)])
def test_even_stages(num_layers, num_stages):
    stages = split_evenly(num_layers, num_stages)
    assert sum(stages) == num_layers and len(stages) == num_stages
    assert max(stages) - min(stages) <= 1
    if num_stages > 2 and num_layers % num_stages:  # the ends have the vocabulary besides
        assert stages[0] <= min(stages[1:-1]) + 1 and max(stages[1:-1]) == max(stages)


@pytest.mark.parametrize("placement", ["loop", "v"])
@pytest.mark.parametrize(("ranks", "chunks"), list(itertools.product((1, 2, 4), (1, 2, 3))))
def test_each_layer_has_one_owner_and_comes_back(ranks, chunks, placement):
    rng = np.random.default_rng(ranks * 10 + chunks)
    stage_layers = tuple(rng.integers(1, 4, ranks * chunks).tolist())
    layout = Layout(ranks, chunks, placement, stage_layers)
    rows = layout.rows
    assert sorted(rows[rows >= 0].tolist()) == list(range(layout.num_layers))
    starts = np.cumsum((0, *stage_layers))
    for rank, chunk in itertools.product(range(ranks), range(chunks)):
        stage = layout.stage_of(rank, chunk)
        mine = rows[rank, layout.first[chunk] :][: layout.count[rank, chunk]]
        assert mine.tolist() == list(range(starts[stage], starts[stage + 1]))
    stacked = jnp.arange(1.0, 1 + 2 * layout.num_layers).reshape(-1, 2)
    packed = layout.pack(stacked)
    assert packed.shape[0] == rows.size
    assert not packed[(rows < 0).reshape(-1)].any()  # padding is zero
    np.testing.assert_array_equal(layout.unpack(packed), stacked)


def test_stages_agree_with_the_schedule():
    schedule = build("interleaved_1f1b", 4, 8, 2)
    layout = Layout.of(schedule, 11)
    for rank, chunk in itertools.product(range(4), range(2)):
        assert layout.stage_of(rank, chunk) == schedule.stage_of(rank, chunk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 3}, "model.num_layers=3 is less than the 4 stages"),
        ({"num_layers": 9, "stage_layers": (2, 2, 2, 2)}, "adds up to 8, but model.num_layers=9"),
        ({"stage_layers": (2, 2)}, "does not give each of the 4 stages"),
        ({"stage_layers": (2, 0, 2, 2)}, "every stage needs at least one"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        Layout.of(build("1f1b", 4, 4), **arguments)
