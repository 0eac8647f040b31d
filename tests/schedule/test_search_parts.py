"""What the search is made of: list schedulers, tables, the lower bound, against the simulator and brute force."""

import functools

import numpy as np
import pytest

from jaxpar.schedule import Costs
from jaxpar.schedule.batch import Rules, full_chunks, list_schedules
from jaxpar.schedule.batch_lockstep import tick_tables
from jaxpar.schedule.bound import lower_bound
from jaxpar.schedule.evolve import Pool, blocks
from jaxpar.schedule.problem import Problem
from jaxpar.schedule.search import _schedule, search

SIZES = [(1, 1, 2, "loop"), (2, 1, 3, "loop"), (3, 2, 5, "v"), (2, 3, 4, "loop"), (2, 3, 4, "v"), (4, 2, 3, "v")]


def problem_of(size, slots, seed=0, hop=0.25):
    ranks, chunks, microbatches, placement = size
    cost = np.random.default_rng(seed).integers(1, 9, (3, ranks * chunks)) / 4
    return Problem(ranks, chunks, microbatches, placement, cost, hop, slots)


def costs_of(problem):
    return Costs(*(row.tolist() for row in problem.cost), hop=problem.hop)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_list_schedules_are_the_simulators_and_never_stuck(size):
    rng = np.random.default_rng(1)
    for slots in range(size[1], size[1] * size[2] + 1):
        problem = problem_of(size, slots, seed=slots)
        keys = np.concatenate([blocks(problem, 12, rng), rng.random((12, problem.num_columns, size[2])).cumsum(2)])
        rules = Rules(keys, rng.random(24) * 0.999, np.where(rng.random(24) < 0.3, 0.0, np.inf))
        starts = list_schedules(problem, problem.graph, rules)
        ends = starts + problem.graph.duration[:, None]
        assert np.isfinite(ends).all()
        for start, makespan in zip(starts, ends.max((1, 2)), strict=True):
            schedule = _schedule(Pool(problem, False, 1.0, [], []), start)
            schedule.check(max_live=slots / size[1])
            ran = schedule.simulate(costs_of(problem)).makespan
            # Those with slack idle on purpose, and the simulator does not.
            assert ran <= makespan + 1e-9
        free = np.isinf(rules.slack)
        exact = [
            _schedule(Pool(problem, False, 1.0, [], []), start).simulate(costs_of(problem)).makespan
            for start in starts[free]
        ]
        np.testing.assert_allclose(exact, ends.max((1, 2))[free])


@pytest.mark.parametrize(
    ("size", "slots"),
    [
        *(((1, chunks, 3, "loop"), chunks + more) for chunks in (1, 2, 3, 4) for more in (0, 1, 2)),
        *(((2, 2, 2, placement), slots) for placement in ("loop", "v") for slots in (2, 3)),
    ],
    ids=str,
)
def test_a_chunk_is_full_exactly_where_taking_it_leads_nowhere(size, slots):
    problem = problem_of(size, slots)
    ranks, chunks, microbatches, _ = size

    def following(counts):
        """(column, counts after) for all that inputs and slots allow."""
        for column in range(problem.num_columns):
            before = [b for b in problem.graph.before[column] if b < problem.num_columns]
            if counts[column] < microbatches and all(counts[b] > counts[column] for b in before):
                after = (*counts[:column], counts[column] + 1, *counts[column + 1 :])
                cells = np.reshape(after, (ranks, 3, chunks))
                if ((cells[:, 0] - cells[:, 2]).sum(1) <= slots).all():
                    yield column, after

    @functools.cache
    def ends(counts):
        return min(counts) == microbatches or any(ends(after) for _, after in following(counts))

    todo, seen = [(0,) * problem.num_columns], set()
    while todo:
        counts = todo.pop()
        cells = np.reshape(counts, (ranks, 3, chunks))
        full = full_chunks(cells[:, 0], cells[:, 2], slots)
        for column, after in following(counts):
            rank, at = divmod(column, 3 * chunks)
            if at < chunks:
                assert full[rank, at] != ends(after)
            if ends(after) and after not in seen:
                seen.add(after)
                todo.append(after)
    assert (microbatches,) * problem.num_columns in seen


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tables_of_ticks_take_as_long_as_the_simulator_says(size):
    rng = np.random.default_rng(2)
    for slots in range(size[1], size[1] * size[2] + 1):
        problem = problem_of(size, slots, seed=slots)
        keys = blocks(problem, 24, rng)
        ticks, makespans = tick_tables(problem, keys, rng.choice([0.0, 0.5, -9.0], 24))
        for table, makespan in zip(ticks, makespans, strict=True):
            schedule = _schedule(Pool(problem, True, 1.0, [], []), table)
            schedule.check(max_live=slots / size[1])
            assert schedule.simulate(costs_of(problem), "lockstep").makespan == pytest.approx(makespan)


@pytest.mark.parametrize("slots_free", [0, 1, 9])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [(2, 1, 2, "loop"), (3, 1, 2, "loop"), (2, 1, 3, "loop"), (2, 2, 1, "v")], ids=str)
def test_bound_and_search_against_brute_force(size, seed, slots_free):
    slots = min(size[1] + slots_free, size[1] * size[2])
    problem = problem_of(size, slots, seed, hop=0.25 * (seed % 3))
    best = brute_force(problem)
    assert lower_bound(problem) <= best + 1e-9
    if size[1] == 1:  # one placement
        found = search(size[0], size[2], costs=costs_of(problem), max_live=slots, effort=0.2)
        assert found.timeline.makespan == pytest.approx(best) and found.lower_bound <= best + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_two_chunks_under_the_tightest_cap_against_brute_force(seed):
    problems = [problem_of((2, 2, 2, placement), 2, seed) for placement in ("loop", "v")]
    bests = [brute_force(problem) for problem in problems]
    for problem, best in zip(problems, bests, strict=True):
        assert lower_bound(problem) <= best + 1e-9
    found = search(2, 2, 2, costs=costs_of(problems[0]), max_live=1, effort=0.2)
    assert found.timeline.makespan == pytest.approx(min(bests))


def brute_force(problem):
    """The least makespan, by trying every order of starting actions; each starts as early as it can."""
    graph, microbatches = problem.graph, problem.num_microbatches
    width, chunks = 3 * problem.num_chunks, problem.num_chunks

    def end_of(column, counts, ends, clocks):
        """When the column's next action would end, or None while it cannot start."""
        rank, number = column // width, counts[column]
        if number == microbatches:
            return None
        if column % width < chunks:
            cells = counts[rank * width : (rank + 1) * width]
            if sum(cells[:chunks]) - sum(cells[-chunks:]) >= problem.slots:
                return None
        start = clocks[rank]
        for before, lag in zip(graph.before[column], graph.before_lag[column], strict=True):
            if before < problem.num_columns:
                if counts[before] <= number:
                    return None
                start = max(start, ends[before][number] + lag)
        return start + graph.duration[column]

    @functools.cache
    def least(counts, ends, clocks):
        if min(counts) == microbatches:
            return max(clocks)
        best = np.inf
        for column in range(problem.num_columns):
            end = end_of(column, counts, ends, clocks)
            if end is not None:
                rank = column // width
                best = min(
                    best,
                    least(
                        (*counts[:column], counts[column] + 1, *counts[column + 1 :]),
                        (*ends[:column], (*ends[column], end), *ends[column + 1 :]),
                        (*clocks[:rank], end, *clocks[rank + 1 :]),
                    ),
                )
        return best

    return least((0,) * problem.num_columns, ((),) * problem.num_columns, (0.0,) * problem.num_ranks)


def test_bounds_that_are_known():
    unit = np.ones((3, 8)) / 2
    assert lower_bound(Problem(4, 2, 8, "v", unit, 0.0, 16)) == 24 + 1.5, "a rank's work and the way to it"
    assert lower_bound(Problem(4, 2, 1, "loop", unit, 0.0, 2)) == 8.5, "one microbatch's way there and back"
    assert lower_bound(Problem(4, 2, 8, "loop", unit, 0.0, 2)) == 8 * (8.5 + 4.5) / 2, "the first rank's slots"
    assert lower_bound(Problem(4, 1, 8, "loop", unit[:, :4] * 2, 0.0, 1)) == 8 * 9, "one microbatch at a time"
