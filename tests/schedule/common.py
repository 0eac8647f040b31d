"""What the schedule tests share: the reference files and the small sizes that are exhausted."""

import csv
from pathlib import Path

from jaxpar.schedule import ScheduleError, build

DATA = Path(__file__).parent / "data"


def references():
    """Rows of summary.csv, as dicts of str."""
    with (DATA / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def lock_references():
    """(file name, row) of lock_summary.csv."""
    with (DATA / "lock_summary.csv").open() as file:
        return [("lock_{design}_P{P}_V{V}_M{M}.csv".format(**row), row) for row in csv.DictReader(file)]


def reference_files():
    """All reference schedules' paths."""
    return sorted(path for path in DATA.glob("*.csv") if not path.name.endswith("summary.csv"))


def small_schedules(num_ranks, num_chunks, num_microbatches):
    """Every family that has these sizes."""
    names = ["naive", "interleaved_1f1b"] + (["gpipe", "1f1b"] if num_chunks == 1 else [])
    return [build(name, num_ranks, num_microbatches, num_chunks) for name in names]


def accepted(schedule):
    """Whether check() lets the table pass."""
    try:
        schedule.check()
    except ScheduleError:
        return False
    return True
