"""Every family at every small size: valid, within its bound on memory, as short as its formula says."""

import itertools

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import build, chunk_counts, from_csv, names
from tests.schedule.common import DATA, references

ONE_CHUNK = ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "zb_h2")
TWO_CHUNKS = ("zb_v", "v_half", "v_min", "dualpipe_v")


def longest_group(ranks, microbatches):
    """M // P near-equal groups: the size of the first."""
    return -(-microbatches // max(1, microbatches // ranks))


def interleaved_peak(ranks, chunks, microbatches):
    if chunks == 1:
        return ranks
    return ((chunks - 1) * longest_group(ranks, microbatches) + 2 * (ranks - 1) + 1) / chunks


def fused_peak(ranks, chunks, microbatches):
    ring = max(ranks, longest_group(ranks, microbatches))
    return ((chunks - 1) * ring + 2 * (ranks - 1) + 1) / chunks


# Microbatches of a whole rank, from the start of F to the end of W; never more than M.
PEAKS = {
    "naive": lambda p, v, m: 1,
    "gpipe": lambda p, v, m: m,
    "looped_bfs": lambda p, v, m: m,
    "1f1b": lambda p, v, m: p,
    "eager_1f1b": lambda p, v, m: 2 * p - 1,
    "interleaved_1f1b": interleaved_peak,
    "fused_1f1b": fused_peak,
    "zb_h1": lambda p, v, m: p,
    "zb_h2": lambda p, v, m: 2 * p - 1,
    "interleaved_zb": lambda p, v, m: p,
    "fused_zb": fused_peak,
    "zb_v": lambda p, v, m: p,
    "v_half": lambda p, v, m: p / 2 + 1,
    "v_min": lambda p, v, m: -(-(p + 2) // 3),
    "dualpipe_v": lambda p, v, m: p + 1 / 2,
}


def unsplit(ranks, chunks, microbatches):
    """The ring is as long as P, whatever M is: it is gone round 2 (V - 1) times."""
    wait = max(0, ranks - microbatches) * (chunks - 1)
    return 3 * microbatches + 3 * (ranks - 1 + wait) / chunks


def ring(ranks, chunks, microbatches):
    """No split order can be shorter (in chunk units): the last rank begins after P - 1, and on rank 0, once the
    gradient of chunk j - 1 arrives, all I and W of j chunks are left."""
    late = [(2 * chunks - j + 1) * ranks - 1 + 2 * j * microbatches for j in range(1, chunks + 1)]
    return max([3 * microbatches * chunks + ranks - 1, *late]) / chunks


def down_and_up(ranks, chunks, microbatches):
    """The same for a V, where rank 0 has the first and the last stage."""
    full, m = 6 * microbatches + ranks - 1, microbatches
    return max(full, 5 * m + 2 * ranks - 1, 4 * ranks - 1 + 2 * m) / 2


# (least, most) of the makespan at unit costs, gradients sent after B; equal where it is known.
MAKESPANS = {
    "naive": lambda p, v, m: (3 * p * m,) * 2,
    **dict.fromkeys(
        ("gpipe", "1f1b", "eager_1f1b", "looped_bfs", "interleaved_1f1b", "fused_1f1b"),
        lambda p, v, m: (unsplit(p, v, m),) * 2,
    ),
    **dict.fromkeys(("zb_h1", "zb_h2", "interleaved_zb"), lambda p, v, m: (ring(p, v, m),) * 2),
    "fused_zb": lambda p, v, m: (ring(p, v, m), 3 * m + (p - 1) / v if m >= p else unsplit(p, v, m)),
    "zb_v": lambda p, v, m: (down_and_up(p, v, m), down_and_up(p, v, m) + (m < p)),
    "dualpipe_v": lambda p, v, m: (down_and_up(p, v, m), down_and_up(p, v, m) + (m < p)),
    "v_half": lambda p, v, m: (down_and_up(p, v, m), 3 * max(m, p) + max(0, 3 * p / 2 - 2)),
    "v_min": lambda p, v, m: (down_and_up(p, v, m), 3 * max(m, p) + max(0, 2 * p - 3 / 2)),
}


def assert_as_stated(name, sizes):
    for ranks, microbatches, chunks in itertools.product(*sizes, chunk_counts(name, 4)):
        schedule = build(name, ranks, microbatches, chunks)
        where = (name, ranks, microbatches, chunks)
        timeline = schedule.simulate(send="after_B")  # it checks the schedule
        assert max(timeline.peak_live) <= min(microbatches, PEAKS[name](ranks, chunks, microbatches)), where
        least, most = MAKESPANS[name](ranks, chunks, microbatches)
        assert least - 1e-6 <= timeline.makespan <= most + 1e-6, (where, timeline.makespan, least, most)
        assert schedule.name == name and schedule.num_ranks == ranks and schedule.num_chunks == chunks
        assert schedule.placement == ("v" if name in TWO_CHUNKS else "loop")


@pytest.mark.parametrize("name", names())
def test_all_small_sizes_are_valid_within_their_memory_and_as_short_as_stated(name):
    assert_as_stated(name, (range(1, 9), range(1, 21)))


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("ranks", [12, 16])
def test_larger_sizes_too(name, ranks):
    assert_as_stated(name, ([ranks], [ranks // 2, ranks + 3, 2 * ranks]))


# P=8, M=16, the design's table and better: (V, makespan with gradients sent after B, in lockstep, peak).
TABLE = [
    ("1f1b", 1, 69, None, 8),
    ("eager_1f1b", 1, 69, None, 15),
    ("looped_bfs", 2, 58.5, 58.5, 16),
    ("interleaved_1f1b", 2, 58.5, None, 11.5),
    ("fused_1f1b", 2, 58.5, 58.5, 11.5),
    ("fused_1f1b", 4, 53.25, 53.25, 9.75),
    ("zb_h1", 1, 55, 55, 8),
    ("zb_h2", 1, 55, 55, 15),
    ("interleaved_zb", 2, 51.5, 51.5, 8),
    ("interleaved_zb", 4, 49.75, 49.75, 8),
    ("fused_zb", 2, 51.5, 54, 11.5),
    ("fused_zb", 4, 49.75, 51, 9.75),
    ("zb_v", 2, 51.5, 51.5, 8),
    ("v_half", 2, 56.5, 56.5, 5),
    ("v_min", 2, 60.5, 60.5, 4),  # the paper's order takes 61.5
    ("dualpipe_v", 2, 51.5, None, 8.5),
]


@pytest.mark.parametrize(("name", "chunks", "makespan", "lockstep", "peak"), TABLE)
def test_the_table_of_eight_ranks_and_sixteen_microbatches(name, chunks, makespan, lockstep, peak):
    schedule = build(name, 8, 16, chunks)
    timeline = schedule.simulate(send="after_B")
    assert timeline.makespan == makespan
    assert max(timeline.peak_live) == peak
    if lockstep is not None:
        assert schedule.simulate(mode="lockstep", send="after_B").makespan == lockstep


FAMILIES = {
    "torch_LoopedBFS": "looped_bfs",
    "torch_InterleavedZeroBubble": "interleaved_zb",
    "torch_ZBVZeroBubble": "zb_v",
    "torch_DualPipeV": "dualpipe_v",
    "ds_DualPipeV": "dualpipe_v",
    "zb_ZB1P": "zb_h1",
    "zb_ZB2P": "zb_h2",
    "zb_ZBV": "zb_v",
    "zb_VHalf": "v_half",
    "zb_VMin": "v_min",
    "zb_VPP": "interleaved_1f1b",
}


def others():
    """(our name, path) of every file that others computed for a family of ours."""
    paths = sorted([*DATA.glob("*.csv"), *(DATA / "more").glob("*.csv")])
    return [(ours, path) for path in paths for start, ours in FAMILIES.items() if path.name.startswith(start)]


@pytest.mark.parametrize(("name", "path"), others(), ids=lambda x: getattr(x, "stem", x))
def test_never_longer_nor_larger_than_what_others_compute(name, path):
    theirs = from_csv(path)
    ours = build(name, theirs.num_ranks, theirs.num_microbatches, theirs.num_chunks)
    mine, reference = ours.simulate(send="after_B"), theirs.simulate(send="after_B")
    assert mine.makespan <= reference.makespan
    assert max(mine.peak_live) <= max(reference.peak_live)
    if name == "dualpipe_v":
        assert ours.ticks == theirs.ticks


def test_what_others_compute_is_there():
    assert {name for name, _ in others()} == set(FAMILIES.values())
    assert len(others()) > 60 and len(references()) > 40


@pytest.mark.parametrize("name", names())
def test_only_the_impossible_is_refused(name):
    possible = (1,) if name in ONE_CHUNK else (2,) if name in TWO_CHUNKS else (1, 2, 3, 4)
    assert chunk_counts(name, 4) == possible
    for chunks in range(1, 5):
        if chunks in possible:
            build(name, 2, 2, chunks)
            continue
        nearest = "Use num_chunks=2" if name in TWO_CHUNKS else "Use num_chunks=1 or pipeline.schedule="
        with pytest.raises(SettingError, match=rf"pipeline\.num_chunks={chunks} is not .: {name} .*\. {nearest}"):
            build(name, 2, 2, chunks)
