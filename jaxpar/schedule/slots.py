"""Colour live intervals: as few buffer slots as the schedule needs."""

import heapq

import numpy as np


def colour(starts, ends):
    """Give overlapping intervals different slots, as few as possible.

    A slot is reused only when the new interval starts after the old one ended (both ends are inclusive). Taking
    intervals by start, each to the lowest free slot, is optimal: the number of slots is the largest overlap (the
    left-edge algorithm: Hashimoto and Stevens, Design Automation Workshop 1971).

    Args:
      starts, ends: int arrays of one shape, starts <= ends.

    Returns:
      (slots, num_slots): int32 array of that shape, and an int.
    """
    slots = np.zeros(starts.size, np.int32)
    free, busy, num_slots = [], [], 0
    flat_starts, flat_ends = starts.ravel().tolist(), ends.ravel().tolist()
    for index in sorted(range(len(flat_starts)), key=flat_starts.__getitem__):
        while busy and busy[0][0] < flat_starts[index]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot, num_slots = num_slots, num_slots + 1
        slots[index] = slot
        heapq.heappush(busy, (flat_ends[index], slot))
    return slots.reshape(starts.shape), num_slots


def colour_by_rank(starts, ends, ranks, num_ranks):
    """Colour each rank's intervals on their own.

    Args:
      starts, ends: int [N, M], negative starts where there is no interval.
      ranks: int [N], the rank that holds row n.
      num_ranks: int.

    Returns:
      (slots, num_slots): int32 [N, M] (0 where there is no interval); the largest rank's number of slots.
    """
    slots, num_slots = np.zeros(starts.shape, np.int32), 0
    for rank in range(num_ranks):
        mine = (ranks == rank)[:, None] & (starts >= 0)
        slots[mine], needed = colour(starts[mine], ends[mine])
        num_slots = max(num_slots, needed)
    return slots, num_slots
