"""Costs of actions, for the simulator."""

import dataclasses
from collections.abc import Sequence

from jaxpar.errors import SettingError


@dataclasses.dataclass(frozen=True)
class Costs:
    """How long each kind of action takes, in seconds or any unit.

    Every field is the cost of one action on one stage. F, I, W and R are scalars, or sequences with one cost a stage
    where stages have unlike depth. A B costs I + W. H, E and G have one stage each; under vocabulary="pipe" each of P
    ranks pays H/P, E/P and G/P. `hop` is the time between sending a payload and having received it. Recomputing that
    is not scheduled as R belongs into I.

    Costs() is one unit an action. A chunk of a rank that has V of them does 1/V of the rank's work: for totals that
    compare across V use Costs.unit(V), where a whole rank's F, I and W of one microbatch take one unit each.
    """

    F: float | Sequence[float] = 1.0
    I: float | Sequence[float] = 1.0
    W: float | Sequence[float] = 1.0
    R: float | Sequence[float] = 0.0
    H: float = 0.0
    E: float = 0.0
    hop: float = 0.0
    G: float = 0.0

    @classmethod
    def unit(cls, num_chunks=1):
        """F = I = W = 1 for a whole rank, 1/num_chunks for a chunk; all else free."""
        return cls(F=1 / num_chunks, I=1 / num_chunks, W=1 / num_chunks)

    def by_stage(self, kind, num_stages):
        """List of num_stages floats: the cost of `kind` (not B) on each stage.

        Raises:
          SettingError: a sequence of another length.
        """
        cost = getattr(self, kind)
        if not isinstance(cost, Sequence) and not hasattr(cost, "__len__"):
            return [float(cost)] * num_stages
        if len(cost) != num_stages:
            raise SettingError(
                f"costs.{kind}={list(cost)} has {len(cost)} entries for {num_stages} stages: each stage has one cost. "
                f"Give {num_stages} costs, or one scalar for all."
            )
        return [float(c) for c in cost]
