"""What a search starts from besides the named schedules: list schedules with caps and preferences at random."""

import numpy as np

from jaxpar.schedule.greedy import Rule, fastest
from jaxpar.schedule.schedule import Schedule

_RULES = 24


def seeds(problem, groups, rng):
    """Schedules that count every action as one tick, within the problem's cap: the fastest of each group of rules."""
    sizes = problem.num_ranks, problem.num_chunks, problem.num_microbatches, problem.placement
    found = []
    for _ in range(groups):
        rules = [_due(problem, rng) if rng.random() < 0.25 else _tapered(problem, rng) for _ in range(_RULES)]
        try:
            ticks = fastest(*sizes, rules)
        except ValueError:
            continue  # every rule of the group got stuck
        found.append(Schedule.from_ticks("seed", *sizes, ticks))
    return found


def _order(problem, rng):
    """Any order of the Fs and Is, then the Ws, which fill what room is left."""
    split = [f"{kind}{chunk}" for kind in "FI" for chunk in range(problem.num_chunks)]
    return " ".join([*rng.permutation(split), *rng.permutation([f"W{chunk}" for chunk in range(problem.num_chunks)])])


def _tapered(problem, rng):
    """Caps on each chunk that fall from one rank to the next for even chunks, and rise for odd ones.

    As on a V: the first rank waits longest for the gradient of chunk 0 and least for that of chunk 1.
    """
    ranks, chunks = np.arange(problem.num_ranks)[:, None], np.arange(problem.num_chunks)
    odd = chunks % 2 == 1
    far = np.where(rng.random(problem.num_chunks) < 0.3, rng.integers(0, problem.slots, problem.num_chunks), 0)
    near = rng.integers(0, 4, problem.num_chunks) + far
    slope = rng.choice([0, 1 / 3, 1 / 2, 1], problem.num_chunks)
    live = np.ceil(np.where(odd, near + 1 + slope * ranks, problem.slots - near - slope * ranks))
    # Of a chunk never the slots that its microbatch's later chunks need; problem.room says how many those are.
    return Rule(_order(problem, rng), problem.slots, chunk_live=np.clip(live, 1, problem.room).astype(int))


def _due(problem, rng):
    """Every microbatch goes through the stages at one pace, 3 V ticks after the one before.

    Source: Qi et al. 2024, arXiv:2405.15362, section 3 (building blocks).
    """
    ways, ranks = 2 * problem.num_chunks, problem.num_ranks
    gaps = np.repeat(rng.integers(1, 4, ways), ranks)
    gaps[ranks - 1 :: ranks] = rng.integers(1, 4, ways)
    time = np.concatenate([[0], gaps.cumsum()[:-1]])
    stages = problem.place.size
    columns = np.concatenate([time[:stages][problem.place], time[stages:][::-1][problem.place]], axis=1)
    due = columns[:, :, None] + 3 * problem.num_chunks * np.arange(problem.num_microbatches)
    pending = np.full(ranks, ranks) if rng.random() < 0.5 else None
    return Rule(_order(problem, rng), problem.slots, due=due, pending=pending)
