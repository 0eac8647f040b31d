"""The Plan: a schedule as tables of small integers, which the executor interprets."""

import dataclasses
from types import MappingProxyType

import numpy as np

from jaxpar.errors import SettingError
from jaxpar.schedule.messages import CHANNELS, limit, reindex

POOLS = ("FR", "FI", "FW", "RI", "RW", "IW")
# Who touches a pool: its producer, its last reader (they name it), and those that may read it in between.
TOUCHED_BY = {"FR": "FR", "FI": "FRI", "FW": "FRIW", "RI": "RI", "RW": "RIW", "IW": "IW"}
BUFFERS = ("act", "grad", *POOLS)

_ACT = ("E.out", "F.in", "F.out", "H.in", "act+1.recv", "act-1.recv")
_GRAD = ("H.out", "I.in", "I.out", "G.in", "grad+1.recv", "grad-1.recv")
_NAMES = (
    *(f"{kind}.{field}" for kind in "EFHRIWG" for field in ("run", "microbatch")),
    *(f"{kind}.chunk" for kind in "FRIW"),
    *_ACT,
    *_GRAD,
    *(f"{kind}.{pool}" for pool in POOLS for kind in TOUCHED_BY[pool]),
)

# Column number of each name in Plan.table; the same for every plan.
COLUMNS = MappingProxyType({name: number for number, name in enumerate(_NAMES)})


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What each rank does in each tick, with buffer slots and message patterns.

    Attributes:
      table: int16 (int32 where a number needs it) [T, P, C], columns named by `columns`:
        "<k>.run" is 0 or 1, "<k>.microbatch" for k in E F H R I W G, "<k>.chunk" for F R I W. A B is an I and a W.
        "E.out" "F.in" "F.out" "H.in" are slots of activations, "H.out" "I.in" "I.out" "G.in" of gradients. "F.out" and
        "I.out" are the rank's own slots where the consumer is on the rank, else the spare: the payload is sent.
        "<k>.<pool>" is a slot in the pool named by its writer and reader: "F.FW" where F writes, "W.FW" where W reads.
        "<channel>.recv" is the slot for the payload that arrives at the tick's end, the spare where none does.
      pattern: int32 [T, 4], for each of CHANNELS an index into patterns[c]; 0 is no traffic.
      patterns: for each channel the patterns, tuples of (source, target); patterns[c][0] is ().
      num_slots: for each of BUFFERS the slots of the rank that needs most; the spare slot of act and of grad comes on
        top and has the number num_slots["act"], num_slots["grad"].
      num_ticks: int; a table longer than this ends in idle ticks (see unify).
      num_ranks, num_chunks, num_microbatches: ints.
      placement, vocabulary: as in Schedule.
    """

    table: np.ndarray
    pattern: np.ndarray
    patterns: tuple
    num_slots: dict
    num_ticks: int
    num_ranks: int
    num_chunks: int
    num_microbatches: int
    placement: str
    vocabulary: str | None

    @property
    def columns(self):
        """name -> column of `table`."""
        return COLUMNS


def spare_columns(buffer):
    """Column numbers that hold the spare slot of "act" or "grad" where a rank has nothing to read or store."""
    return [COLUMNS[name] for name in (_ACT if buffer == "act" else _GRAD)]


def idle_table(num_ticks, num_ranks, num_slots, num_microbatches):
    """int16 [T, P, C] in which no rank does anything; int32 where a slot or a microbatch has a larger number.

    Half the bytes: a long schedule on many ranks has a table of a gigabyte.
    """
    largest = max(num_microbatches, *num_slots.values())
    idle = np.zeros(len(COLUMNS), np.int16 if largest <= np.iinfo(np.int16).max else np.int32)
    for buffer in ("act", "grad"):
        idle[spare_columns(buffer)] = num_slots[buffer]
    return np.tile(idle, (num_ticks, num_ranks, 1))


def unify(plans):
    """Plans of one shape, so that one compiled program serves all.

    Args:
      plans: iterable of Plan with the same num_ranks.

    Returns:
      Tuple of Plan with equal table shapes (padded with idle ticks), num_slots (the maximum) and patterns (the union;
      above MAX_PATTERNS the full ring). num_ticks stays each plan's own.

    Raises:
      SettingError: the plans are for different numbers of ranks.
    """
    plans = tuple(plans)
    ranks = {plan.num_ranks for plan in plans}
    if len(ranks) > 1:
        raise SettingError(f"mesh.pipe={sorted(ranks)} differ: one program has one mesh. Unify plans of one size.")
    num_ticks = max(len(plan.table) for plan in plans)
    num_slots = {buffer: max(plan.num_slots[buffer] for plan in plans) for buffer in BUFFERS}
    patterns = tuple(
        limit(channel, plans[0].num_ranks, [pattern for plan in plans for pattern in plan.patterns[c]])
        for c, channel in enumerate(CHANNELS)
    )
    num_microbatches = max(plan.num_microbatches for plan in plans)
    return tuple(_reshape(plan, num_ticks, num_slots, patterns, num_microbatches) for plan in plans)


def _reshape(plan, num_ticks, num_slots, patterns, num_microbatches):
    table = idle_table(num_ticks, plan.num_ranks, num_slots, num_microbatches)
    length = len(plan.table)
    table[:length] = plan.table
    for buffer in ("act", "grad"):
        for column in spare_columns(buffer):
            cells = table[:length, :, column]
            cells[cells == plan.num_slots[buffer]] = num_slots[buffer]
    pattern = np.zeros((num_ticks, len(CHANNELS)), np.int32)
    for c in range(len(CHANNELS)):
        pattern[:length, c] = reindex(patterns[c], [plan.patterns[c][i] for i in plan.pattern[:, c]])
    return dataclasses.replace(plan, table=table, pattern=pattern, patterns=patterns, num_slots=num_slots)
