"""Fused ticks: a forward and a backward in each, so that ranks in lockstep lose nothing."""

import numpy as np

from jaxpar.schedule.interleaved import groups
from jaxpar.schedule.schedule import Schedule


def fused_1f1b(num_ranks, num_microbatches, num_chunks=1):
    """Interleaved 1F1B with one F and one B a tick, both by formula.

    Stage v P + r runs microbatch g P + j forward at tick g P V + v P + j + r and backward at tick
    (V P - 1) + g P V + (V - 1 - v) P + j + (P - 1 - r). Each tick costs all ranks that do both the same: the makespan
    3 M + 3 (P - 1)/V at unit costs is also that of lockstep (interleaved 1F1B loses a fifth there). Rank 0 holds
    P + (P - 1)/V microbatches (2 P - 1 with one chunk). Where P does not divide M: M // P groups, near-equal, larger
    ones first, a group's own size in the place of P; where M < P: one group that leaves P - M places of the ring free.
    Source: the interleaved order of Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2, put into common ticks.
    """
    forward, backward = _ticks(num_ranks, num_microbatches, num_chunks)
    ticks = {"F": forward, "B": backward}
    return Schedule.from_ticks("fused_1f1b", num_ranks, num_chunks, num_microbatches, "loop", ticks)


def fused_zb(num_ranks, num_microbatches, num_chunks=1):
    """The F and I of fused_1f1b in the same ticks, and each W in a later tick where it costs nothing.

    A rank runs a W where some rank is busy longer in that tick anyway; rank 0, which gets its gradients last, runs it
    at once. What is left at the end has ticks of its own. Makespan 3 M + (P - 1)/V at unit costs for M of at least P
    where a tick costs each rank its own actions (mode "free"). Holds no more than fused_1f1b.
    Source: W apart from I as in Qi et al. 2023, arXiv:2401.10241, section 2, on the ticks of fused_1f1b.
    """
    forward, backward = _ticks(num_ranks, num_microbatches, num_chunks)
    weight = np.empty_like(backward)
    num_ticks = 1 + int(backward.max())
    runs = {name: _runs(when, num_ranks, num_ticks) for name, when in (("F", forward), ("I", backward))}
    busy = runs["F"] + runs["I"]
    room = np.maximum(busy.max(0), busy[0] + runs["I"][0])
    for rank in range(num_ranks):
        order = backward[rank::num_ranks].ravel().argsort(kind="stable")  # a rank has one I a tick
        mine = np.empty(order.size, int)
        mine[order] = _fill(runs["I"][rank], busy[rank] < room)
        weight[rank::num_ranks] = mine.reshape(num_chunks, num_microbatches)
    ticks = {"F": forward, "I": backward, "W": weight}
    return Schedule.from_ticks("fused_zb", num_ranks, num_chunks, num_microbatches, "loop", ticks)


def _ticks(num_ranks, num_microbatches, num_chunks):
    """(forward, backward), int [S, M]: the formulas of fused_1f1b."""
    sizes = np.array([len(group) for group in groups(num_ranks, num_microbatches)])
    strides = np.maximum(sizes, num_ranks)
    start = np.repeat((np.cumsum(strides) - strides) * num_chunks, sizes)
    stride = np.repeat(strides, sizes)
    place = np.arange(num_microbatches) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chunk, rank = np.divmod(np.arange(num_ranks * num_chunks)[:, None], num_ranks)
    forward = start + chunk * stride + place + rank
    # The first microbatch has passed the last stage by then, and so has every later one: no later group is larger.
    first = (num_chunks - 1) * strides[0] + num_ranks - 1
    return forward, first + start + (num_chunks - 1 - chunk) * stride + place + num_ranks - 1 - rank


def _runs(when, num_ranks, num_ticks):
    """int [P, T]: how many of a kind each rank runs in each tick; `when` is int [S, M]."""
    ranks = np.broadcast_to(np.arange(when.shape[0])[:, None] % num_ranks, when.shape)
    return np.bincount((ranks * num_ticks + when).ravel(), minlength=num_ranks * num_ticks).reshape(num_ranks, -1)


def _fill(backwards, room):
    """The ticks of one rank's W, in the order of its I.

    Args:
      backwards: int [T], I of the rank in each tick.
      room: bool [T], a W costs nothing.
    """
    when, waiting = [], 0
    for tick, (runs, free) in enumerate(zip(backwards.tolist(), room.tolist(), strict=True)):
        waiting += runs
        if waiting and free:
            when.append(tick)
            waiting -= 1
    return when + [len(room) + i for i in range(waiting)]
