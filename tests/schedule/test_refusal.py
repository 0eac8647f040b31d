"""Refusals name the first wrong cell and draw its row with the cell marked."""

import dataclasses

import pytest

from jaxpar.schedule import Action, Schedule, ScheduleError, build
from tests.schedule.test_check import SMALL


def changed(schedule, tick, rank, *texts):
    ticks = [list(row) for row in schedule.ticks]
    ticks[tick][rank] = tuple(map(Action.parse, texts))
    return dataclasses.replace(schedule, ticks=tuple(map(tuple, ticks)))


BASE = build("1f1b", 2, 2)
PIPE = BASE.with_vocabulary("pipe")
REFUSED = [
    (changed(BASE, 0, 0), "misses 0F0: each action runs once. Add it at tick 0 on rank 0 or later."),
    (
        changed(BASE, 1, 0, "0F0"),
        "has 0F0 at tick 1 on rank 0, twice: each action runs once, and 0F0 is at tick 0 alre",
    ),
    (
        changed(BASE, 4, 1, "1I0"),
        "has 1I0 at tick 4 on rank 1, twice: .* 1B0 is at tick 2 already .a B is an I and a W",
    ),
    (changed(BASE, 1, 1, "0F0"), "has 0F0 at tick 1 on rank 1: rank 0 owns stage 0. Move it there."),
    (
        changed(changed(BASE, 0, 1, "1F0"), 1, 1),
        "has 1F0 at tick 0 on rank 1 before its input 0F0: 0F0 runs at tick 0 on rank 0 and arrives at the tick's end. "
        "Move 1F0 later or 0F0 earlier.",
    ),
    (
        changed(changed(BASE, 2, 1), 1, 1, "1B0", "1F0"),
        "has 1B0 1F0 at tick 1 on rank 1: .* at most one action of each kind a tick, in the order E F H R I G W",
    ),
    (changed(BASE, 2, 1, "1I0"), "misses 1W0: every I has its W .a B is both.. Add it at tick 2 on rank 1 or later"),
    (changed(BASE, 5, 0), "misses 0B1: each action runs once. Add it at tick 5 on rank 0 or later"),
    (changed(BASE, 5, 0, "0W1"), "misses 0I1: each action runs once. Add it at tick 5 on rank 0 or later"),
    (changed(BASE, 0, 0, "0F2"), "has 0F2 at tick 0 on rank 0: there are 2 stages and 2 microbatches. Remove it"),
    (changed(BASE, 0, 0, "0F0", "0F1"), "has 0F0 0F1 at tick 0 on rank 0: .* at most one action of each kind"),
    (changed(build("1f1b", 1, 2), 1, 0, "0B0", "0F1"), "has 0B0 0F1 at tick 1 .* in the order E F H R I G W"),
    (changed(BASE, 0, 0, "0E0", "0F0"), "has 0E0 at tick 0 on rank 0: its vocabulary is None"),
    (
        changed(PIPE, 0, 1),
        "has 0E0 at tick 0 on one of ranks 0 and 1 but not on the other: with vocabulary=pipe all ranks take part",
    ),
    (changed(BASE.with_vocabulary("ends"), 0, 1, "0E0"), "has 0E0 at tick 0 on rank 1: rank 0 owns stage 0"),
    (changed(PIPE, 0, 0, "1E0", "0F0"), "has 1E0 at tick 0 on rank 0: E belongs to stage 0"),
    (dataclasses.replace(BASE, vocabulary="ends"), "misses 0E0: each action runs once. Add it at tick 0 on rank 0"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_the_first_wrong_cell_is_named_and_marked(table, message):
    with pytest.raises(ScheduleError, match=f"^pipeline.schedule=1f1b {message}") as error:
        table.check()
    text, header, row, mark = str(error.value).split("\n")
    rank = int(row.split()[1])
    assert header.startswith("tick ") and f" on rank {rank}" in text or "on one of ranks" in text
    at = mark.index("^")
    assert mark.strip() == "^" * len(mark.strip()), "one cell is marked"
    marked = row[at : at + len(mark.strip())]
    tick = int(header[at:].split()[0])
    cells = [line[rank] for line in table.ticks]
    assert marked == (("+".join(map(str, cells[tick])) if tick < len(cells) else "") or ".")
    if "misses" not in text and "not on the other" not in text:
        assert f"at tick {tick} on " in text and text.split(" has ")[1].split(" ")[0] in marked


def of_cell(cell):
    """BASE with this at tick 1 on rank 0."""
    return dataclasses.replace(BASE, ticks=(BASE.ticks[0], (cell, ()), *BASE.ticks[2:]))


NO_ACTIONS = [
    ("0F1", r"has the cell '0F1' at tick 1 on rank 0: a cell is a tuple of Actions\. Write"),
    (None, r"has the cell None at tick 1 on rank 0: a cell is a tuple of Actions\."),
    (Action(0, "F", 1), r"has the cell Action\(stage=0, kind='F', microbatch=1\) at tick 1 on rank 0: a cell is a"),
    (("0F1",), r"has '0F1' at tick 1 on rank 0: an action is an Action with .*\. Write .* or Action\.parse"),
    (((0, "F", 1),), r"has \(0, 'F', 1\) at tick 1 on rank 0: an action is an Action"),
    ((Action(0, "F", 0.5),), r"has Action\(stage=0, kind='F', microbatch=0\.5\) at tick 1 on rank 0: an action is an"),
    ((Action(None, "F", 1),), r"has Action\(stage=None, .* at tick 1 on rank 0: an action is an"),
    ((Action(0, "F", True),), r"has Action\(.*microbatch=True\) at tick 1 on rank 0: an action is an"),
    ((Action(0, ["F"], 1),), r"has Action\(.*\['F'\].* at tick 1 on rank 0: an action is an"),
    ((Action(0, "X", 1),), r"has 0X1 at tick 1 on rank 0: 'X' is no kind\. Use one of E, F, H, B, R, I, W, G\."),
]


@pytest.mark.parametrize(("cell", "message"), NO_ACTIONS, ids=[message[:40] for _, message in NO_ACTIONS])
def test_what_is_no_action_is_refused_by_all_that_read_it(cell, message):
    table = of_cell(cell)
    for reads in (
        table.check,
        table.lower,
        table.simulate,
        table.with_recompute,
        lambda: table.with_vocabulary("ends"),
    ):
        with pytest.raises(ScheduleError, match=f"^pipeline.schedule=1f1b {message}"):
            reads()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action(0, "X", 0), r"has 0X0 as number 1 of rank 0's order: 'X' is no kind\. Use one of"),
        ("0B0", r"has '0B0' as number 1 of rank 0's order: an action is an Action"),
        (Action(0, "B", 0.5), r"has Action\(.*\) as number 1 of rank 0's order: an action is an Action"),
        (Action(3, "B", 0), r"has 3B0 as number 1 of rank 0's order: there are 1 stages and 1 microbatches"),
    ],
)
def test_orders_of_what_is_no_action_are_refused(action, message):
    with pytest.raises(ScheduleError, match=f"^pipeline.schedule=mine {message}"):
        Schedule.from_orders("mine", 1, 1, 1, "loop", [[Action(0, "F", 0), action]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": "x"}, r"has placement='x': it says which rank owns a stage\. Use 'loop' or 'v'\."),
        ({"vocabulary": "all"}, r"has vocabulary='all': it says .*\. Use None, 'ends' or 'pipe'\."),
        ({"num_microbatches": 0.5}, r"has num_microbatches=0\.5: it is no positive integer, and counts things"),
        ({"num_ranks": 0}, r"has num_ranks=0: it is no positive"),
        ({"num_chunks": True}, r"has num_chunks=True: it is no positive"),
    ],
)
def test_a_schedule_of_impossible_sizes_is_refused(changes, message):
    with pytest.raises(ScheduleError, match=f"^pipeline.schedule=1f1b {message}"):
        dataclasses.replace(BASE, **changes)


def drawing(table, **options):
    with pytest.raises(ScheduleError) as error:
        table.check(**options)
    return str(error.value).split("\n", 1)[1]


DRAWN_TWICE = """
tick   0   1   2 3   4 5
rank 0 0F0 0F0 . 0B0 . 0B1
           ^^^"""
DRAWN_MISSING = """
tick   0   1   2 3   4 5
rank 0 0F0 0F1 . 0B0 . .
                       ^"""


def test_whole_drawings():
    assert drawing(changed(BASE, 1, 0, "0F0")) == DRAWN_TWICE[1:]
    # A missing action is marked where it could go: the first idle cell after its inputs, else its earliest tick.
    assert drawing(changed(BASE, 5, 0)) == DRAWN_MISSING[1:]
    assert drawing(dataclasses.replace(BASE, ticks=BASE.ticks[:5])) == DRAWN_MISSING[1:]
    fused = SMALL["fused"]
    assert "+" in drawing(changed(fused, fused.num_ticks - 1, 1, "1F3")), "several actions in a cell are joined"


@pytest.mark.parametrize("num_microbatches", [3, 30, 300])
def test_long_rows_are_drawn_in_part(num_microbatches):
    table = build("1f1b", 4, num_microbatches)
    cells = [(t, a) for t, row in enumerate(table.ticks) for a in row[2]]
    for tick, action in cells[:: max(1, len(cells) // 40)]:
        lines = drawing(changed(table, tick, 2)).splitlines()
        assert max(map(len, lines)) <= 100
        at = lines[2].index("^")
        assert lines[1][at] == "." and lines[1][:at].count("...") + lines[1][at:].count("...") <= 2
        assert len(lines[1].split()) >= min(table.num_ticks, 15), "the neighbours are shown"
        assert int(lines[0][at:].split()[0]) >= tick or action.kind == "F"
