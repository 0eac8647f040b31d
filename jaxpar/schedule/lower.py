"""Lower a Schedule to a Plan: live intervals, buffer slots, messages."""

import numpy as np

from jaxpar.schedule.action import HOP_PHASE, PHASE, PHASES_PER_TICK
from jaxpar.schedule.check import check
from jaxpar.schedule.messages import CHANNELS, directions, patterns_of
from jaxpar.schedule.plan import COLUMNS, POOLS, TOUCHED_BY, Plan, idle_table
from jaxpar.schedule.recompute import missing_recompute
from jaxpar.schedule.slots import colour_by_rank

_STAGE_OF_ROW = {"E": 0, "G": 0, "H": -1}


def lower(schedule, recompute=False):
    """The tables that the executor interprets.

    Args:
      schedule: Schedule; it is checked first.
      recompute: False: no R actions (scheduled ones are dropped). True: every microbatch is recomputed on every
        stage, where the schedule has it, else in the tick of its I or B, or in the nearest one before that has no R.

    Returns:
      Plan.

    Raises:
      ScheduleError: the schedule is not valid, or its own R leave no tick for one that is missing.
    """
    check(schedule)
    ticks = _ticks(schedule, recompute)
    ranks = np.array([schedule.locate(stage)[0] for stage in range(schedule.num_stages)])
    to_next = directions(schedule.placement, ranks)
    act, grad = _payload_intervals(ticks, to_next, schedule.vocabulary)
    slots, num_slots = {}, {}
    # Row n of act is the input of stage n's F, the last row that of H.
    # Row n of grad is the input of stage n - 1's I, the first row that of G.
    for buffer, (starts, ends), held_by in (
        ("act", act, np.append(ranks, ranks[-1])),
        ("grad", grad, np.append(ranks[0], ranks)),
    ):
        slots[buffer], num = colour_by_rank(starts, ends, held_by, schedule.num_ranks)
        num_slots[buffer] = max(1, num)
        slots[buffer][starts < 0] = num_slots[buffer]
    for pool in POOLS:
        starts, ends = _time(ticks, pool[0]), _time(ticks, pool[1])
        slots[pool], num_slots[pool] = colour_by_rank(np.where(ends < 0, -1, starts), ends, ranks, schedule.num_ranks)
    table = idle_table(schedule.num_ticks, schedule.num_ranks, num_slots, schedule.num_microbatches)
    _fill_runs(table, schedule, ticks, ranks)
    _fill_slots(table, ticks, ranks, slots)
    pattern, patterns = _fill_messages(table, ticks, ranks, to_next, slots)
    return Plan(
        table=table,
        pattern=pattern,
        patterns=patterns,
        num_slots=num_slots,
        num_ticks=schedule.num_ticks,
        num_ranks=schedule.num_ranks,
        num_chunks=schedule.num_chunks,
        num_microbatches=schedule.num_microbatches,
        placement=schedule.placement,
        vocabulary=schedule.vocabulary,
    )


def _ticks(schedule, recompute):
    """kind -> int [S, M] ([1, M] for E, H and G): the tick it runs in, -1 where it does not."""
    shape = (schedule.num_stages, schedule.num_microbatches)
    ticks = {kind: np.full(shape if kind in "FRIW" else (1, shape[1]), -1) for kind in "EFHRIWG"}
    cells = {kind: array.tolist() for kind, array in ticks.items()}
    for tick, row in enumerate(schedule.ticks):
        for stage, kind, microbatch in (action for cell in row for action in cell):
            for part in "IW" if kind == "B" else kind:
                cells[part][0 if part in "EHG" else stage][microbatch] = tick
    ticks = {kind: np.array(rows) for kind, rows in cells.items()}
    if not recompute:
        ticks["R"][:] = -1
    elif (ticks["R"] < 0).all():
        ticks["R"] = ticks["I"].copy()  # what missing_recompute would say, but sooner
    else:
        for tick, _, action in missing_recompute(schedule, early=False):
            ticks["R"][action.stage, action.microbatch] = tick
    return ticks


def _time(ticks, kind):
    """int, like ticks[kind]: when in the whole step it runs, in phases; negative where it does not."""
    return np.where(ticks[kind] < 0, -1, ticks[kind] * PHASES_PER_TICK + PHASE[kind])


def _payload_intervals(ticks, to_next, vocabulary):
    """(starts, ends), both int [S + 1, M], of the activations and of the gradients between stages; -1 for none."""
    forward, backward = _time(ticks, "F"), _time(ticks, "I")
    local = (to_next == 0)[:, None]
    sent_act = np.where(local, forward[:-1], ticks["F"][:-1] * PHASES_PER_TICK + HOP_PHASE)
    sent_grad = np.where(local, backward[1:], ticks["I"][1:] * PHASES_PER_TICK + HOP_PHASE)
    # Without a vocabulary nobody hands stage 0 its input, nor takes the last stage's output; likewise for gradients.
    outside = forward[-1:] if vocabulary else ticks["H"]
    act = np.concatenate([_time(ticks, "E"), sent_act, outside]), np.concatenate([forward, _time(ticks, "H")])
    outside = backward[:1] if vocabulary else ticks["G"]
    grad = np.concatenate([outside, sent_grad, _time(ticks, "H")]), np.concatenate([_time(ticks, "G"), backward])
    return act, grad


def _fill_runs(table, schedule, ticks, ranks):
    microbatches = np.arange(schedule.num_microbatches)
    for kind in "FRIW":
        for stage, rank in enumerate(ranks):
            _set(table, ticks[kind][stage], rank, f"{kind}.run", 1)
            _set(table, ticks[kind][stage], rank, f"{kind}.microbatch", microbatches)
            _set(table, ticks[kind][stage], rank, f"{kind}.chunk", schedule.locate(stage)[1])
    for kind, row in _STAGE_OF_ROW.items():
        # A collective runs on every rank, but only the owner has the slots.
        everyone = slice(None) if schedule.vocabulary == "pipe" else slice(ranks[row], ranks[row] + 1)
        tick = ticks[kind][0]
        ran = tick >= 0
        table[tick[ran], everyone, COLUMNS[f"{kind}.run"]] = 1
        table[tick[ran], everyone, COLUMNS[f"{kind}.microbatch"]] = microbatches[ran, None]


def _fill_slots(table, ticks, ranks, slots):
    last = len(ranks) - 1
    act, grad = slots["act"], slots["grad"]
    _set(table, ticks["E"][0], ranks[0], "E.out", act[0])
    _set(table, ticks["H"][0], ranks[last], "H.in", act[last + 1])
    _set(table, ticks["H"][0], ranks[last], "H.out", grad[last + 1])
    _set(table, ticks["G"][0], ranks[0], "G.in", grad[0])
    for stage, rank in enumerate(ranks):
        _set(table, ticks["F"][stage], rank, "F.in", act[stage])
        _set(table, ticks["I"][stage], rank, "I.in", grad[stage + 1])
        if stage == last or ranks[stage + 1] == rank:
            _set(table, ticks["F"][stage], rank, "F.out", act[stage + 1])
        if stage == 0 or ranks[stage - 1] == rank:
            _set(table, ticks["I"][stage], rank, "I.out", grad[stage])
        for pool in POOLS:
            used = (ticks[pool[0]][stage] >= 0) & (ticks[pool[1]][stage] >= 0)
            for kind in TOUCHED_BY[pool]:
                _set(table, np.where(used, ticks[kind][stage], -1), rank, f"{kind}.{pool}", slots[pool][stage])


def _fill_messages(table, ticks, ranks, to_next, slots):
    """Set the recv columns; returns (pattern, patterns)."""
    active = {channel: np.zeros(table.shape[:2], bool) for channel in CHANNELS}
    for stage, step in enumerate(to_next):
        if step:
            here, there = ranks[stage], ranks[stage + 1]
            act, grad = f"act{step:+d}", f"grad{-step:+d}"
            active[act][ticks["F"][stage], here] = True
            active[grad][ticks["I"][stage + 1], there] = True
            _set(table, ticks["F"][stage], there, f"{act}.recv", slots["act"][stage + 1])
            _set(table, ticks["I"][stage + 1], here, f"{grad}.recv", slots["grad"][stage + 1])
    both = [patterns_of(channel, active[channel]) for channel in CHANNELS]
    return np.stack([index for _, index in both], axis=1), tuple(patterns for patterns, _ in both)


def _set(table, tick, rank, name, value):
    """table[tick, rank, name] = value for the ticks that are not -1."""
    ran = tick >= 0
    table[tick[ran], rank, COLUMNS[name]] = np.broadcast_to(value, tick.shape)[ran]
