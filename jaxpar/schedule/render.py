"""Drawings in text: one row a rank, one column a tick or a unit of time."""

from jaxpar.schedule.action import KINDS

_IDLE = "."
_CUT = "... "


def render_schedule(schedule, width=None):
    """The table of ticks: kinds by letter, then the microbatch, then the chunk by letter where there are several.

    ``F3b`` is the forward of microbatch 3 on the rank's second chunk, ``FH3`` forward and head of one microbatch in one
    tick, ``F3b+B1a`` two actions of different stages in one tick, ``.`` an idle tick.

    Args:
      schedule: Schedule.
      width: int, characters a line may have (the drawing is cut into bands of ticks), or None for no limit.

    Returns:
      str, without a final newline.
    """
    table = [[_cell_label(schedule, row[rank]) for row in schedule.ticks] for rank in range(schedule.num_ranks)]
    title = (
        f"{schedule.name}: {schedule.num_ranks} ranks, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches, {schedule.num_ticks} ticks"
    )
    return "\n".join([title, *_bands("tick", table, width), _legend(schedule.actions, schedule.num_chunks)])


def render_timeline(timeline, unit=None, width=None):
    """The timeline to scale: an action's label, then dashes while it runs; ``.`` while the rank waits.

    Args:
      timeline: Timeline.
      unit: float, time of one column; by default the shortest action's time, at most 400 columns.
      width: as in render_schedule.

    Returns:
      str, without a final newline. Actions that take no time are not drawn.
    """
    events = [event for event in timeline.events if event.end > event.start]
    unit = unit or max(min((e.end - e.start for e in events), default=1.0), timeline.makespan / 400)
    num_columns = max(1, round(timeline.makespan / unit))
    labels = {event: action_label(event.action, timeline.num_ranks, timeline.num_chunks) for event in events}
    size = max(map(len, labels.values()), default=1)
    table = [[_IDLE.ljust(size)] * num_columns for _ in range(timeline.num_ranks)]
    for event in events:
        first, last = round(event.start / unit), round(event.end / unit)
        text = labels[event].ljust(max(0, (last - first) * (size + 1) - 1), "-")
        for column in range(first, last):
            at = (column - first) * (size + 1)
            # The last dash stands where the gap between columns would be: the action goes on.
            table[event.rank][column] = text[at : at + size + (column < last - 1)]
    title = (
        f"{timeline.name}, simulated ({timeline.mode}, gradient sent {timeline.send.replace('_', ' ')}): "
        f"makespan {timeline.makespan:g}, bubble {timeline.bubble:.1%}, one column = {unit:g}"
    )
    kinds = [[event.action for event in events]]
    return "\n".join([title, *_bands("time", table, width), _legend(kinds, timeline.num_chunks)])


def render_marked(label, cells, column, header=None, width=100):
    """One row of a table with a cell marked, as CSV files write it but several actions as ``2F0+2B1``.

    Args:
      label: str, the row's name.
      cells: sequence of cells, tuples of Action.
      column: int, the cell to mark; it may be one past the end.
      header: name of the line of column numbers above, or None for no such line.
      width: int, characters a line may have; of a longer row, the part around the mark is drawn.

    Returns:
      str of two or three lines, without a final newline.
    """
    texts = ["+".join(map(str, cell)) or _IDLE for cell in cells] + [_IDLE] * (column == len(cells))
    numbers = [str(number) if header else "" for number in range(len(texts))]
    sizes = [max(map(len, pair)) for pair in zip(texts, numbers, strict=True)]
    label = label.ljust(len(header or ""))
    first, last = _window(sizes, column, width - len(label) - 2 * len(_CUT) - 1)
    shown = range(first, last + 1)
    left, right = _CUT if first else "", _CUT if last < len(texts) - 1 else ""
    margin = " " * (len(label) + 1 + len(left))

    def line(entries):
        return " ".join(entries[n].ljust(sizes[n]) for n in shown)

    lines = [f"{(header or '').ljust(len(margin))}{line(numbers)}"] if header else []
    lines.append(f"{label} {left}{line(texts)} {right}")
    lines.append(margin + " " * sum(sizes[n] + 1 for n in range(first, column)) + "^" * len(texts[column]))
    return "\n".join(map(str.rstrip, lines))


def _window(sizes, column, room):
    """(first, last) columns around `column`, grown to either side in turn while their sizes and gaps fit in `room`."""
    first = last = column
    room -= sizes[column]
    grown = True
    while grown:
        grown = False
        if last + 1 < len(sizes) and sizes[last + 1] < room:
            last += 1
            room -= sizes[last] + 1
            grown = True
        if first and sizes[first - 1] < room:
            first -= 1
            room -= sizes[first] + 1
            grown = True
    return first, last


def action_label(action, num_ranks, num_chunks):
    """``F3``, or ``F3b`` where ranks have several chunks."""
    return f"{action.kind}{action.microbatch}{_chunk_letter(action.stage // num_ranks, num_chunks)}"


def _chunk_letter(chunk, num_chunks):
    if num_chunks == 1:
        return ""
    return chr(ord("a") + chunk) if num_chunks <= 26 else f".{chunk}"


def _cell_label(schedule, cell):
    groups = {}
    for stage, kind, microbatch in cell:
        key = f"{microbatch}{_chunk_letter(stage // schedule.num_ranks, schedule.num_chunks)}"
        groups[key] = groups.get(key, "") + kind
    return "+".join(kinds + key for key, kinds in groups.items()) or _IDLE


def _bands(name, table, width):
    """Lines of the table with a header of column numbers, cut so that no line is longer than `width`."""
    num_columns = len(table[0])
    header = [str(column) for column in range(num_columns)]
    size = max(max(map(len, row), default=1) for row in [[h for h in header if len(h) > 3], *_without_joins(table)])
    prefix = max(len(name), len(f"rank {len(table) - 1}"))
    per_band = num_columns if width is None else max(1, (width - prefix - 1) // (size + 1))
    lines = []
    for first in range(0, num_columns, per_band):
        band = slice(first, first + per_band)
        lines.append(_line(name.ljust(prefix), _header(header[band], size), size))
        lines += [_line(f"rank {rank}".ljust(prefix), row[band], size) for rank, row in enumerate(table)]
    return lines


def _without_joins(table):
    return [[cell.rstrip("-") for cell in row] for row in table]


def _header(numbers, size):
    return [n if len(n) <= size else "" for n in numbers]


def _line(prefix, cells, size):
    """Cells in columns of `size` and a gap; a cell one longer fills the gap."""
    return (prefix + " " + "".join(cell.ljust(size + 1) for cell in cells)).rstrip()


def _legend(actions, num_chunks):
    used = {action.kind for order in actions for action in order}
    kinds = ", ".join(f"{kind} {what.split(',')[0].split(':')[0]}" for kind, what in KINDS.items() if kind in used)
    return f"({kinds}; then the microbatch{', then the chunk' if num_chunks > 1 else ''})"
