"""A sequence of tokens and where its documents start: what every kind of data becomes."""

import dataclasses
from typing import Any

import numpy as np

from jaxpar.errors import SettingError


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """Documents, one after the other.

    Attributes:
      ids: whole-number array or memory map [N], of any width.
      starts: int64 [D], ascending: the first token of each document; starts[0] is 0.
      source: "data.path=FILE", for messages.
      offset: which token of the source ids[0] is.
      num_ids: ids must be under it, which is checked when they are read; None: it was checked already.
    """

    ids: Any
    starts: np.ndarray
    source: str = ""
    offset: int = 0
    num_ids: int | None = None

    def __len__(self):
        return len(self.ids)

    def part(self, first, last):
        """Tokens first .. last - 1, not copied; a document that is cut at `first` starts there."""
        inner = self.starts[np.searchsorted(self.starts, first, "right") : np.searchsorted(self.starts, last)]
        starts = np.concatenate([[0], inner - first]).astype(np.int64)
        return dataclasses.replace(self, ids=self.ids[first:last], starts=starts, offset=self.offset + first)

    def read(self, first, last):
        """ids[first:last].

        Raises:
          SettingError: one is not an id of the model; the message names it, the file and the place.
        """
        found = self.ids[first:last]
        if self.num_ids is not None:
            check_ids(found, self.num_ids, self.source, self.offset + first)
        return found


def check_ids(ids, num_ids, source, offset=0):
    """Refuses ids that are not in 0 .. num_ids - 1.

    Args:
      ids: whole numbers [N]; num_ids: model.vocab_size.
      source: "data.path=FILE"; offset: which token of it ids[0] is.

    Raises:
      SettingError: there is one.
    """
    if len(ids) == 0 or (ids.max() < num_ids and ids.min() >= 0):
        return
    place = int(np.flatnonzero((ids >= num_ids) | (ids < 0))[0])
    most, rule = int(ids.max()), f"has id {int(ids[place])} at token {offset + place} (counted from 0)"
    remedy = f"model.vocab_size={most + 1} or more, or " if most >= num_ids else ""
    raise SettingError(
        f"{source} {rule}: model.vocab_size={num_ids} has ids 0 to {num_ids - 1}. "
        f"Use {remedy}a file that was written for this vocabulary."
    )
