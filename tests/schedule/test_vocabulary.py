"""E, H and G in a schedule's ticks."""

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import Action, Schedule, build, from_csv
from tests.schedule.common import reference_files


def ticks_of(schedule, kind, rank):
    return {a.microbatch: t for t, row in enumerate(schedule.ticks) for a in row[rank] if a.kind == kind}


def backward_ticks(schedule, stage):
    rank = schedule.locate(stage)[0]
    cells = ((t, a) for t, row in enumerate(schedule.ticks) for a in row[rank] if a.stage == stage and a.kind in "BI")
    return {a.microbatch: t for t, a in cells}


@pytest.mark.parametrize("lag", [0, 1, 2, 50])
@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
def test_where_the_actions_go(vocabulary, lag):
    plain = [build(n, 4, 6, v) for n, v in (("naive", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2))]
    for before in plain + [from_csv(path) for path in reference_files()]:
        after = before.with_vocabulary(vocabulary, head_lag=lag)
        after.check()
        assert after.vocabulary == vocabulary and after.num_ticks == before.num_ticks
        stripped = [tuple(a for a in order if a.kind not in "EHG") for order in after.actions]
        assert stripped == list(before.actions)
        last = before.num_stages - 1
        first_rank, last_rank = before.locate(0)[0], before.locate(last)[0]
        forward = {
            a.microbatch: t for t, row in enumerate(before.ticks) for a in row[last_rank] if a[:2] == (last, "F")
        }
        entry = {a.microbatch: t for t, row in enumerate(before.ticks) for a in row[first_rank] if a[:2] == (0, "F")}
        backward = backward_ticks(before, last)
        for rank in range(before.num_ranks):
            everywhere = vocabulary == "pipe"
            assert ticks_of(after, "E", rank) == (entry if everywhere or rank == first_rank else {})
            assert ticks_of(after, "G", rank) == (backward_ticks(before, 0) if everywhere or rank == first_rank else {})
            heads = ticks_of(after, "H", rank)
            assert sorted(heads) == (sorted(forward) if everywhere or rank == last_rank else [])
            assert all(forward[m] <= t <= min(forward[m] + lag, backward[m]) for m, t in heads.items())
            if len(set(min(forward[m] + lag, backward[m]) for m in forward)) == len(forward):
                assert all(t == min(forward[m] + lag, backward[m]) for m, t in heads.items())


def test_a_lag_of_one_costs_1f1b_no_tick():
    schedule = build("1f1b", 2, 3).with_vocabulary("pipe", head_lag=1)
    assert [" ".join(map(str, row[1])) for row in schedule.ticks] == [
        "0E0", "0E1 1F0", "1H0 1B0", "1F1 0G0", "0E2 1H1 1B1", "1F2 0G1", "1H2 1B2", "0G2",
    ]  # fmt: skip


@pytest.mark.parametrize("lag", range(7))
def test_heads_do_not_collide_where_backwards_run_in_reverse(lag):
    for m in range(1, 6):
        order = [Action(0, "F", i) for i in range(m)] + [Action(0, "B", i) for i in reversed(range(m))]
        schedule = Schedule.from_orders("reverse", 1, 1, m, "loop", [order]).with_vocabulary("ends", head_lag=lag)
        schedule.check()


def test_none_changes_nothing():
    schedule = build("1f1b", 2, 3)
    assert schedule.with_vocabulary(None) is schedule


def test_bad_settings_are_refused():
    schedule = build("1f1b", 2, 3)
    with pytest.raises(SettingError, match=r"pipeline\.vocabulary=all is unknown: .* Use ends or pipe"):
        schedule.with_vocabulary("all")
    with pytest.raises(SettingError, match="comes twice"):
        schedule.with_vocabulary("ends").with_vocabulary("pipe")
    with pytest.raises(SettingError, match="head_lag=-1 is negative"):
        schedule.with_vocabulary("ends", head_lag=-1)


def test_actions_name_the_stage_they_belong_to():
    schedule = build("interleaved_1f1b", 2, 2, 2).with_vocabulary("ends")
    assert Action(0, "E", 1) in schedule.actions[0] and Action(0, "G", 1) in schedule.actions[0]
    assert Action(3, "H", 1) in schedule.actions[1]
    assert schedule.owner(Action(3, "H", 1)) == 1
