"""Interleaved zero bubble: several chunks a rank and the backward split in two."""

import dataclasses

import numpy as np

from jaxpar.schedule.greedy import Rule, fastest
from jaxpar.schedule.schedule import Schedule


def interleaved_zb(num_ranks, num_microbatches, num_chunks=1):
    """Interleaved 1F1B with I in the place of B and a shorter warm-up, W where a rank would wait or hold too much.

    Every rank holds at most min(P, M) microbatches. Where P divides M the order goes through the chunks in groups of P,
    and the makespan at unit costs is 3 M + (P - 1)/V, the least possible; at most P weight gradients of a chunk wait.
    For other M that order and some list schedules under the same cap are played, and the shortest is taken: also the
    least possible for all P up to 8 and M up to 20 (with fewer microbatches than ranks that is the way round the ring,
    ((2 V - j + 1) P - 1 + 2 j M)/V for the worst j from 1 to V). With one chunk this is ZB-H1.
    Source: Qi et al. 2023, arXiv:2401.10241, section 3.1 (list scheduling under a cap), on the order of Narayanan
    et al. 2021, arXiv:2104.04473, section 2.2.2.
    """
    live = num_ranks * num_chunks
    back = np.arange(num_ranks)[::-1]
    warmup = live - num_ranks + 1 + back
    due = _groups_of_ranks(num_ranks, num_microbatches, num_chunks)
    # P weight gradients of a chunk fill every rank's share of the last bubble; more only hold memory.
    rules = [Rule(_order("IFW", num_chunks), live, due=due, pending=num_ranks)]
    if num_microbatches % num_ranks:
        # Chunks that others follow leave a place for each of them: no deadlock.
        reserved = np.broadcast_to(live - np.arange(num_chunks)[::-1], (num_ranks, num_chunks))
        rules += [
            Rule(_order(kinds, num_chunks, last_first), live, chunk_live=reserved, ahead=ahead)
            for kinds, last_first, ahead in (
                ("FIW", True, np.minimum(live, warmup + back)),
                ("FIW", True, np.minimum(live, warmup + 2)),
                ("FIW", False, warmup),
                ("IFW", False, warmup),
            )
        ]
        rules = [dataclasses.replace(rule, pending=pending) for pending in (num_ranks, None) for rule in rules]
    ticks = fastest(num_ranks, num_chunks, num_microbatches, "loop", rules)
    return Schedule.from_ticks("interleaved_zb", num_ranks, num_chunks, num_microbatches, "loop", ticks)


def _order(kinds, num_chunks, last_first=True):
    """Rule.order: forwards of the last chunk first, I of the last or of the first chunk first, W of the first."""
    chunks = range(num_chunks)
    backwards = {"F": True, "I": last_first, "W": False}
    return " ".join(f"{kind}{c}" for kind in kinds for c in (reversed(chunks) if backwards[kind] else chunks))


def _groups_of_ranks(num_ranks, num_microbatches, num_chunks):
    """Rule.due of the interleaved order: groups of P microbatches go through the chunks, the last group is the rest.

    After a rank's warm-up forward and backward alternate. int [P, 2 V, M].
    """
    microbatches, chunks = np.arange(num_microbatches), np.arange(num_chunks)[:, None]
    group, place = np.divmod(microbatches, num_ranks)
    size = np.minimum(num_ranks, num_microbatches - group * num_ranks)
    before = group * num_ranks * num_chunks + place
    back = np.arange(num_ranks)[::-1, None, None]
    warmup = np.minimum((num_chunks - 1) * num_ranks + 1 + back, num_chunks * num_microbatches)
    forward = 2 * (before + chunks * size) + 0 * back
    backward = 2 * (before + (num_chunks - 1 - chunks) * size + warmup) - 1
    return np.concatenate([forward, backward], axis=1)
