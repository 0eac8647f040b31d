"""A schedule for one's own costs and memory: the best of all named ones under a cap, and then better."""

import dataclasses
import functools
import math

import numpy as np

from jaxpar.errors import ScheduleError, SettingError
from jaxpar.schedule import evolve, registry
from jaxpar.schedule.action import Action
from jaxpar.schedule.bound import lower_bound
from jaxpar.schedule.cap import ROUNDING, check_max_live
from jaxpar.schedule.check import peak_chunks
from jaxpar.schedule.costs import Costs, check_costs
from jaxpar.schedule.problem import KINDS, Problem
from jaxpar.schedule.schedule import Schedule
from jaxpar.schedule.seeds import seeds
from jaxpar.schedule.timeline import Timeline

# Steps of the list schedulers that a search may take: about 2 seconds of one core.
_STEPS = 12_000
# Ticks of list schedules at unit costs, in groups of rules: about half a second a placement for 8 ranks.
_SEED_TICKS = 3_200
_SEEDS = 12
# The share of the steps in which all pools are improved, before the best one alone.
_TRIAL = 0.5
# Within this, relative, makespans are equal: sums of the same costs in another order differ by roundings.
_CLOSE = 1e-9


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      schedule: Schedule with the name "auto", without vocabulary actions and R.
      timeline: its Timeline under the asked simulator, with those that were asked for.
      lower_bound: float; no schedule of this many ranks, chunks and microbatches, of either placement, is shorter under
        the cap (see bound.lower_bound).
      start: name of the best named schedule within the cap, from which the search started.
      start_makespan: float, its makespan.
    """

    schedule: Schedule
    timeline: Timeline
    lower_bound: float
    start: str
    start_makespan: float


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The simulator that the user asked for, and what the run adds to a schedule."""

    costs: Costs
    mode: str
    send: str
    vocabulary: str | None
    recompute: bool

    def simulate(self, schedule):
        schedule = schedule.with_recompute() if self.recompute else schedule
        return schedule.with_vocabulary(self.vocabulary).simulate(self.costs, self.mode, self.send)


def search(
    num_ranks,
    num_microbatches,
    num_chunks=1,
    costs=None,
    mode="free",
    max_live=None,
    send="after_I",
    vocabulary=None,
    recompute=False,
    effort=1.0,
):
    """The shortest schedule found under a simulator and a memory cap, never longer than any named one within the cap.

    Starts from all named schedules and from list schedules of many kinds under the cap, with both placements, and
    improves them: many list schedulers side by side, each after a disturbed copy of the best times, compacted
    forwards and backwards. Ends early at the lower bound. The result depends on nothing but the arguments.

    Args:
      num_ranks, num_microbatches, num_chunks: ints >= 1.
      costs: Costs; None is Costs.unit(num_chunks).
      mode, send: the simulator, as in Schedule.simulate.
      max_live: the most microbatches of a whole rank's activations (a chunk counts 1/V) that any rank may hold, at
        least 1; None: no cap.
      vocabulary: None, "ends" or "pipe": what the run will add by with_vocabulary, whose costs E, H and G then count.
      recompute: the run will add R by with_recompute, whose costs R then count.
      effort: float >= 0, scales the time of the search: 1 takes about 5 s of one core, 0 chooses among the named ones.
        Over 6,000 actions (12,000 with one chunk) are improved with more than 1 only, but for the list schedules.

    Returns:
      Found.

    Raises:
      SettingError: a cap under 1, costs that are none or for another number of stages, an unknown mode, send or
        vocabulary.
    """
    costs = Costs.unit(num_chunks) if costs is None else check_costs(costs)
    slots = _slots(max_live, num_chunks, num_microbatches)
    asked = _Asked(costs, mode, send, vocabulary, recompute)
    effort = _check_effort(effort)
    named = _named(num_ranks, num_microbatches, num_chunks, slots)
    best, timeline = _shortest(named, asked)
    problems = _problems(num_ranks, num_microbatches, num_chunks, slots, asked)
    bound = min(lower_bound(*_exact(problem, asked)) for problem in problems)
    found, ran = best, timeline
    if timeline.makespan > bound * (1 + _CLOSE):
        found, ran = _shortest([best, *_improved(problems, named, asked, bound, effort)], asked)
    found, ran = (dataclasses.replace(x, name="auto") for x in (found, ran))
    return Found(found, ran, bound, best.name, timeline.makespan)


@functools.wraps(search)
def auto(*sizes, **options):
    return search(*sizes, **options).schedule


def _slots(max_live, num_chunks, num_microbatches):
    """Chunk activations a rank may hold."""
    max_live = check_max_live(max_live)
    if max_live < 1 - ROUNDING:
        raise SettingError(
            f"pipeline.max_live={max_live:g} is under 1: when a microbatch reaches the loss, every rank holds "
            "the activations of all its chunks, whatever the schedule. Use 1 or more."
        )
    return int(min(num_chunks * num_microbatches, max_live * num_chunks + ROUNDING))


def _check_effort(effort):
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 <= effort < math.inf:
        raise SettingError(f"effort={effort} is not a number of at least 0: it scales the search's time. Use 1.")
    return effort


def _named(num_ranks, num_microbatches, num_chunks, slots):
    """Every named schedule that has these sizes and keeps the cap; naive is always among them."""
    schedules = []
    for name in registry.names():
        try:
            schedules.append(registry.build(name, num_ranks, num_microbatches, num_chunks))
        except SettingError:
            continue  # not with this number of chunks
    return [schedule for schedule in schedules if peak_chunks(schedule) <= slots]


def _shortest(schedules, asked):
    """(schedule, timeline) of the shortest; the first of equals."""
    best = None
    for schedule in schedules:
        timeline = asked.simulate(schedule)
        if best is None or timeline.makespan < best[1].makespan * (1 - _CLOSE):
            best = schedule, timeline
    return best


def _problems(num_ranks, num_microbatches, num_chunks, slots, asked):
    """One Problem a placement; E counts as part of the first F, H of the last, G of stage 0's I, R of each I."""
    stages = num_ranks * num_chunks
    cost = {kind: np.array(asked.costs.by_stage(kind, stages)) for kind in "EFHRIWG"}
    if asked.vocabulary:
        share = num_ranks if asked.vocabulary == "pipe" else 1
        cost["F"][0] += cost["E"][0] / share
        cost["F"][-1] += cost["H"][-1] / share
        cost["I"][0] += cost["G"][0] / share
    if asked.recompute:
        cost["I"] = cost["I"] + cost["R"]
    table = np.stack([cost[kind] for kind in KINDS])
    placements = ("loop", "v") if num_chunks > 1 and num_ranks > 1 else ("loop",)
    return [
        Problem(num_ranks, num_chunks, num_microbatches, placement, table, float(asked.costs.hop), slots)
        for placement in placements
    ]


def _exact(problem, asked):
    """lower_bound's arguments: R apart from I, since it may run before the gradient arrives."""
    if not asked.recompute:
        return problem, None
    recompute = np.array(asked.costs.by_stage("R", problem.place.size))
    cost = problem.cost - np.stack([np.zeros_like(recompute), recompute, np.zeros_like(recompute)])
    return dataclasses.replace(problem, cost=cost), recompute


def _improved(problems, named, asked, bound, effort):
    """The best schedules that more list schedules, and disturbing and scheduling again, lead to."""
    rng = np.random.default_rng(0)
    groups = int(effort * _SEED_TICKS / (3 * problems[0].num_chunks * problems[0].num_microbatches))
    sown = [sorted(seeds(problem, groups, rng), key=lambda seed: seed.num_ticks)[:_SEEDS] for problem in problems]
    found = [seed for each in sown for seed in each]
    budget = effort * _STEPS
    if sum(3 * problem.num_columns * problem.num_microbatches for problem in problems) <= 3 * budget:
        pools = []
        for problem, each in zip(problems, sown, strict=True):
            given = [schedule for schedule in named if schedule.placement == problem.placement] + each
            pools += _pools(problem, given, asked.mode == "lockstep", rng)
        _evolve(pools, bound, budget, rng)
        found += [_schedule(pool, times) for pool in pools for times in pool.times]
    return [schedule for schedule in found if schedule is not None and peak_chunks(schedule) <= problems[0].slots]


def _evolve(pools, bound, budget, rng):
    """Generations of all pools, then of the best one, until the bound or the budget is reached."""
    for pool in pools:
        pool.steps = 0
    while (steps := sum(pool.steps for pool in pools)) < budget:
        best = min(pools, key=lambda pool: pool.values[0])
        if best.values[0] <= bound * (1 + _CLOSE):
            break
        evolve.improve(best if steps > _TRIAL * budget else min(pools, key=lambda pool: pool.steps), rng)


def _pools(problem, given, lockstep, rng):
    """What the evolution of a placement starts from; in lockstep a second pool starts from free running schedules."""
    ticks = min((schedule.num_ticks for schedule in given), default=0)
    given = [schedule for schedule in given if schedule.num_ticks < 2 * ticks]
    free = evolve.first(problem, False, [_starts(problem, schedule) for schedule in given], rng)
    if not lockstep:
        return [free]
    placed = [schedule for times in free.times if (schedule := _schedule(free, times)) is not None]
    pools = [evolve.first(problem, True, [_ticks(problem, each) for each in known], rng) for known in (given, placed)]
    evolve.cut(pools[1], free.times, rng)
    return pools


def _starts(problem, schedule):
    """float [C, M]: when each action of a schedule starts, free running."""
    cost = dict(zip(KINDS, problem.cost.tolist(), strict=True))
    timeline = schedule.simulate(Costs(**cost, hop=problem.hop))
    times = np.empty((problem.num_columns, problem.num_microbatches))
    for event in timeline.events:
        start = event.start
        for part in event.action.parts():
            times[problem.column[KINDS.index(part.kind), part.stage], part.microbatch] = start
            start += cost[part.kind][part.stage]
    return np.sort(times, axis=1)


def _ticks(problem, schedule):
    """float [C, M]: each action's tick."""
    times = np.empty((problem.num_columns, problem.num_microbatches))
    for tick, row in enumerate(schedule.ticks):
        for stage, kind, microbatch in (part for cell in row for action in cell for part in action.parts()):
            times[problem.column[KINDS.index(kind), stage], microbatch] = tick
    return np.sort(times, axis=1)


def _schedule(pool, times):
    """The Schedule of times in a pool; None where actions that take no time leave their order open, and wrongly so."""
    problem = pool.problem
    sizes = problem.num_ranks, problem.num_chunks, problem.num_microbatches, problem.placement
    if pool.lockstep:
        ticks = {kind: times[problem.column[i]].astype(int) for i, kind in enumerate(KINDS)}
        return Schedule.from_ticks("auto", *sizes, ticks)
    orders = [[] for _ in range(problem.num_ranks)]
    for kind, columns in zip(KINDS, problem.column, strict=True):
        for stage, column in enumerate(columns):
            depth = stage if kind == "F" else -stage
            for microbatch, start in enumerate(times[column]):
                key = (start, KINDS.index(kind), depth, microbatch)
                orders[problem.owners[stage]].append((key, Action(stage, kind, microbatch)))
    try:
        return Schedule.from_orders("auto", *sizes, [[action for _, action in sorted(order)] for order in orders])
    except ScheduleError:
        return None
