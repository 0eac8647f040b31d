"""The pages in docs/ are true: what they draw and count is what the code draws and counts."""

import pathlib
import re

import pytest

from jaxpar.schedule import Costs, build, chunk_counts, names
from jaxpar.schedule.search import search

COMPARISON = (pathlib.Path(__file__).parents[1] / "docs" / "comparison.md").read_text()


def _build(name, num_ranks, num_microbatches):
    """With two chunks where it takes them; the baseline with one."""
    return build(name, num_ranks, num_microbatches, 1 if name == "naive" else max(chunk_counts(name)))


@pytest.mark.parametrize("name", names())
def test_the_comparison_counts_as_the_simulator(name):
    found = re.search(rf"^\| `{name}` \|(.*)\|$", COMPARISON, re.M)[1]
    schedule = _build(name, 8, 16)
    chunks = schedule.num_chunks
    free, lockstep = schedule.simulate(), schedule.simulate(mode="lockstep")
    costs = _uneven(chunks)
    numbers = [chunks, max(free.peak_live), max(free.pending_weight_grads), schedule.simulate(send="after_B").makespan]
    numbers += [free.makespan, lockstep.makespan, 100 * free.bubble]
    numbers += [schedule.simulate(costs, mode=mode).makespan for mode in ("free", "lockstep")]
    _assert_printed(found, numbers)


def _uneven(chunks, recompute=0.0):
    return Costs(F=1 / chunks, I=1.6 / chunks, W=0.7 / chunks, R=recompute / chunks, hop=0.1)


@pytest.mark.parametrize("name", ["v_min", "v_half", "1f1b", "interleaved_1f1b"])
def test_the_comparison_says_what_little_memory_costs(name):
    """v_min was once advised before recomputation, whatever actions cost."""
    found = re.findall(rf"^\| `{name}` \|(.*)\|$", COMPARISON, re.M)[1]
    schedules = [_build(name, 8, num_microbatches) for num_microbatches in (16, 64)]
    numbers = [max(schedules[0].simulate().peak_live)]
    numbers += [s.simulate(_uneven(s.num_chunks)).makespan for s in schedules]
    numbers += [s.with_recompute().simulate(_uneven(s.num_chunks, 1.0)).makespan for s in schedules]
    _assert_printed(found, numbers)


def test_v_min_is_longer_than_recomputation_but_where_actions_cost_the_same():
    v_min, other = _build("v_min", 8, 64), build("1f1b", 8, 64).with_recompute()
    assert v_min.simulate(_uneven(2)).makespan > other.simulate(_uneven(1, 1.0)).makespan
    equal, recomputed = v_min.simulate().makespan, other.simulate(Costs(R=1.0)).makespan
    assert f"`v_min` takes\n{equal:g}, 1F1B with everything recomputed {recomputed:g}." in COMPARISON
    assert equal < recomputed


@pytest.mark.slow
def test_the_search_is_shorter_than_v_min_under_its_cap():
    found = [search(8, 16, 2, costs=_uneven(2), max_live=cap).timeline.makespan for cap in (4, 5)]
    first, second = (round(makespan, 2) for makespan in found)
    assert f"finds {first:g} under `v_min`'s cap of 4 and {second:g} under `v_half`'s of 5" in COMPARISON


def _assert_printed(row, numbers):
    """The cells of a row are the numbers, to as many decimals as they have."""
    for printed, number in zip(row.replace("%", "").split("|"), numbers, strict=True):
        decimals = len(printed.strip().partition(".")[2])
        assert float(printed) == pytest.approx(number, abs=0.5001 * 10**-decimals)


@pytest.mark.parametrize("name", names())
def test_the_comparison_draws_what_is_built(name):
    drawing = re.search(rf"^### {name}\n.*?```\n(.*?)\n```", COMPARISON, re.M | re.S)[1]
    assert drawing.splitlines() == _build(name, 4, 4).render().splitlines()[1:6]
