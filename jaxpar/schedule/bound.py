"""The least time that any schedule of a step can take."""

import heapq

import numpy as np


def lower_bound(problem, recompute=None):
    """A makespan that no schedule of this placement, these costs and this cap is under, whether free or in lockstep.

    The largest of two bounds over the ranks.

    *One machine.* Each stage takes identical microbatches one at a time, so the k-th F of a stage ends no earlier than
    the k-th would in a chain of machines of its own; from there on the same holds for I. Read backwards, so much time
    must follow the k-th last. A rank has all actions of its stages to do, each between such a head and tail; with one
    machine that may interrupt its work the best is known exactly: always the action with the longest tail. This has the
    way to the rank and back, the rank's work, and a microbatch's critical path as special cases.

    *Slots.* An activation takes a slot from the start of its F to the end of its W, at least for F, the way to the last
    stage and back, I and W. With n slots a rank cannot hold all of its in less than their sum / n after its first F.

    Args:
      problem: Problem.
      recompute: float [S], what a recomputation costs that may run between F and I; None where there is none.

    Returns:
      float, in the unit of the costs.

    Source: Carlier and Pinson 1989, Management Science 35(2) (heads, tails and the preemptive one-machine bound).
    """
    recompute = np.zeros(problem.place.size) if recompute is None else np.asarray(recompute, float)
    heads, tails = _heads(problem, recompute), _tails(problem, recompute)
    costs = np.concatenate([problem.cost, [recompute]])
    alone = heads[1][:, 0] + problem.cost[1]  # when the first I of each stage can end
    held = alone - heads[0][:, 0] + problem.cost[2]
    bound = 0.0
    for stages in problem.place:
        jobs = [
            (heads[kind][stage, k], costs[kind, stage], tails[kind][stage, k])
            for kind in range(4)
            for stage in stages
            for k in range(problem.num_microbatches)
            if costs[kind, stage]
        ]
        slots = heads[0][stages, 0].min() + problem.num_microbatches * held[stages].sum() / problem.slots
        bound = max(bound, slots, _one_machine(jobs))
    return float(bound)


def _chain(release, cost):
    """When the k-th of identical jobs on one machine ends at the earliest; release ascends."""
    k = np.arange(len(release))
    return cost * (k + 1) + np.maximum.accumulate(release - cost * k)


def _heads(problem, recompute):
    """Earliest starts of the k-th F, I, W and R: float [4, S, M]."""
    stages, num = problem.place.size, problem.num_microbatches
    forward, backward = np.zeros((stages, num)), np.zeros((stages, num))
    arrived = np.zeros(num)
    for stage in range(stages):
        forward[stage] = _chain(arrived, problem.cost[0, stage])
        if stage < stages - 1:
            arrived = forward[stage] + problem.hops[stage]
    arrived = np.zeros(num)
    for stage in reversed(range(stages)):
        backward[stage] = _chain(np.maximum(arrived, forward[stage] + recompute[stage]), problem.cost[1, stage])
        if stage:
            arrived = backward[stage] + problem.hops[stage - 1]
    first, second = problem.cost[0][:, None], problem.cost[1][:, None]
    return np.stack([forward - first, backward - second, backward, forward])


def _tails(problem, recompute):
    """Least time after the k-th F, I, W and R: float [4, S, M]; the same chains, read from the end."""
    stages, num = problem.place.size, problem.num_microbatches
    forward, backward = np.zeros((stages, num)), np.zeros((stages, num))
    weight = problem.cost[2][:, None]
    follows = np.zeros(num)
    for stage in range(stages):
        backward[stage] = _chain(np.maximum(follows, weight[stage]), problem.cost[1, stage])
        if stage < stages - 1:
            follows = backward[stage] + problem.hops[stage]
    follows = np.zeros(num)
    for stage in reversed(range(stages)):
        forward[stage] = _chain(np.maximum(follows, backward[stage] + recompute[stage]), problem.cost[0, stage])
        if stage:
            follows = forward[stage] + problem.hops[stage - 1]
    first, second = problem.cost[0][:, None], problem.cost[1][:, None]
    return np.stack([forward - first, backward - second, np.zeros((stages, num)), backward])[:, :, ::-1]


def _one_machine(jobs):
    """Least makespan of (head, cost, tail) on a machine that may interrupt: always the longest tail first.

    Source: Jackson 1955; Horn 1974, Naval Research Logistics Quarterly 21(1).
    """
    jobs = sorted(jobs)
    waiting, clock, end, at = [], 0.0, 0.0, 0
    while at < len(jobs) or waiting:
        if not waiting:
            clock = max(clock, jobs[at][0])
        while at < len(jobs) and jobs[at][0] <= clock:
            heapq.heappush(waiting, (-jobs[at][2], jobs[at][1]))
            at += 1
        tail, cost = heapq.heappop(waiting)
        until = jobs[at][0] if at < len(jobs) else np.inf
        if clock + cost <= until:
            clock += cost
            end = max(end, clock - tail)
        else:
            heapq.heappush(waiting, (tail, cost - (until - clock)))
            clock = until
    return end
