"""R actions: where they go, what they cost, and that the tables have them."""

import dataclasses
import itertools

import pytest

from jaxpar.schedule import Action, Costs, Schedule, ScheduleError, build, chunk_counts, names
from jaxpar.schedule.action import PHASE
from tests.schedule.interpreter import interpret
from tests.schedule.test_lower import assert_right, expected_runs

SIZES = [(1, 3), (2, 5), (4, 8), (3, 2)]


def _built(name, ranks, microbatches):
    return build(name, ranks, microbatches, max(chunk_counts(name)))


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("name", names())
def test_every_input_gradient_has_one_before_it(name, ranks, microbatches):
    plain = _built(name, ranks, microbatches)
    schedule = plain.with_recompute()
    schedule.check()
    recomputed = [a for order in schedule.actions for a in order if a.kind == "R"]
    assert len(recomputed) == len(set(recomputed)) == plain.num_stages * microbatches
    assert schedule.num_ticks == plain.num_ticks
    assert schedule.with_recompute() == schedule


def test_recomputing_fills_the_wait_for_the_gradient():
    schedule = build("1f1b", 4, 8)
    costs = Costs(R=1.0)
    waiting = schedule.with_recompute().simulate(costs)
    in_i = schedule.simulate(Costs(I=2.0))
    assert sum(waiting.busy) == sum(in_i.busy)
    assert waiting.makespan < in_i.makespan


@pytest.mark.parametrize("name", names())
def test_no_payload_leaves_later_but_for_its_own_recomputation(name):
    plain = _built(name, 4, 8)
    free = plain.with_recompute().simulate(Costs.unit(plain.num_chunks)).makespan
    assert free == pytest.approx(plain.simulate().makespan)


def test_at_most_one_microbatch_more_is_held_recomputed():
    plain = build("1f1b", 4, 8).with_vocabulary("ends")
    late, early = plain.lower(recompute=True), plain.with_recompute().lower(recompute=True)
    for pool in ("RI", "RW"):
        assert early.num_slots[pool] <= late.num_slots[pool] + 1


def with_own(plain, ticks):
    """The schedule with R of its own: {(rank, tick): Action}."""
    rows = [list(row) for row in plain.ticks]
    for (rank, tick), action in ticks.items():
        rows[tick][rank] = tuple(sorted((*rows[tick][rank], action), key=lambda a: PHASE[a.kind]))
    return dataclasses.replace(plain, ticks=tuple(map(tuple, rows)))


def spans(schedule):
    """{R action: (rank, the ticks it can run in)}, from its F to its I."""
    when = {(part.kind, *part[::2]): tick for tick, row in enumerate(schedule.ticks) for a in row for part in parts(a)}
    stages, microbatches = range(schedule.num_stages), range(schedule.num_microbatches)
    return {
        Action(s, "R", m): (schedule.locate(s)[0], range(when["F", s, m], when["I", s, m] + 1))
        for s, m in itertools.product(stages, microbatches)
    }


def parts(cell):
    return [part for action in cell for part in action.parts()]


def partly_recomputed(plain):
    """Every way in which the schedule can have R of its own for some of its microbatches."""
    choices = [[None, *((rank, tick) for tick in ticks)] for rank, ticks in spans(plain).values()]
    for chosen in itertools.product(*choices):
        taken = [at for at in chosen if at]
        if len(set(taken)) == len(taken):
            yield {at: action for at, action in zip(chosen, spans(plain), strict=True) if at}


def all_fit(plain, own):
    """Whether the missing R find ticks, by trying every combination."""
    missing = [(rank, ticks) for action, (rank, ticks) in spans(plain).items() if action not in own.values()]
    for chosen in itertools.product(*(ticks for _, ticks in missing)):
        taken = [*own, *((rank, tick) for (rank, _), tick in zip(missing, chosen, strict=True))]
        if len(set(taken)) == len(taken):
            return True
    return False


def of_one_rank(*cells):
    """A schedule of three microbatches, a tick a text."""
    ticks = tuple((tuple(map(Action.parse, cell.split())),) for cell in cells)
    return Schedule("mine", 1, 1, 3, "loop", ticks)


PLAIN = {
    "gpipe": build("gpipe", 1, 3),
    "1f1b": build("1f1b", 2, 2),
    "split": build("zb_h1", 2, 2),
    "chunks": build("naive", 1, 2, 2),
    "late": of_one_rank("0F1", "0F2", "0F0", "0B0", "0B1", "0B2"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_schedule_with_some_R_of_its_own_gets_the_others_or_is_refused(name):
    """A second R of a rank in one tick would take the first one's place in the tables: nan, and no error."""
    plain, verdicts = PLAIN[name], set()
    for own in partly_recomputed(plain):
        schedule, fits = with_own(plain, own), all_fit(plain, own)
        schedule.check()
        verdicts.add(fits)
        if not fits:
            for refused in (schedule.with_recompute, lambda s=schedule: s.lower(recompute=True)):
                with pytest.raises(ScheduleError, match=r" has (\S*R\d) at .* no tick left for \S*R\d. Write .* leave"):
                    refused()
            continue
        full = schedule.with_recompute()
        assert all(action in full.ticks[tick][rank] for (rank, tick), action in own.items())
        assert sum(a.kind == "R" for order in full.actions for a in order) == plain.num_stages * plain.num_microbatches
        assert_right(full, True)
        assert interpret(schedule.lower(recompute=True), schedule, True) == expected_runs(plain, True)
    assert verdicts == ({True, False} if name == "late" else {True})


def test_where_no_tick_is_left_both_actions_are_named():
    schedule = of_one_rank("0F1", "0F2", "0F0 0R1", "0R2 0B0", "0B1", "0B2")
    message = (
        "pipeline.schedule=mine has 0R1 at tick 2 on rank 0: a rank recomputes one microbatch a tick, and from F to I "
        "there is no tick left for 0R0. Write 0R0 too, or leave 0R1 out."
    )
    with pytest.raises(ScheduleError) as error:
        schedule.with_recompute()
    assert str(error.value).splitlines()[0] == message
