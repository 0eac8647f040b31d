"""Actions: what a pipeline rank can do to one stage and one microbatch, and when in a tick it does it."""

import re
from typing import NamedTuple

KINDS = {
    "E": "embedding",
    "F": "forward",
    "H": "head and loss, with their gradients",
    "B": "full backward: I then W in one tick",
    "R": "recompute",
    "I": "input gradient",
    "W": "weight gradient",
    "G": "embedding's gradient",
}

# Within a tick a rank runs E F H R I G, then payloads move one hop, then W. A B is an I and a W.
PHASE = {"E": 0, "F": 1, "H": 2, "R": 3, "I": 4, "B": 4, "G": 5, "W": 7}
HOP_PHASE = 6
PHASES_PER_TICK = 8

_PATTERN = re.compile(r"(\d+)([EFHBRIWG])(\d+)")


class Action(NamedTuple):
    """One cell's work: `kind` (a key of KINDS) of `stage` on `microbatch`; prints as ``2F0``.

    E and G belong to stage 0, H to the last stage.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text):
        """The inverse of str().

        Raises:
          ValueError: `text` is not ``<stage><kind><microbatch>``.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an action: write <stage><kind><microbatch>, kinds {' '.join(KINDS)}.")
        return cls(int(match[1]), match[2], int(match[3]))

    def parts(self):
        """The actions this one stands for: I and W for a B, itself otherwise."""
        if self.kind == "B":
            return (Action(self.stage, "I", self.microbatch), Action(self.stage, "W", self.microbatch))
        return (self,)


def inputs(action, last_stage, vocabulary):
    """Actions that must have run before `action` (B excluded: ask for its I).

    Args:
      action: Action of any kind but B; B is read as its I.
      last_stage: int, number of the model's last stage.
      vocabulary: None where the schedule has no E, H and G actions, else "ends" or "pipe".

    Returns:
      Tuple of Actions, none of kind B.
    """
    stage, kind, microbatch = action
    if kind == "F":
        if stage:
            return (Action(stage - 1, "F", microbatch),)
        return (Action(0, "E", microbatch),) if vocabulary else ()
    if kind in "IB":
        if stage < last_stage:
            return (Action(stage, "F", microbatch), Action(stage + 1, "I", microbatch))
        return (Action(stage, "H" if vocabulary else "F", microbatch),)
    if kind in "HR":
        return (Action(stage, "F", microbatch),)
    if kind in "WG":
        return (Action(stage, "I", microbatch),)
    return ()
