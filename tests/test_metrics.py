"""Files of a run are whole lines and whole files."""

import json
import math
import os
import subprocess
import sys

import pytest

from jaxpar import metrics
from jaxpar.errors import SettingError


def test_bits():
    assert metrics.bits_per_byte(math.log(2)) == pytest.approx(1) and metrics.bits_per_byte(None) is None


def test_each_line_is_there_at_once(tmp_path):
    log = metrics.LineLog(tmp_path)
    for step in range(3):
        log.write(step=step, loss=math.inf, mfu=None)
        lines = (tmp_path / metrics.METRICS).read_text().splitlines()
        assert json.loads(lines[-1]) == {"step": step, "loss": None, "mfu": None} and len(lines) == step + 1
    log.close()


def test_a_run_that_goes_on_keeps_the_lines_up_to_its_step(tmp_path):
    lines = ['{"step": 1}', '{"step": 2}', '{"step": 3}', '{"step": 4, "lo']  # the last one was cut short
    (tmp_path / metrics.METRICS).write_text("\n".join(lines))
    assert metrics.read_lines(tmp_path / metrics.METRICS) == [{"step": 1}, {"step": 2}, {"step": 3}]
    (tmp_path / "damaged").write_bytes(b'\n{"step": 1}\ngarbage\n\0\0\xff\n[2]\n{"step": 2}\n')
    assert metrics.read_lines(tmp_path / "damaged") == [{"step": 1}, {"step": 2}]
    log = metrics.LineLog(tmp_path, after=2)
    log.write(step=3, loss=1.0)
    log.close()
    found = metrics.read_lines(tmp_path / metrics.METRICS)
    assert found == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]
    metrics.LineLog(tmp_path).close()
    assert metrics.read_lines(tmp_path / metrics.METRICS) == metrics.read_lines(tmp_path / "none") == []


def test_losses_are_shown_in_bits_where_there_is_text():
    assert metrics.shown_loss(math.log(2), 1.0) == "1.000 bits/byte"
    assert metrics.shown_loss(math.log(2), 4.0) == "0.250 bits/byte"
    assert metrics.shown_loss(2.5, None) == "2.500 nats/token"


def test_a_process_that_is_killed_leaves_whole_lines(tmp_path):
    code = (
        "import os, signal, sys; from jaxpar.metrics import LineLog\n"
        "log = LineLog(sys.argv[1])\n"
        "log.write(step=1); log.write(step=2); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert [json.loads(line)["step"] for line in (tmp_path / metrics.METRICS).read_text().splitlines()] == [1, 2]


def test_json_has_no_nan(tmp_path):
    metrics.write_json(tmp_path / "a.json", {"a": [1.5, math.nan], "b": (math.inf, "x", None)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1.5, None], "b": [None, "x", None]}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    metrics.write_whole(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        metrics.write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.json"]


def test_the_workdir_loses_only_what_the_run_will_write(tmp_path):
    folder = tmp_path / "a" / "b"
    metrics.open_workdir(folder, ["report.json"])
    (folder / "report.json").write_text("{}")
    (folder / "mine.txt").write_text("keep")
    metrics.open_workdir(folder, ["report.json"])
    assert os.listdir(folder) == ["mine.txt"]


def test_a_workdir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="workdir="):
        metrics.open_workdir(tmp_path / "file", [])
