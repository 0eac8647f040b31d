"""The Schedule: which rank runs which action in which tick."""

import dataclasses
import functools
import itertools
from pathlib import Path

from jaxpar.schedule import csv_table
from jaxpar.schedule.action import Action
from jaxpar.schedule.cells import check_cells, check_sizes
from jaxpar.schedule.check import check
from jaxpar.schedule.lower import lower
from jaxpar.schedule.recompute import with_recompute
from jaxpar.schedule.render import render_schedule
from jaxpar.schedule.simulate import simulate
from jaxpar.schedule.ticks import place, table
from jaxpar.schedule.vocabulary import with_vocabulary


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A table of actions, one row a tick, one column a rank.

    Attributes:
      name: for messages and drawings.
      num_ranks, num_chunks, num_microbatches: ints; the model has num_ranks * num_chunks stages.
      placement: "loop" (stage = chunk * num_ranks + rank) or "v" (every second chunk runs the ranks backwards).
      ticks: ticks[t][rank] is the tuple of Actions that the rank runs in tick t, in the order E F H R I/B G W and at
        most one of each kind; empty where it idles.
      vocabulary: None, "ends" (E, H and G actions on the ranks that own the first and last stage) or "pipe" (on all
        ranks, as collectives).

    Raises:
      ScheduleError: a size is no positive integer, or placement or vocabulary is another word. The table is checked
        where it is used (see check).
    """

    name: str
    num_ranks: int
    num_chunks: int
    num_microbatches: int
    placement: str
    ticks: tuple = dataclasses.field(repr=False)
    vocabulary: str | None = None

    def __post_init__(self):
        check_sizes(self)

    @classmethod
    def from_orders(cls, name, num_ranks, num_chunks, num_microbatches, placement, orders):
        """Place each rank's order (an iterable of Actions) into ticks, one action a tick, as early as possible.

        Raises:
          ScheduleError: the orders deadlock, or hold anything but Actions of these sizes.
        """
        cells = [[(action,) for action in order] for order in orders]
        columns = tuple(itertools.zip_longest(*cells, fillvalue=()))
        check_cells(cls(name, num_ranks, num_chunks, num_microbatches, placement, columns), _in_order)
        ticks = place(name, cells, num_ranks * num_chunks - 1)
        return cls(name, num_ranks, num_chunks, num_microbatches, placement, ticks)

    @classmethod
    def from_ticks(cls, name, num_ranks, num_chunks, num_microbatches, placement, ticks):
        """Put each action into its tick; several in one cell run in the order of a tick.

        Args:
          ticks: {kind: int array [S, M]}, when each microbatch runs on each stage.
        """
        empty = cls(name, num_ranks, num_chunks, num_microbatches, placement, ())
        ranks = [empty.locate(stage)[0] for stage in range(empty.num_stages)]
        return dataclasses.replace(empty, ticks=table(ticks, ranks))

    @classmethod
    def from_csv(cls, path, name=None):
        """Read a table as `to_csv` or PyTorch's pipelining writes it: one row a rank, one column a tick.

        Sizes, placement and vocabulary are inferred. A file whose columns are not ticks (an input would arrive too
        late) is read as one order a rank and placed as early as possible, cells kept together.

        Args:
          path: str or path of the file.
          name: the schedule's name; None is the file's without its suffix.

        Raises:
          ScheduleError: a cell does not parse or the table is not a valid schedule; names the path and the cell.
        """
        return csv_table.build(cls, path, name or Path(path).stem)

    @functools.cached_property
    def actions(self):
        """actions[rank]: the rank's Actions in the order it runs them."""
        return tuple(tuple(a for row in self.ticks for a in row[rank]) for rank in range(self.num_ranks))

    @property
    def num_stages(self):
        return self.num_ranks * self.num_chunks

    @property
    def num_ticks(self):
        return len(self.ticks)

    def stage_of(self, rank, chunk):
        """The stage that is `rank`'s `chunk`-th."""
        backwards = self.placement == "v" and chunk % 2
        return chunk * self.num_ranks + (self.num_ranks - 1 - rank if backwards else rank)

    def locate(self, stage):
        """(rank, chunk) of `stage`; the inverse of stage_of."""
        chunk, rank = divmod(stage, self.num_ranks)
        return (self.num_ranks - 1 - rank if self.placement == "v" and chunk % 2 else rank), chunk

    def owner(self, action):
        """The rank whose stage `action` belongs to (a collective runs on the others too)."""
        return self.locate(action.stage)[0]

    def to_csv(self, path, pytorch=False):
        """Write one row a rank, one column a tick; blank cells are idle.

        Args:
          path: str or path of the file.
          pytorch: refuse what PyTorch's pipelining has no action for. What it has is written the same either way.

        Raises:
          ScheduleError: with `pytorch`, the first E, H, G or R; nothing is written.
        """
        csv_table.write(self, path, pytorch)

    check = check
    simulate = simulate
    lower = lower
    render = render_schedule
    with_recompute = with_recompute
    with_vocabulary = with_vocabulary


def _in_order(index, rank):
    """How messages about orders name a place."""
    return f"as number {index} of rank {rank}'s order"


__all__ = ["Action", "Schedule"]
