"""Builders: whole orders, reference orders, every small size, refusals."""

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import build, chunk_counts, from_csv, names
from tests.schedule.common import DATA, references, small_schedules

ORDERS = {
    ("naive", 2, 2, 1): ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"],
    ("naive", 2, 1, 2): ["0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"],
    ("gpipe", 2, 3, 1): ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"],
    ("1f1b", 3, 4, 1): [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ],
    ("1f1b", 3, 1, 1): ["0F0 0B0", "1F0 1B0", "2F0 2B0"],
    ("interleaved_1f1b", 2, 2, 2): ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"],
    # Three microbatches on two ranks are one group of three, five are groups of three and two.
    ("interleaved_1f1b", 2, 3, 2): [
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2",
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2",
    ],
    ("interleaved_1f1b", 2, 1, 2): ["0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"],
}


@pytest.mark.parametrize("sizes", ORDERS)
def test_whole_orders(sizes):
    name, num_ranks, num_microbatches, num_chunks = sizes
    schedule = build(name, num_ranks, num_microbatches, num_chunks)
    assert [" ".join(map(str, order)) for order in schedule.actions] == ORDERS[sizes]


FAMILIES = {"torch:Interleaved1F1B": "interleaved_1f1b", "torch-exec:GPipe": "gpipe", "torch-exec:1F1B": "1f1b"}


@pytest.mark.parametrize("row", [r for r in references() if r["schedule"] in FAMILIES], ids=lambda row: row["file"])
def test_orders_equal_the_references(row):
    reference = from_csv(DATA / row["file"])
    built = build(FAMILIES[row["schedule"]], int(row["P"]), int(row["M"]), int(row["V"]))
    assert built.actions == reference.actions
    if row["schedule"].startswith("torch-exec"):
        assert built.ticks == reference.ticks


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_every_small_size_is_valid_and_as_short_as_can_be(num_ranks):
    for num_chunks in (1, 2, 3, 4):
        for num_microbatches in range(1, 2 * num_ranks + 4):
            for schedule in small_schedules(num_ranks, num_chunks, num_microbatches):
                schedule.check()
                makespan = schedule.simulate(send="after_B").makespan
                wait = max(0, num_ranks - num_microbatches) * (num_chunks - 1)
                shortest = 3 * num_microbatches + 3 * (num_ranks - 1 + wait) / num_chunks
                expected = 3 * num_ranks * num_microbatches if schedule.name == "naive" else shortest
                assert makespan == pytest.approx(expected), (schedule.name, num_chunks, num_microbatches)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_live_activations_stay_within_their_bounds(num_ranks):
    for num_chunks in (1, 2, 3, 4):
        for num_microbatches in range(1, 4 * num_ranks + 4):
            for schedule in small_schedules(num_ranks, num_chunks, num_microbatches):
                longest = -(-num_microbatches // max(1, num_microbatches // num_ranks))
                warmup = (num_chunks - 1) * longest + 2 * (num_ranks - 1) + 1
                bound = {
                    "naive": 1,
                    "gpipe": num_microbatches,
                    "1f1b": min(num_ranks, num_microbatches),
                    "interleaved_1f1b": min(num_microbatches, num_ranks if num_chunks == 1 else warmup / num_chunks),
                }[schedule.name]
                schedule.check(max_live=bound)


def test_one_f_one_b_holds_fewer_activations_on_later_ranks():
    assert build("1f1b", 4, 16).simulate().peak_live == (4, 3, 2, 1)


def test_names_are_the_tour():
    unsplit = ("naive", "gpipe", "looped_bfs", "1f1b", "eager_1f1b", "interleaved_1f1b", "fused_1f1b")
    assert names()[:15] == (
        *unsplit, "zb_h1", "zb_h2", "interleaved_zb", "fused_zb", "zb_v", "v_half", "v_min", "dualpipe_v"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1fb1", 2, 4), r"pipeline\.schedule=1fb1 is unknown: .* Use 1f1b \(the nearest name\), or one of naive, "),
        (("interleaved", 2, 4), "Use interleaved_zb"),
        (("???", 2, 4), "Use one of naive, gpipe, looped_bfs, 1f1b, "),
        (("gpipe", 2, 4, 2), r"pipeline\.num_chunks=2 is not 1: .* Use num_chunks=1 or .*interleaved_1f1b"),
        (("1f1b", 2, 4, 2), r"pipeline\.num_chunks=2 is not 1"),
        (("1f1b", 0, 4), r"mesh\.pipe=0 is not a positive integer"),
        (("1f1b", 2, -1), r"pipeline\.num_microbatches=-1 is not a positive integer"),
        (("1f1b", 2, 2.5), r"pipeline\.num_microbatches=2\.5 is not a positive integer"),
        (("1f1b", 2, 2, True), r"pipeline\.num_chunks=True is not a positive integer"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(SettingError, match=message):
        build(*arguments)


def test_an_unknown_option_is_named():
    with pytest.raises(SettingError, match=r"pipeline\.max_live=3 is not an option of 1f1b: it has none"):
        build("1f1b", 2, 4, max_live=3)


def test_chunk_counts():
    assert chunk_counts("1f1b") == (1,) and chunk_counts("zb_v", 3) == (2,)
    assert chunk_counts("auto", 4) == chunk_counts("interleaved_zb", 4) == (1, 2, 3, 4)
    with pytest.raises(SettingError, match=r"pipeline\.schedule=1fb1 is unknown: .* Use 1f1b"):
        chunk_counts("1fb1")
