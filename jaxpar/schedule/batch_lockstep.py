"""Many tables of ticks side by side, with real costs and under a cap; ranks run in lockstep."""

import numpy as np

from jaxpar.schedule.batch import full_chunks

_CLOSE = 1e-9


def tick_tables(problem, key, overhang):
    """Tables in which each action comes in the first tick of at least its key that its inputs and the cap allow.

    A rank runs one F, one I and one W a tick at most. W comes earlier than its key where there is room: where it ends
    before the tick's barrier, or at most `overhang` W later.

    Args:
      problem: Problem.
      key: float [K, C, M], ascending in the last dim.
      overhang: float [K].

    Returns:
      (ticks int [K, C, M], makespan float [K]).
    """
    run = _Run(problem, key, overhang)
    while run.step():
        pass
    return run.ticks, run.clock.max(1)


class _Run:
    """The clocks and counts of K tables."""

    def __init__(self, problem, key, overhang):
        num, columns = len(key), problem.num_columns
        self.microbatches, self.slots, self.overhang = problem.num_microbatches, problem.slots, overhang[:, None]
        self.hop = problem.hop
        shape = (num, problem.num_ranks, 3, problem.num_chunks)
        forward, backward, _ = problem.column
        place = problem.place
        self.before, self.after = np.full((2, columns), columns)
        self.before[forward[1:]], self.after[backward[:-1]] = forward[:-1], backward[1:]
        self.before, self.after = (x.reshape(shape[1:]) for x in (self.before, self.after))
        self.before, self.after = self.before[:, 0], self.after[:, 1]
        moves = problem.owners[1:] != problem.owners[:-1]
        self.travels = np.zeros((2, problem.place.size), bool)
        self.travels[0, :-1], self.travels[1, 1:] = moves, moves
        self.travels = self.travels[:, place]  # [2, P, V]
        self.cost = problem.cost[:, place]  # [3, P, V]
        self.key = np.concatenate([key, np.full((num, columns, 1), np.inf)], axis=2)
        self.due = self.key[:, :, 0].reshape(shape).copy()
        self.counts = np.zeros((num, columns + 1), np.int64)
        self.counts[:, columns] = problem.num_microbatches
        self.cells = self.counts[:, :columns].reshape(shape)
        self.ticks = np.zeros(key.shape, np.int64)
        self.clock = np.zeros(shape[:2])
        self.now, self.tick = np.zeros(num), np.zeros(num, np.int64)
        self.shape, self.rows, self.ranks = shape, np.arange(num)[:, None], np.arange(shape[1])

    def step(self):
        """Run one tick in each table; False when all are done."""
        done = self.cells[:, :, 2].min((1, 2)) == self.microbatches
        if done.all():
            return False
        before, after = self.counts[:, self.before], self.counts[:, self.after]
        full = full_chunks(self.cells[:, :, 0], self.cells[:, :, 2], self.slots)
        ready = (before > self.cells[:, :, 0]) & ~full
        soonest = np.where(ready, self.due[:, :, 0], np.inf).min((1, 2))
        forward, ran_f = self._run(0, ready, self.now[:, None, None])
        ready = (after > self.cells[:, :, 1]) & (self.cells[:, :, 0] > self.cells[:, :, 1])
        soonest = np.minimum(soonest, np.where(ready, self.due[:, :, 1], np.inf).min((1, 2)))
        backward, ran_i = self._run(1, ready, self.now[:, None, None])
        self._advance(0, forward, ran_f)
        self._advance(1, backward, ran_i)
        moved = (ran_f & self.travels[0, self.ranks, forward]) | (ran_i & self.travels[1, self.ranks, backward])
        moved = moved.any(1)
        barrier = np.where(moved, self.clock.max(1) + self.hop, 0.0)[:, None]
        ran_w, soonest = self._weights(barrier, soonest)
        self.clock = np.maximum(self.clock, barrier)
        ran = (ran_f | ran_i | ran_w).any(1)
        self.tick += ran
        self.now = np.where(ran, self.now + 1, np.maximum(soonest, self.now + 1))
        return True

    def _run(self, kind, ready, latest):
        """Count the ready action of least key in each rank, if that is at most `latest`; returns (chunks, which)."""
        keys = np.where(ready, self.due[:, :, kind], np.inf)
        chunk = keys.argmin(2)
        ran = np.take_along_axis(keys <= latest, chunk[..., None], 2)[..., 0] & ready.any(2)
        number = self.cells[self.rows, self.ranks, kind, chunk]
        column = (self.ranks * 3 + kind) * self.shape[3] + chunk
        at = np.minimum(number, self.microbatches - 1)
        self.ticks[self.rows, column, at] = np.where(ran, self.tick[:, None], self.ticks[self.rows, column, at])
        number = number + ran
        self.cells[self.rows, self.ranks, kind, chunk] = number
        self.due[self.rows, self.ranks, kind, chunk] = self.key[self.rows, column, number]
        return chunk, ran

    def _advance(self, kind, chunk, ran):
        self.clock += np.where(ran, self.cost[kind, self.ranks, chunk], 0.0)

    def _weights(self, barrier, soonest):
        """Run Ws: those that are due, that have room, or whose rank has nothing else left."""
        ready = self.cells[:, :, 1] > self.cells[:, :, 2]
        soonest = np.minimum(soonest, np.where(ready, self.due[:, :, 2], np.inf).min((1, 2)))
        cost = self.cost[2]
        end = self.clock[:, :, None] + cost
        room = end <= barrier[:, :, None] + self.overhang[:, :, None] * cost + _CLOSE
        last = (self.cells[:, :, 1] == self.microbatches).all(2)
        latest = np.where(room | last[:, :, None], np.inf, self.now[:, None, None])
        chunk, ran = self._run(2, ready & (self.due[:, :, 2] <= latest), np.inf)
        self._advance(2, chunk, ran)
        return ran, soonest
