"""Tables as CSV: round trips, inference, refusals."""

import re
from pathlib import Path

import pytest

from jaxpar.schedule import Schedule, ScheduleError, build, from_csv
from tests.schedule.common import DATA, reference_files, small_schedules


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_round_trip_is_exact(num_ranks, tmp_path):
    path = tmp_path / "table.csv"
    for num_chunks in (1, 2, 3):
        for num_microbatches in (1, 2, 5):
            for plain in small_schedules(num_ranks, num_chunks, num_microbatches):
                for vocabulary in (None, "ends", "pipe") if num_ranks > 1 else (None, "ends"):
                    schedule = plain.with_vocabulary(vocabulary)
                    schedule.to_csv(path)
                    assert from_csv(path, name=schedule.name) == schedule


@pytest.mark.parametrize("file", reference_files(), ids=lambda path: path.name)
def test_reference_tables_round_trip(file, tmp_path):
    schedule = from_csv(file)
    assert schedule.name == file.stem
    path = tmp_path / file.name
    schedule.to_csv(path)
    assert from_csv(path) == schedule
    rows = [[cell for cell in line.split(",") if cell] for line in file.read_text().splitlines()]
    written = [[cell for cell in line.split(",") if cell] for line in path.read_text().splitlines()]
    assert rows == written
    if file.name.startswith("lock_"):  # Their columns are ticks; the others are orders, some of them spaced out.
        assert path.read_text() == file.read_text()


def test_a_file_of_orders_is_placed_as_early_as_possible(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert from_csv(path, name="1f1b") == build("1f1b", 2, 2)


def test_placement_and_sizes_are_inferred():
    schedule = from_csv(DATA / "zb_VMin_P4_V2_M8.csv")
    assert (schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches, schedule.placement) == (4, 2, 8, "v")
    assert [schedule.stage_of(1, chunk) for chunk in range(2)] == [1, 6]
    assert [schedule.locate(stage) for stage in (0, 3, 4, 7)] == [(0, 0), (3, 0), (3, 1), (0, 1)]
    schedule = from_csv(DATA / "torch_Interleaved1F1B_P4_V2_M6.csv")
    assert (schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches, schedule.placement) == (4, 2, 6, "loop")
    assert schedule.vocabulary is None


@pytest.mark.parametrize("placement", ["loop", "v"])
def test_locate_is_the_inverse_of_stage_of(placement):
    for num_ranks in (1, 2, 5):
        schedule = Schedule("sizes", num_ranks, 4, 1, placement, ())
        stages = [schedule.stage_of(r, c) for c in range(4) for r in range(num_ranks)]
        assert sorted(stages) == list(range(4 * num_ranks))
        for stage in stages:
            assert schedule.stage_of(*schedule.locate(stage)) == stage


@pytest.mark.parametrize(
    ("text", "message", "marks"),
    [
        ("0F0,0X0\n1F0,1B0\n", "has '0X0' at tick 1 on rank 0 (row 1, column 2): it is not an action", 0),
        ("0F0,(0B0;)OVERLAP_F_B\n", "at tick 1 on rank 0 (row 1, column 2): it is not an action", 0),
        ("0F0," + "9" * 50, f"has '{'9' * 40}...' at tick 1 on rank 0 (row 1, column 2): it is not an action", 0),
        ("0F0,0SEND_F0\n", "has '0SEND_F0' at tick 1 on rank 0 (row 1, column 2): messages and sharding are", 0),
        ("0F0,0B0\n0UNSHARD,1F0\n", "Export it with format='compute_only'.", 0),
        ("", "has no action", 0),
        (",,\n,,\n", "has no action", 0),
        ("0F0,,,0B0\n,0F0,1B0,\n", "has 0F0 at tick 1 on rank 1 (row 2, column 2): rank 0 owns stage 0", 1),
        ("\n0F0,,,0B0\n\n,0F0,1B0,\n", "has 0F0 at tick 1 on rank 1 (row 4, column 2): rank 0 owns stage 0", 1),
        ("0F0,,,0B0\n,1F0,1B0,1B0\n", "has 1B0 at tick 3 on rank 1 (row 2, column 4), twice", 1),
        (
            "0F0,,,\n,1F0,1B0,\n",
            "misses 0B0: each action runs once. Add it at tick 3 on rank 0 (row 1, column 4) or",
            1,
        ),
        ("0F0,0F1,,,0B0,0B1\n,1F0,1B0,,,\n", "misses 1F1", 1),
        (
            "0F0,,,0B0\n,1B0,1F0,\n",
            "would deadlock: rank 1 waits at 1B0 (row 2, column 2) for 1F0, which comes later on that rank.",
            1,
        ),
        ("0F0,99999999F0\n", "has 99999999F0 at tick 1 on rank 0 (row 1, column 2): no action is of stage 1. Num", 1),
        ("0F0,0F9999999\n", "has 0F9999999 at tick 1 on rank 0 (row 1, column 2): no action is of microbatch 1", 1),
        ("0E0,0F0,0H0,0B0,0G0\n0E0\n", "has 0H0 at tick 2 on rank 0 (row 1, column 3): H belongs to stage 1", 1),
    ],
)
def test_bad_files_are_refused_by_path_row_and_column(text, message, marks, tmp_path):
    path = tmp_path / "edited.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError) as error:
        from_csv(path, name="mine")
    first, *drawn = str(error.value).splitlines()
    assert first.startswith(f"pipeline.schedule={path} ") and message in first
    assert sum("^" in line for line in drawn) == marks


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0F0,0B0\n".encode("utf-16"), "cannot be read: it is not UTF-8 text (byte 0). Save it as CSV in UTF-8."),
        (b"0F0," + b"9" * 200_000, "cannot be read: it is not CSV (field larger than field limit"),
        (b"", "has no action"),
        (None, "cannot be read: No such file or directory."),
        (tuple, "cannot be read: Is a directory."),
    ],
)
def test_files_that_are_no_table_are_refused_by_path(content, message, tmp_path):
    path = tmp_path / "edited.csv"
    if content is tuple:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ScheduleError) as error:
        from_csv(path)
    assert str(error.value).startswith(f"pipeline.schedule={path} {message}")


def test_a_path_that_cannot_be_is_refused():
    with pytest.raises(ScheduleError, match=r"^pipeline\.schedule='a\\x00b\.csv' cannot be read: embedded null "):
        from_csv("a\0b.csv")


def test_a_file_from_a_spreadsheet_is_read(tmp_path):
    """With a byte order mark, DOS line ends, spaces, and rows of nothing but commas below the table."""
    path = tmp_path / "1f1b.csv"
    build("1f1b", 2, 2).to_csv(path)
    text = path.read_text().replace(",", ", ").replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + f"{text},,,,,\r\n,,,,,\r\n".encode())
    assert from_csv(path) == build("1f1b", 2, 2)


def test_the_documentation_shows_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    (table,) = re.findall(r"```\n(0F0,.*?)```", text, re.S)
    Path("mine.csv").write_text(table)
    assert from_csv("mine.csv", name="1f1b") == build("1f1b", 2, 2)
    Path("mine.csv").write_text(table.replace("1B0,1F1", "1B0,1B0"))
    with pytest.raises(ScheduleError) as error:
        from_csv("mine.csv")
    assert f"```\n{error.value}\n```" in text


def test_a_swap_in_an_exported_file_is_refused_by_name(tmp_path):
    path = tmp_path / "edited.csv"
    build("1f1b", 4, 4).to_csv(path)
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace("3F0,3B0", "3B0,3F0")
    path.write_text("\n".join(lines))
    message = r"would deadlock: rank 3 waits at 3B0 \(row 4, column 4\) for 3F0, which comes later on that rank"
    with pytest.raises(ScheduleError, match=message):
        from_csv(path)
