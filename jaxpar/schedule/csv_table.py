"""Schedules as CSV files: one row a rank, one column a tick, cells like ``2F0``.

The format is that of PyTorch's pipelining (torch.distributed.pipelining, its compute-only CSVs): F forward, B full
backward, I input gradient, W weight gradient, ``(2F1;2B0)OVERLAP_F_B`` for several actions in a cell. The kinds E, H, G
and R are ours alone.
"""

import csv
import dataclasses
import re
from pathlib import Path

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import Action
from jaxpar.schedule.check import check, check_actions
from jaxpar.schedule.refusal import Refusals, tick_and_rank
from jaxpar.schedule.ticks import place

# How PyTorch's pipelining writes several actions in one cell.
_FUSED = re.compile(r"\((.*)\)OVERLAP_F_B")
# What it adds when it writes messages and sharding into a file too.
_COMMUNICATION = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_LONGEST_SHOWN = 40


def write(schedule, path, pytorch=False):
    """Write the schedule's ticks; see Schedule.to_csv."""
    if pytorch:
        _check_pytorch(schedule)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for rank in range(schedule.num_ranks):
            writer.writerow([_cell_text(row[rank]) for row in schedule.ticks])


def _check_pytorch(schedule):
    remedies = {
        **dict.fromkeys("EHG", "Export the schedule from before with_vocabulary"),
        "R": "Take it out: there recomputation belongs to the backward",
    }
    for tick, row in enumerate(schedule.ticks):
        for rank, cell in enumerate(row):
            for action in cell:
                if action.kind in remedies:
                    reason = f"PyTorch's pipelining has F, B, I and W, and no {action.kind}"
                    raise Refusals(schedule).at(action, (tick, rank), reason, remedies[action.kind])


def _cell_text(cell):
    text = ";".join(map(str, cell))
    return f"({text})OVERLAP_F_B" if len(cell) > 1 else text


def read(path):
    """The table in the file.

    Returns:
      (cells, row_and_column): cells[rank][column] is a tuple of Action, rows padded to one length with idle cells;
      row_and_column(column, rank) says where in the file that is. Rows without any action are left out.

    Raises:
      ScheduleError: the file cannot be read, a cell is not an action, or there is none; names the path.
    """
    numbered = [(number, row) for number, row in _read_rows(path) if any(map(str.strip, row))]
    if not numbered:
        raise ScheduleError(f"pipeline.schedule={path} has no action: the file is empty. Write one row a rank.")
    lines = [number for number, _ in numbered]

    def row_and_column(column, rank):
        return f" (row {lines[rank]}, column {column + 1})"

    width = max(len(row) for _, row in numbered)
    cells = []
    for rank, (_, row) in enumerate(numbered):
        parsed = [
            _parse_cell(text, path, tick_and_rank(column, rank) + row_and_column(column, rank))
            for column, text in enumerate(row)
        ]
        cells.append(parsed + [()] * (width - len(row)))
    return cells, row_and_column


def _read_rows(path):
    """(line number, cells) of each row; a byte order mark, which spreadsheets write, is skipped."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        cause, remedy = error.strerror or str(error), "Give the path of a file that can be read"
    except UnicodeDecodeError as error:
        cause, remedy = f"it is not UTF-8 text (byte {error.start})", "Save it as CSV in UTF-8"
    except csv.Error as error:
        cause, remedy = f"it is not CSV ({error})", "Write one row a rank, one column a tick"
    except ValueError as error:  # a null character in the path
        cause, remedy, path = str(error), "Give the path of a file that can be read", ascii(str(path))
    raise ScheduleError(f"pipeline.schedule={path} cannot be read: {cause}. {remedy}.")


def _parse_cell(text, path, place_name):
    text = text.strip()
    match = _FUSED.fullmatch(text)
    parts = match[1].split(";") if match else [text] if text else []
    try:
        return tuple(Action.parse(part) for part in parts)
    except ValueError as error:
        reason = "it is not an action"
        remedy = "Write <stage><kind><microbatch> such as 2F0, (2F1;2B0)OVERLAP_F_B, or nothing"
        if any(map(_COMMUNICATION.fullmatch, parts)):
            reason, remedy = "messages and sharding are implied here", "Export it with format='compute_only'"
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise ScheduleError(f"pipeline.schedule={path} has {shown!r} {place_name}: {reason}. {remedy}.") from error


def build(cls, path, name):
    """A checked Schedule (`cls`) from the file; see Schedule.from_csv."""
    cells, row_and_column = read(path)

    def where(tick, rank):
        return tick_and_rank(tick, rank) + row_and_column(tick, rank)

    actions = [(rank, action) for rank, row in enumerate(cells) for cell in row for action in cell]
    num_ranks = len(cells)
    num_chunks = -(-(1 + max(action.stage for _, action in actions)) // num_ranks)
    num_microbatches = 1 + max(action.microbatch for _, action in actions)
    vocabulary = _vocabulary(actions)
    sizes = (
        str(path),
        num_ranks,
        num_chunks,
        num_microbatches,
    )  # until it is known to be right: messages name the path
    schedule = cls(*sizes, "loop", tuple(zip(*cells, strict=True)), vocabulary)
    _check_gaps(schedule, where)
    schedule = dataclasses.replace(schedule, placement=_placement(schedule, actions))
    check_actions(schedule, where)
    try:
        check(schedule, where=where)
    except ScheduleError:
        if vocabulary == "pipe":
            raise  # Collectives have to stay in one tick.
        schedule = _placed(schedule, cells, row_and_column)
    return dataclasses.replace(schedule, name=name)


def _placed(schedule, cells, row_and_column):
    """The schedule with its columns, which are no ticks, taken as each rank's order."""
    columns = [[column for column, cell in enumerate(row) if cell] for row in cells]
    orders = [[cell for cell in row if cell] for row in cells]

    def where(index, rank):
        return row_and_column(columns[rank][index], rank)

    ticks = place(schedule.name, orders, schedule.num_stages - 1, schedule.vocabulary, where)
    schedule = dataclasses.replace(schedule, ticks=ticks)
    check(schedule)
    return schedule


def _check_gaps(schedule, where):
    """The sizes are the largest numbers in the file: refuse a number far out, which would be taken for one."""
    for field, what in ((0, "stage"), (2, "microbatch")):
        found = {action[field] for order in schedule.actions for action in order}
        first = next(number for number in range(len(found) + 1) if number not in found)
        if first < len(found):
            out = min(number for number in found if number > first)
            tick, rank, action = next(
                (tick, rank, action)
                for tick, row in enumerate(schedule.ticks)
                for rank, cell in enumerate(row)
                for action in cell
                if action[field] == out
            )
            reason = f"no action is of {what} {first}"
            raise Refusals(schedule, where).at(action, (tick, rank), reason, f"Number each {what} from 0 without gaps")


def _vocabulary(actions):
    """Collectives are listed on every rank (with one rank the two placements are the same: "ends" stands for both)."""
    listed = {(rank, action.kind) for rank, action in actions if action.kind in "EHG"}
    if not listed:
        return None
    return "pipe" if len(listed) > len({kind for _, kind in listed}) else "ends"


def _placement(schedule, actions):
    """The placement that fits most of the forwards: a cell in the wrong place should not turn all others wrong."""
    fits = {}
    for placement in ("loop", "v"):
        placed = dataclasses.replace(schedule, placement=placement)
        fits[placement] = sum(placed.owner(action) == rank for rank, action in actions if action.kind not in "EHG")
    return "v" if fits["v"] > fits["loop"] else "loop"
