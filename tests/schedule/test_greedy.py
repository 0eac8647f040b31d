"""The list scheduler: caps hold, preferences decide, what cannot end is said."""

import itertools

import numpy as np
import pytest

from jaxpar.schedule import Schedule
from jaxpar.schedule.greedy import Rule, fastest, stage_table

ORDERS = ["I0 I1 F1 F0 W0 W1", "F0 F1 I0 I1 W0 W1", "W0 W1 I1 I0 F1 F0"]


def peaks(schedule, up, down):
    """For each rank the most actions of kind `up` that ran without their `down`."""
    most = []
    for order in schedule.actions:
        counts = np.cumsum([(a.kind == up) - (a.kind == down) for a in order])
        most.append(int(counts.max()))
    return most


@pytest.mark.parametrize("placement", ["loop", "v"])
@pytest.mark.parametrize("order", ORDERS)
def test_caps_hold_and_the_schedule_is_valid(placement, order):
    for ranks, microbatches in itertools.product((1, 2, 3, 5), (1, 2, 4, 7)):
        live, ahead, pending = np.arange(ranks) + 3, np.arange(ranks)[::-1] + 2, np.full(ranks, 2)
        chunk_live = np.stack([live - 1, np.full(ranks, 2)], axis=1)
        rule = Rule(order, live, chunk_live=chunk_live, ahead=np.maximum(ahead, live), pending=pending)
        ticks = fastest(ranks, 2, microbatches, placement, [rule])
        schedule = Schedule.from_ticks("greedy", ranks, 2, microbatches, placement, ticks)
        schedule.check()
        assert all(n <= most for n, most in zip(peaks(schedule, "F", "W"), live, strict=True))
        assert all(n <= 2 for n in peaks(schedule, "I", "W"))
        held = Schedule.from_ticks("one chunk", ranks, 2, microbatches, placement, ticks).actions
        for rank, order_of_rank in enumerate(held):
            for chunk in range(2):
                mine = [a for a in order_of_rank if schedule.locate(a.stage)[1] == chunk]
                counts = np.cumsum([(a.kind == "F") - (a.kind == "W") for a in mine])
                assert counts.max() <= chunk_live[rank, chunk]


def test_ahead_bounds_forwards_without_gradient():
    rule = Rule("F0 I0 W0", 8, ahead=np.array([3, 2, 1]))
    schedule = Schedule.from_ticks("x", 3, 1, 8, "loop", fastest(3, 1, 8, "loop", [rule]))
    assert peaks(schedule, "F", "I") == [3, 2, 1]


def test_the_earliest_end_wins_and_the_first_of_equals():
    slow, quick = Rule("F0 I0 W0", 1), Rule("F0 I0 W0", 4)
    alone = fastest(4, 1, 6, "loop", [quick])
    for rules in ([slow, quick], [quick, slow], [slow, quick, slow]):
        together = fastest(4, 1, 6, "loop", rules)
        assert all(np.array_equal(alone[kind], together[kind]) for kind in "FIW")
    w_first = Rule("W0 F0 I0", 4)
    assert max(t.max() for t in fastest(1, 1, 3, "loop", [quick, w_first]).values()) == 8
    first, second = (fastest(1, 1, 3, "loop", rules)["W"] for rules in ([quick, w_first], [w_first, quick]))
    assert not np.array_equal(first, second)


def test_dues_are_kept_to_the_letter():
    due = np.array([[[0, 10, 20], [1, 2, 12]]])  # F0 I0 I0' F1: the second I is due before the second F and must wait
    with pytest.raises(ValueError, match="caps leave no room"):
        fastest(1, 1, 3, "loop", [Rule("F0 I0 W0", 3, due=due)])
    due = np.array([[[0, 1, 20], [2, 12, 30]]])
    ticks = fastest(1, 1, 3, "loop", [Rule("F0 I0 W0", 3, due=due)])
    merged = sorted((int(t), kind, m) for kind in "FI" for m, t in enumerate(ticks[kind][0]))
    assert [(kind, m) for _, kind, m in merged] == [("F", 0), ("F", 1), ("I", 0), ("I", 1), ("F", 2), ("I", 2)]


def test_stages_of_both_placements():
    assert stage_table(3, 2, "loop").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert stage_table(3, 3, "v").tolist() == [[0, 5, 6], [1, 4, 7], [2, 3, 8]]
