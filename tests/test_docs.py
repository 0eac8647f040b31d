"""The pages in docs/ are true: what they draw and count is what the code draws and counts."""

import pathlib
import re

import pytest

from jaxpar.schedule import Costs, build, chunk_counts, names

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
    costs = Costs(F=1 / chunks, I=1.6 / chunks, W=0.7 / chunks, hop=0.1)
    numbers = [chunks, max(free.peak_live), max(free.pending_weight_grads), schedule.simulate(send="after_B").makespan]
    numbers += [free.makespan, lockstep.makespan, 100 * free.bubble]
    numbers += [schedule.simulate(costs, mode=mode).makespan for mode in ("free", "lockstep")]
    for printed, number in zip(found.replace("%", "").split("|"), numbers, strict=True):
        decimals = len(printed.strip().partition(".")[2])
        assert float(printed) == pytest.approx(number, abs=0.5001 * 10**-decimals)


@pytest.mark.parametrize("name", names())
def test_the_comparison_draws_what_is_built(name):
    drawing = re.search(rf"^### {name}\n.*?```\n(.*?)\n```", COMPARISON, re.M | re.S)[1]
    assert drawing.splitlines() == _build(name, 4, 4).render().splitlines()[1:6]
