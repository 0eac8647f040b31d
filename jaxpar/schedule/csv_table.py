"""Schedules as CSV files: one row a rank, one column a tick, cells like ``2F0``."""

import csv
import re
from pathlib import Path

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import Action
from jaxpar.schedule.check import check_actions
from jaxpar.schedule.ticks import place

# How PyTorch's pipelining writes several actions in one cell.
_FUSED = re.compile(r"\((.*)\)OVERLAP_F_B")


def write(path, ticks, num_ranks):
    """Write ticks[t][rank] to `path`; several actions in a cell become ``(2F1;2B0)OVERLAP_F_B``."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for rank in range(num_ranks):
            writer.writerow([_cell_text(row[rank]) for row in ticks])


def _cell_text(cell):
    text = ";".join(map(str, cell))
    return f"({text})OVERLAP_F_B" if len(cell) > 1 else text


def read(path, name):
    """cells[rank][column]: tuple of Action, rows padded to one length with idle cells.

    Raises:
      ScheduleError: the file cannot be read, a cell is not an action, or there is none; names the path.
    """
    name = name if name == str(path) else f"{name} ({path})"
    rows = _read_rows(path, name)
    width = max(map(len, rows), default=0)
    cells = []
    for rank, row in enumerate(rows):
        parsed = [_parse_cell(text, name, rank, column) for column, text in enumerate(row)]
        cells.append(parsed + [()] * (width - len(row)))
    if not any(cell for row in cells for cell in row):
        raise ScheduleError(f"pipeline.schedule={name} has no action: the file is empty. Write one row a rank.")
    return cells


def _read_rows(path, name):
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file) if row]
    except OSError as error:
        cause, remedy = error.strerror or str(error), "Give the path of a file that can be read"
    except UnicodeDecodeError as error:
        cause, remedy = f"it is not UTF-8 text (byte {error.start})", "Save it as CSV in UTF-8"
    except csv.Error as error:
        cause, remedy = f"it is not CSV ({error})", "Write one row a rank, one column a tick"
    raise ScheduleError(f"pipeline.schedule={name} cannot be read: {cause}. {remedy}.")


def _parse_cell(text, name, rank, column):
    text = text.strip()
    match = _FUSED.fullmatch(text)
    parts = match[1].split(";") if match else [text] if text else []
    try:
        return tuple(Action.parse(part) for part in parts)
    except ValueError as error:
        raise ScheduleError(
            f"pipeline.schedule={name} has {text!r} at tick {column} on rank {rank}: it is not an action. "
            f"Write <stage><kind><microbatch> such as 2F0, (2F1;2B0)OVERLAP_F_B, or nothing."
        ) from error


def build(cls, name, cells):
    """A checked Schedule (`cls`) from `cells`; see Schedule.from_csv."""
    num_ranks = len(cells)
    actions = [(rank, action) for rank, row in enumerate(cells) for cell in row for action in cell]
    num_chunks = -(-(1 + max(action.stage for _, action in actions)) // num_ranks)
    num_microbatches = 1 + max(action.microbatch for _, action in actions)
    vocabulary = _vocabulary(actions)
    sizes = (name, num_ranks, num_chunks, num_microbatches)
    placement = _placement(cls, sizes, actions)
    schedule = cls(*sizes, placement, tuple(zip(*cells, strict=True)), vocabulary)
    check_actions(schedule)
    try:
        schedule.check()
        return schedule
    except ScheduleError:
        if vocabulary == "pipe":
            raise  # Collectives have to stay in one tick.
    orders = [[cell for cell in row if cell] for row in cells]
    schedule = cls(*sizes, placement, place(name, orders, num_ranks * num_chunks - 1, vocabulary), vocabulary)
    schedule.check()
    return schedule


def _vocabulary(actions):
    """Collectives are listed on every rank (with one rank the two placements are the same: "ends")."""
    listed = {(rank, action.kind) for rank, action in actions if action.kind in "EHG"}
    if not listed:
        return None
    return "pipe" if len(listed) > len({kind for _, kind in listed}) else "ends"


def _placement(cls, sizes, actions):
    """The placement that fits most of the forwards: a cell in the wrong place should not turn all others wrong."""
    fits = {}
    for placement in ("loop", "v"):
        empty = cls(*sizes, placement, ())
        fits[placement] = sum(
            empty.locate(action.stage)[0] == rank for rank, action in actions if action.kind not in "EHG"
        )
    return "v" if fits["v"] > fits["loop"] else "loop"
