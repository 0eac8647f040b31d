"""Improve schedules by their actions' times: disturb the best, schedule again by the new times, keep the better."""

import dataclasses

import numpy as np

from jaxpar.schedule.batch import Rules, list_schedules
from jaxpar.schedule.batch_lockstep import tick_tables

_CLOSE = 1e-9


@dataclasses.dataclass
class Pool:
    """The best found, best first.

    Attributes:
      problem: Problem.
      lockstep: bool; times are ticks, else when each action starts.
      unit: float, the step in which times are disturbed.
      values: list of float, makespans.
      times: list of float [C, M].
      size: int, how many are kept.
      steps: steps of the schedulers so far, what a search costs.
    """

    problem: object
    lockstep: bool
    unit: float
    values: list
    times: list
    size: int = 4
    steps: int = 0

    def add(self, values, times):
        """Keep the best of these and those here; newer ones before older equals, so that the pool drifts."""
        best = np.argsort(values, kind="stable")[: 2 * self.size]
        found = [(float(values[i]), times[i]) for i in best if np.isfinite(values[i])]
        found += list(zip(self.values, self.times, strict=True))
        kept = {}
        for value, time in sorted(found, key=lambda entry: entry[0]):
            kept.setdefault(np.round(time, 6).tobytes(), (value, time))
        self.values, self.times = map(list, zip(*list(kept.values())[: self.size], strict=True))


def batch_size(problem):
    """Schedules that are built side by side: many enough that NumPy's overhead does not count."""
    return int(np.clip(8192 // problem.num_columns, 16, 128))


def first(problem, lockstep, times, rng):
    """A Pool of given schedules and of building blocks.

    Args:
      problem: Problem.
      lockstep: bool.
      times: list of float [C, M], given schedules' ticks in lockstep, else when their actions start; may be empty.
      rng: NumPy's Generator.
    """
    unit = problem.cost.sum(0)[problem.place].sum(1).max() / 3 or 1.0
    pool = Pool(problem, lockstep, 1.0 if lockstep else unit, [], [])
    size = batch_size(problem)
    given = np.stack([np.sort(time, axis=1) for time in times]) if times else np.empty((0, problem.num_columns, 0))
    if lockstep:
        if len(given):
            pool.add(*_ticks(pool, given, np.full(len(given), -1e9)))
            pool.add(*_ticks(pool, given, np.zeros(len(given))))
        cut(pool, blocks(problem, size, rng), rng)
        return pool
    if len(given):
        # As they are: every action when it started, and so in the order in which it did.
        pool.add(*_starts(pool, Rules(given, np.full(len(given), 0.999), np.full(len(given), _CLOSE * unit))))
    keys = blocks(problem, size, rng)
    slack = np.where(rng.random(size) < 0.5, 0.0, np.inf)
    pool.add(*_starts(pool, Rules(keys, np.linspace(0, 0.999, size), slack)))
    return pool


def cut(pool, times, rng):
    """Add free running schedules to a lockstep pool, their times (float [C, M] each) cut into ticks of many lengths."""
    problem, size = pool.problem, batch_size(pool.problem)
    chunk = problem.cost.sum(0)[problem.place].sum(1).max() / 3 / problem.num_chunks or 1.0
    keys = _cycled(times, size) / (chunk * rng.uniform(0.9, 3.5, (size, 1, 1)))
    pool.add(*_ticks(pool, keys, rng.choice([0.0, 0.5, -1e9], size)))


def improve(pool, rng):
    """One generation: the pool's schedules disturbed and scheduled again."""
    size = batch_size(pool.problem)
    keys = _disturbed(pool, size, rng)
    if pool.lockstep:
        pool.add(*_ticks(pool, keys, rng.choice([0.0, 0.0, 0.5, -1e9], size)))
        return
    wait = np.where(rng.random(size) < 0.5, 0.999, rng.uniform(0, 0.999, size))
    slack = np.where(rng.random(size) < 0.5, pool.unit * 10 ** rng.uniform(-2, 1, size), np.inf)
    pool.add(*_starts(pool, Rules(keys, wait, slack)))


def blocks(problem, size, rng):
    """float [size, C, M]: each microbatch's way through the stages at its own pace, one microbatch after another.

    On every way (a chunk's forwards, a chunk's backwards) a microbatch rests equally long at each rank, so that caps
    are met by shortening the ways on which memory is held; the period is mostly the busiest rank's work.
    Source: Qi et al. 2024, arXiv:2405.15362, section 3 (building blocks).
    """
    ranks, stages = problem.num_ranks, problem.place.size
    work = problem.cost.sum(0)[problem.place].sum(1).max()
    unit = work / 3 / problem.num_chunks
    rest = np.repeat(rng.integers(0, 3, (size, 2 * problem.num_chunks)), ranks, axis=1)
    rest[:, ranks - 1 :: ranks] = rng.integers(0, 3, (size, 2 * problem.num_chunks))
    leave = np.concatenate([problem.cost[0], problem.cost[1][::-1]])
    leave = leave + np.concatenate([problem.hops, [0], problem.hops[::-1], [0]])
    leave = np.cumsum(leave + rest * unit * rng.choice([1.0, 0.5], (size, 1)), axis=1)
    time = np.concatenate([np.zeros((size, 1)), leave[:, :-1]], axis=1)
    early = np.where(rng.random(size) < 0.5, 0, rng.uniform(0, 5 * work / 3 * ranks, size))[:, None, None]
    late = np.where(rng.random(size) < 0.5, 0, rng.uniform(0, 5 * work / 3 * ranks, size))[:, None, None]
    forward, backward, weight = problem.column
    key = np.empty((size, problem.num_columns, problem.num_microbatches))
    key[:, forward] = time[:, :stages, None]
    key[:, backward] = time[:, stages:][:, ::-1, None] - early
    key[:, weight] = key[:, backward] + late + unit / 2
    period = work * np.where(rng.random(size) < 0.7, 1.0, rng.uniform(0.6, 1.1, size))
    return key + np.arange(problem.num_microbatches) * period[:, None, None]


def _disturbed(pool, size, rng):
    """Times of the pool's schedules with some columns shifted and some actions moved, by steps of many sizes."""
    base = _cycled(pool.times, size)
    num, columns, _ = base.shape
    scale = (num, 1, 1)
    shift = pool.unit * 10 ** rng.uniform(-1.5, 1, scale) * (rng.random(scale) < 0.6)
    shift = shift * rng.standard_normal((num, columns, 1)) * (rng.random((num, columns, 1)) < _share(-1.5, scale, rng))
    move = pool.unit * 10 ** rng.uniform(-1.5, 1, scale)
    move = move * rng.standard_normal(base.shape) * (rng.random(base.shape) < _share(-2.5, scale, rng))
    return np.sort(base + shift + move, axis=2)


def _cycled(times, size):
    return np.stack([times[i % len(times)] for i in range(size)])


def _share(exponent, shape, rng):
    return 10 ** rng.uniform(exponent, 0, shape)


def _ticks(pool, keys, overhang):
    ticks, values = tick_tables(pool.problem, keys, overhang)
    pool.steps += 3 * int(ticks.max())
    return values, ticks.astype(float)


def _starts(pool, rules):
    """The schedules of the rules, each compacted: scheduled from its end backwards, and from its start again.

    Source: Li and Willis 1992, European Journal of Operational Research 56(3) (forward-backward scheduling).
    """
    problem, graph = pool.problem, pool.problem.graph
    duration = graph.duration[:, None]
    free = np.full(len(rules.wait), np.inf)
    start = list_schedules(problem, graph, rules)
    back = Rules(-(start + duration)[:, :, ::-1], rules.wait, free)
    back = list_schedules(problem, graph.reversed(), back)
    again = -(back + duration)[:, :, ::-1]
    usable = np.isfinite(again).all((1, 2))[:, None, None]
    again = list_schedules(problem, graph, Rules(np.where(usable, again, start), rules.wait, free))
    pool.steps += 3 * problem.num_columns * problem.num_microbatches
    value, value_again = ((x + duration).max((1, 2)) for x in (start, again))
    better = value_again <= value
    return np.where(better, value_again, value), np.where(better[:, None, None], again, start)
