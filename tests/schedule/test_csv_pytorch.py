"""Schedule files between PyTorch's pipelining and us: its orders load here, ours run there."""

import contextlib
import csv
import re

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import ScheduleError, build, from_csv, names
from tests.schedule.common import DATA, reference_files
from tests.schedule.test_check import with_recompute

FILES = reference_files() + sorted((DATA / "more").glob("*.csv"))
BOTH_WAYS = [path for path in FILES if "_bidir_" in path.name]  # every stage on two ranks
CELL = re.compile(r"(\d+)([FBIW])(\d+)")


def read_as_pytorch(path):
    """rows[rank]: tuples of (stage, kind, microbatch), empty where the rank idles; what PyTorch cannot parse raises."""
    rows = []
    for line in csv.reader(path.read_text().splitlines()):
        texts = [text.removesuffix("OVERLAP_F_B").strip("()").split(";") if text else [] for text in line]
        cells = [[CELL.fullmatch(part).groups() for part in parts] for parts in texts]
        rows.append([tuple((int(stage), kind, int(m)) for stage, kind, m in cell) for cell in cells])
    return rows


def runs_as_pytorch(rows, num_stages, num_microbatches):
    """Would PyTorch run these rows? Each stage is complete, on one rank, and free-running ranks never all wait.

    A cell starts when what its actions need has arrived or was computed on the rank, before the cell; the last stage's
    backward needs its own forward alone, which may be earlier in the cell.
    """
    owner = {stage: rank for rank, row in enumerate(rows) for cell in row for stage, _, _ in cell}
    listed = [action for row in rows for cell in row for action in cell]
    split = {(stage, m) for stage, kind, m in listed if kind == "I"}
    pairs = [(stage, m) for stage in range(num_stages) for m in range(num_microbatches)]
    expected = [(s, kind, m) for s, m in pairs for kind in ("FIW" if (s, m) in split else "FB")]
    if sorted(listed) != sorted(expected):
        return False
    if any(owner[stage] != rank for rank, row in enumerate(rows) for cell in row for stage, _, _ in cell):
        return False
    done, queues = set(), [[cell for cell in row if cell] for row in rows]

    def ready(action, earlier):
        stage, kind, m = action
        if kind == "F":
            return stage == 0 or (stage - 1, "F", m) in done
        if kind == "W":
            return (stage, "I", m) in done | earlier
        if stage == num_stages - 1:
            return (stage, "F", m) in done | earlier
        return (stage, "F", m) in done | earlier and bool({(stage + 1, "B", m), (stage + 1, "I", m)} & done)

    while any(queues):
        going = [
            queue for queue in queues if queue and all(ready(a, set(queue[0][:i])) for i, a in enumerate(queue[0]))
        ]
        if not going:
            return False
        for queue in going:
            done.update(queue.pop(0))
    return True


@pytest.mark.parametrize("path", [path for path in FILES if path not in BOTH_WAYS], ids=lambda path: path.stem)
def test_every_file_from_elsewhere_loads_and_goes_back(path, tmp_path):
    schedule = from_csv(path)
    schedule.check()
    sizes = re.search(r"_P(\d+)_V(\d+)_M(\d+)$", path.stem)
    assert (schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches) == tuple(map(int, sizes.groups()))
    given = read_as_pytorch(path)
    assert [[a for cell in row for a in cell] for row in given] == [
        list(map(tuple, order)) for order in schedule.actions
    ]
    back = tmp_path / path.name
    schedule.to_csv(back, pytorch=True)
    assert from_csv(back) == schedule
    written = read_as_pytorch(back)
    assert [[cell for cell in row if cell] for row in written] == [[cell for cell in row if cell] for row in given]
    assert runs_as_pytorch(written, schedule.num_stages, schedule.num_microbatches)


@pytest.mark.parametrize("path", BOTH_WAYS, ids=lambda path: path.stem)
def test_a_model_in_both_directions_is_refused(path):
    with pytest.raises(ScheduleError, match="would deadlock"):
        from_csv(path)


def ours():
    """Every schedule that has these sizes."""
    for name in names():
        for num_ranks in range(1, 5):
            for num_chunks in (1, 2):
                for num_microbatches in (1, 3, 8):
                    with contextlib.suppress(SettingError):
                        yield build(name, num_ranks, num_microbatches, num_chunks)


def test_ours_run_there(tmp_path):
    path = tmp_path / "ours.csv"
    for schedule in ours():
        schedule.to_csv(path, pytorch=True)
        rows = read_as_pytorch(path)
        assert runs_as_pytorch(rows, schedule.num_stages, schedule.num_microbatches), schedule.render()
        assert len({len(row) for row in rows}) == 1, "a blank cell where a rank idles"


def test_ours_run_in_pytorch_itself(tmp_path):
    """PyTorch's own reader, validation and lowering to messages, where it is installed."""
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules", exc_type=ImportError)
    path = tmp_path / "ours.csv"
    for schedule in [*ours(), *(from_csv(path) for path in FILES if path not in BOTH_WAYS)]:
        schedule.to_csv(path, pytorch=True)
        runtime = object.__new__(pipelining._PipelineScheduleRuntime)  # its constructor wants process groups
        runtime.pp_group_size, runtime._num_stages = schedule.num_ranks, schedule.num_stages
        runtime._n_microbatches, runtime._stages, runtime._defer_pp_recv = schedule.num_microbatches, [], False
        runtime.pipeline_order = {}
        runtime._load_csv(str(path))
        for rank in range(schedule.num_ranks):
            cells = [tuple(row[rank]) for row in schedule.ticks if row[rank]]
            lowered = [a for a in runtime.pipeline_order_with_comms[rank] if a.is_compute_op]
            assert [str(a) for a in lowered] == [
                str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})OVERLAP_F_B" for cell in cells
            ]


def test_the_reader_above_sees_faults():
    path = DATA / "torch_InterleavedZeroBubble_P2_V1_M4.csv"
    rows = read_as_pytorch(path)
    assert runs_as_pytorch(rows, 2, 4)
    assert not runs_as_pytorch(rows, 2, 5) and not runs_as_pytorch(rows, 3, 4)
    assert not runs_as_pytorch(rows[::-1] + [[]], 2, 5)
    rows[1][1], rows[1][2] = rows[1][2], rows[1][1]
    assert not runs_as_pytorch(rows, 2, 4)


@pytest.mark.parametrize("kind", "EHGR")
def test_what_cannot_be_said_there_is_refused_before_anything_is_written(kind, tmp_path):
    plain = build("1f1b", 2, 2)
    if kind == "R":
        schedule, message = (
            with_recompute(plain),
            "has 1R0 at tick 2 on rank 1: PyTorch's pipelining has F, B, I and W,",
        )
    else:
        schedule = plain.with_vocabulary("ends")
        ticks = tuple(
            tuple(tuple(a for a in cell if a.kind not in "EHG" or a.kind == kind) for cell in row)
            for row in schedule.ticks
        )
        schedule = type(plain)("1f1b", 2, 1, 2, "loop", ticks, "ends")
        message = (
            f"PyTorch's pipelining has F, B, I and W, and no {kind}. Export the schedule from before with_vocabulary"
        )
    with pytest.raises(ScheduleError) as error:
        schedule.to_csv(tmp_path / "mine.csv", pytorch=True)
    assert message in str(error.value) and "^" in str(error.value) and not list(tmp_path.iterdir())
    schedule.to_csv(tmp_path / "mine.csv")


def test_the_order_that_pytorch_publishes_for_1f1b_is_refused(tmp_path):
    """Its last rank starts with microbatch 1 and ends with one that does not exist (what it runs is right)."""
    path = tmp_path / "published.csv"
    path.write_text("0F0,0F1,,0B0,,0B1\n,1F1,1B0,1F2,1B1,\n")
    with pytest.raises(ScheduleError, match="misses 0F2: each action runs once"):
        from_csv(path)
