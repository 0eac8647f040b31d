"""R actions: where they go, what they cost, and that the tables have them."""

import pytest

from jaxpar.schedule import Costs, build, names
from tests.schedule.test_families import chunks_of

SIZES = [(1, 3), (2, 5), (4, 8), (3, 2)]


def _built(name, ranks, microbatches):
    return build(name, ranks, microbatches, max(chunks_of(name, 2)))


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
