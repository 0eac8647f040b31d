"""Many list schedules side by side, with real costs and under a cap; ranks run free."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rules:
    """How K list schedulers choose.

    Attributes:
      key: float [K, C, M], ascending in the last dim; the least goes first.
      wait: float [K] in [0, 1): 0 never idles while anything can start; near 1 idles for an action of a lesser key if
        it can start before the first other would end.
      slack: float [K]: nothing starts earlier than its key less this. Where it is finite, keys are times.
    """

    key: np.ndarray
    wait: np.ndarray
    slack: np.ndarray


def list_schedules(problem, graph, rules):
    """Start times of every action under each of the rules.

    Always the rank whose next action could end first chooses, among its actions that could start before that end:
    none that is unknown by then can start earlier, so waiting is a choice, never an accident.

    Running forwards no scheduler gets stuck, see full_chunks; backwards some may.

    Args:
      problem: Problem.
      graph: problem.graph or its reverse.
      rules: Rules.

    Returns:
      start float [K, C, M], inf from where a scheduler was stuck on.

    Source: Giffler and Thompson 1960, Operations Research 8(4), with a cap; the parameter between active and non-delay
    schedules as in Bierwirth and Mattfeld 1999, Evolutionary Computation 7(1).
    """
    run = _Run(problem, graph, rules)
    for _ in range(problem.num_columns * problem.num_microbatches):
        if not run.step():
            break
    return run.ended[:, :-1, :-1] - graph.duration[:, None]


def full_chunks(taken, freed, slots):
    """bool [..., V]: the chunks a rank may take no activation of, for want of a slot or of a way on.

    A microbatch that has got to chunk u of the rank holds u + 1 slots, and frees none before it has V - 1 - u more. So
    of those at chunks 0 .. u together, the slots they hold and V - 1 - u must fit in the rank's, or none of them gets
    on. And where they always do, nobody is stuck: all that is older than the oldest microbatch that waits somewhere is
    done and leaves its slots, and behind it only younger ones hold any, which leave room for it.
    Source: the banker's algorithm, Dijkstra 1965, EWD-108.

    Args:
      taken: int [..., V], activations of each chunk that were taken so far.
      freed: int [..., V], and freed.
      slots: int.
    """
    chunks = taken.shape[-1]
    full = np.repeat((taken - freed).sum(-1, keepdims=True) >= slots, chunks, axis=-1)
    if chunks > 1:
        at = taken[..., :-1] - taken[..., 1:]
        stuck = (at * np.arange(1, chunks)).cumsum(-1) >= slots - np.arange(1, chunks)[::-1]
        full[..., :-1] |= stuck
    if chunks > 2:
        later = np.logical_or.accumulate((stuck & (at > 0))[..., ::-1], -1)[..., ::-1]
        full[..., :-2] |= later[..., 1:]
    return full


class _Run:
    """The clocks and counts of K schedulers."""

    def __init__(self, problem, graph, rules):
        self.graph, self.rules, self.slots = graph, rules, problem.slots
        num, self.columns, self.microbatches = len(rules.wait), problem.num_columns, problem.num_microbatches
        self.ranks, self.chunks, self.width = problem.num_ranks, problem.num_chunks, 3 * problem.num_chunks
        self.row, self.offset = np.arange(num), np.arange(self.width)
        self.ended = np.full((num, self.columns + 1, self.microbatches + 1), np.inf)
        self.ended[:, -1, :-1] = 0.0
        self.counts = np.zeros((num, self.columns + 1), int)
        self.ready = np.full((num, self.columns + 1), np.inf)  # when the column's next action could start
        self.ready[:, :-1][:, (graph.before[:-1] == self.columns).all(1)] = 0.0
        self.clock = np.zeros((num, self.ranks))
        self.duration = graph.duration.reshape(self.ranks, self.width)
        self.ends = np.append(graph.duration, 0.0)
        self.key = np.concatenate([rules.key, np.zeros((num, self.columns, 1))], axis=2)
        self.due = self.key[:, :, 0] - rules.slack[:, None]

    def step(self):
        """Start one action in each scheduler; False when none can."""
        row = self.row
        start = np.maximum(self.ready[:, :-1], self.due).reshape(-1, self.ranks, self.width)
        np.maximum(start, self.clock[:, :, None], out=start)
        self._mask_full(start)
        end = (start + self.duration).reshape(len(row), -1)
        first = end.argmin(1)
        bound = end[row, first]
        alive = bound < np.inf
        if not alive.any():
            return False
        rank = first // self.width
        starts = start[row, rank]
        least = starts.min(1)
        with np.errstate(invalid="ignore"):
            latest = least + self.rules.wait * (bound - least)
        columns = rank[:, None] * self.width + self.offset
        key = self.key[row[:, None], columns, self.counts[row[:, None], columns]]
        choice = np.where(starts <= latest[:, None], key, np.inf).argmin(1)
        column = np.where(alive, columns[row, choice], self.columns)
        self._record(column, rank, starts[row, choice], alive)
        return True

    def _mask_full(self, start):
        """Whoever takes a slot cannot start without one."""
        counts = self.counts[:, :-1].reshape(-1, self.ranks, 3, self.chunks)
        full = full_chunks(counts[:, :, self.graph.takes], counts[:, :, self.graph.frees], self.slots)
        at = self.graph.takes * self.chunks
        start[:, :, at : at + self.chunks][full] = np.inf

    def _record(self, column, rank, start, alive):
        row, graph = self.row, self.graph
        number = np.where(alive, self.counts[row, column], self.microbatches)
        end = np.where(alive, start + self.ends[column], np.inf)
        self.ended[row, column, number] = end
        self.clock[row, rank] = end
        self.counts[row, column] += alive
        real = np.minimum(column, self.columns - 1)
        self.due[row, real] = self.key[row, real, self.counts[row, real]] - self.rules.slack
        touched = np.concatenate([column[:, None], graph.after[column]], axis=1)
        across = row[:, None]
        number = np.minimum(self.counts[across, touched], self.microbatches)
        ready = self.ended[across[:, :, None], graph.before[touched], number[:, :, None]] + graph.before_lag[touched]
        self.ready[across, touched] = ready.max(2)
