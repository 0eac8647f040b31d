"""Zero-bubble families: what each promises beside its makespan and memory."""

import pytest

from jaxpar.schedule import build
from tests.schedule.test_lower import assert_right

V_FAMILIES = ("zb_v", "v_half", "v_min", "dualpipe_v")


def span(schedule, rank):
    ticks = [t for t, row in enumerate(schedule.ticks) if row[rank]]
    return ticks[0], ticks[-1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13])
def test_no_rank_of_zb_h2_waits_once_it_has_begun(ranks):
    for microbatches in (2 * ranks - 1, 2 * ranks, 3 * ranks + 1):
        schedule = build("zb_h2", ranks, microbatches)
        assert [span(schedule, r) for r in range(ranks)] == [(r, r + 3 * microbatches - 1) for r in range(ranks)]


@pytest.mark.parametrize(("name", "chunks"), [("zb_h1", 1), ("zb_h2", 1), ("interleaved_zb", 2), ("zb_v", 2)])
def test_few_weight_gradients_wait(name, chunks):
    for ranks in (1, 2, 4, 8):
        schedule = build(name, ranks, 4 * ranks, chunks)
        pending = schedule.simulate().pending_weight_grads
        bounds = [{"zb_h1": rank + 1, "zb_h2": 2 * rank + 1}.get(name, ranks / 2) for rank in range(ranks)]
        assert all(n <= bound for n, bound in zip(pending, bounds, strict=True))


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_v", "v_half", "v_min", "interleaved_zb"])
def test_memory_does_not_grow_with_microbatches(name):
    chunks = 2 if name in (*V_FAMILIES, "interleaved_zb") else 1
    slots = [build(name, 4, m, chunks).lower().num_slots for m in (16, 64)]
    peaks = [max(build(name, 4, m, chunks).simulate().peak_live) for m in (16, 64)]
    assert peaks[0] == peaks[1]
    assert all(abs(slots[0][buffer] - slots[1][buffer]) <= 1 for buffer in slots[0])


@pytest.mark.parametrize("name", V_FAMILIES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_turn_of_a_v_needs_no_message(name, ranks):
    for microbatches in (1, ranks, 2 * ranks + 1):
        schedule = build(name, ranks, microbatches, 2)
        plan = schedule.lower()
        messages = [0, 0, 0, 0]
        for row in plan.pattern:
            for channel, index in enumerate(row):
                pattern = plan.patterns[channel][index]
                messages[channel] += len(pattern)
                if channel in (0, 2):
                    assert all(target == source + 1 for source, target in pattern)
                else:
                    assert all(target == source - 1 for source, target in pattern)
        # F of chunk 0 down, F of chunk 1 up, I of chunk 1 down, I of chunk 0 up.
        assert messages == [(ranks - 1) * microbatches] * 4


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("vocabulary", [None, "ends", "pipe"])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("eager_1f1b", 1), ("looped_bfs", 2), ("looped_bfs", 3), ("fused_1f1b", 1), ("fused_1f1b", 2),
        ("fused_1f1b", 3), ("fused_zb", 1), ("fused_zb", 2), ("fused_zb", 3), ("zb_h1", 1), ("zb_h2", 1),
        ("interleaved_zb", 2), ("interleaved_zb", 3), ("zb_v", 2), ("v_half", 2), ("v_min", 2), ("dualpipe_v", 2),
    ],
)  # fmt: skip
def test_plans_read_the_right_values(name, chunks, vocabulary, recompute):
    for ranks, microbatches in ((1, 3), (2, 1), (2, 5), (3, 7), (4, 3), (4, 8)):
        assert_right(build(name, ranks, microbatches, chunks).with_vocabulary(vocabulary), recompute)
