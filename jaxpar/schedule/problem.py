"""What the search schedules: columns of like actions, what each waits for, what it costs."""

import dataclasses
import functools

import numpy as np

from jaxpar.schedule.greedy import stage_table

KINDS = "FIW"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes, placement, costs and cap of one search.

    All actions of one kind and stage cost the same, so that nothing is lost when each stage takes microbatches in
    ascending order: a *column* is such a row of actions, and rank r's are numbers 3 V r to 3 V (r + 1) - 1: F of its
    chunks, I, W.

    Attributes:
      num_ranks, num_chunks, num_microbatches: ints.
      placement: "loop" or "v".
      cost: float [3, S], of F, I and W on each stage.
      hop: float, seconds or units between ranks.
      slots: int, the most chunk activations a rank may hold.
    """

    num_ranks: int
    num_chunks: int
    num_microbatches: int
    placement: str
    cost: np.ndarray
    hop: float
    slots: int

    @functools.cached_property
    def place(self):
        """int [P, V]: the stage that is a rank's chunk."""
        return stage_table(self.num_ranks, self.num_chunks, self.placement)

    @functools.cached_property
    def owners(self):
        """int [S]: each stage's rank."""
        owners = np.empty(self.place.size, int)
        owners[self.place] = np.arange(self.num_ranks)[:, None]
        return owners

    @functools.cached_property
    def hops(self):
        """float [S - 1]: from each stage to the next; 0 where they are on one rank."""
        return np.where(self.owners[1:] != self.owners[:-1], self.hop, 0.0)

    @property
    def num_columns(self):
        return 3 * self.place.size

    @functools.cached_property
    def room(self):
        """int [V]: the most activations of chunk v that leave a microbatch room for its later chunks."""
        return self.slots - np.arange(self.num_chunks)[::-1]

    @functools.cached_property
    def column(self):
        """int [3, S]: the number of each kind's and stage's column."""
        column = np.empty((3, self.place.size), int)
        first = 3 * self.num_chunks * np.arange(self.num_ranks)[:, None] + np.arange(self.num_chunks)
        for kind in range(3):
            column[kind, self.place] = first + kind * self.num_chunks
        return column

    @functools.cached_property
    def graph(self):
        """The Graph that runs forwards in time."""
        end = self.num_columns
        forward, backward, weight = self.column
        before, after = (np.full((end + 1, 2), end) for _ in range(2))
        before_lag, after_lag = np.zeros((end + 1, 2)), np.zeros((end + 1, 2))
        before[forward[1:], 0], before_lag[forward[1:], 0] = forward[:-1], self.hops
        before[backward[:-1], 0], before_lag[backward[:-1], 0] = backward[1:], self.hops
        before[backward, 1], before[weight, 1] = forward, backward
        after[forward[:-1], 0], after_lag[forward[:-1], 0] = forward[1:], self.hops
        after[backward[1:], 0], after_lag[backward[1:], 0] = backward[:-1], self.hops
        after[forward, 1], after[backward, 1] = backward, weight
        duration = np.zeros(end)
        duration[self.column] = self.cost
        return Graph(before, before_lag, after, after_lag, duration, takes=0, frees=2)


@dataclasses.dataclass(frozen=True)
class Graph:
    """What waits for what, between actions of equal number in two columns; C is a column that is always done.

    Attributes:
      before, before_lag: int and float [C + 1, 2]: the columns a column waits for, and how long after their end.
      after, after_lag: the same, of those that wait for it.
      duration: float [C].
      takes, frees: the kinds (0 F, 1 I, 2 W) whose start takes an activation's slot and whose end frees it.
    """

    before: np.ndarray
    before_lag: np.ndarray
    after: np.ndarray
    after_lag: np.ndarray
    duration: np.ndarray
    takes: int
    frees: int

    def reversed(self):
        """The same with time running backwards."""
        return Graph(
            self.after, self.after_lag, self.before, self.before_lag, self.duration, takes=self.frees, frees=self.takes
        )
