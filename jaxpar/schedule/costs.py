"""Costs of actions, for the simulator."""

import dataclasses
import json
import math
import numbers
from collections.abc import Sequence
from pathlib import Path

from jaxpar.errors import SettingError

_MOST = 1e100


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
        if not _is_list(cost):
            return [float(cost)] * num_stages
        if len(cost) != num_stages:
            raise SettingError(
                f"costs.{kind}={list(cost)} has {len(cost)} entries for {num_stages} stages: each stage has one cost. "
                f"Give {num_stages} costs, or one scalar for all."
            )
        return [float(c) for c in cost]

    @classmethod
    def from_json(cls, path):
        """Read a costs file.

        Raises:
          SettingError: the file cannot be read, is not such an object, or has an unknown name, one twice or a value
            that is not a cost; names the path.
        """
        try:
            tree = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_once)
        except OSError as error:
            raise _refused(path, "cannot be read", error.strerror or error) from None
        except (ValueError, RecursionError) as error:
            raise _refused(path, "is not a costs file", error) from None
        if not isinstance(tree, dict):
            raise _refused(path, "is not a costs file", f"it holds a {type(tree).__name__}, no object")
        tree.pop("note", None)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in tree:
            if name not in known:
                raise _refused(path, f"has an unknown cost {name}", f"there are {', '.join(known)}")
        for name in "FIW":
            if name not in tree:
                raise _refused(path, f"has no {name}", "F, I and W are every step's work")
        return check_costs(cls(**tree), f"pipeline.costs={path}: ")

    def to_json(self, path, note=""):
        """Write a costs file.

        Args:
          path: str or path.
          note: text that is kept beside the costs.

        Raises:
          SettingError: a value that is not a cost; nothing is written.
        """
        check_costs(self)
        tree = {
            field.name: [float(c) for c in value] if _is_list(value := getattr(self, field.name)) else float(value)
            for field in dataclasses.fields(self)
        }
        Path(path).write_text(json.dumps(tree | ({"note": note} if note else {}), indent=1) + "\n", encoding="utf-8")


def check_costs(costs, where=""):
    """`costs`, if every cost is a finite number from 0 to 1e100, and only F, I, W and R are lists.

    Args:
      costs: Costs.
      where: what the message starts with.

    Raises:
      SettingError: names the cost.
    """
    if not isinstance(costs, Costs):
        raise SettingError(
            f"{where}costs={costs!r} is no Costs: it is a {type(costs).__name__}. Write Costs(F=1.0, I=1.0, W=1.0)."
        )
    for field in dataclasses.fields(costs):
        name, value = field.name, getattr(costs, field.name)
        if _is_list(value) and name not in "FIWR":
            raise SettingError(
                f"{where}costs.{name}={list(value)} is a list: {name} has no cost for each stage. Give one number."
            )
        if _is_list(value) and not len(value):
            raise SettingError(f"{where}costs.{name}=[] is empty: each stage has one cost. Give one, or one number.")
        for cost in value if _is_list(value) else [value]:
            number = _finite(cost)
            if number is None:
                raise SettingError(
                    f"{where}costs.{name}={value!r} is not a finite number: it is a time. Give seconds or another unit."
                )
            if number < 0:
                raise SettingError(f"{where}costs.{name}={value!r} is negative: it is a time. Give 0 or more.")
            if number > _MOST:
                raise SettingError(
                    f"{where}costs.{name}={value!r} is over {_MOST:g}: sums of such times overflow. Use another unit."
                )
    return costs


def _finite(cost):
    """`cost` as a float; None where it is no finite number."""
    known = isinstance(cost, numbers.Real) or (getattr(cost, "ndim", None) == 0 and cost.dtype.kind in "iuf")
    if not known or isinstance(cost, bool):
        return None
    try:
        return float(cost) if math.isfinite(cost) else None
    except OverflowError:  # an int that no float holds
        return None


def _is_list(value):
    return not isinstance(value, str | dict | set) and hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _once(pairs):
    """A JSON object's dict; a name that comes twice would lose its first value in silence."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} comes twice")
    return dict(pairs)


def _refused(path, rule, reason):
    return SettingError(
        f"pipeline.costs={path} {rule}: {reason}. Write one with Costs.to_json, such as "
        '{"F": 1.0, "I": 1.0, "W": 1.0, "hop": 0.1}.'
    )
