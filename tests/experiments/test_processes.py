"""Two processes of two devices are one process of four, and however one of them ends, the others end too."""

import json
import os
import pathlib
import re
import shutil
import signal
import time

import numpy as np
import pytest
from many import LAUNCH, TRAIN, WORKER, Started, lines, num_lines, peers, write_config

from jaxpar.checkpoint import saved_steps

START_S = 240  # on a busy machine: until the first steps
END_S = 60  # what is promised: from a death to the end of all
LONG = ("--config.train.num_steps=1000000",)

RUNS = {
    "pipe": {"train.num_steps": 4, "train.eval_every": 1, "checkpoint.every": 2},
    "data": {"mesh.data": 2, "mesh.pipe": 1, "train.num_steps": 2},
}
SCHEDULES = {
    name: {"pipeline.schedule": name, "mesh.data": data, "mesh.tensor": 2 // data, "pipeline.num_chunks": chunks}
    for name, data, chunks in [("naive", 1, 1), ("gpipe", 2, 1), ("1f1b", 2, 1), ("interleaved_1f1b", 1, 2)]
}


def train_all(folder, count, runs):
    """The folder with the results of these runs by so many processes."""
    command = [WORKER, write_config(folder), str(folder), json.dumps(runs)]
    with Started(peers(count, *command), folder / "log") as started:
        assert started.wait(START_S * len(runs)) == [0] * count, started.everything()
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return train_all(tmp_path_factory.mktemp("one"), 1, RUNS)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return train_all(tmp_path_factory.mktemp("two"), 2, RUNS)


def arguments(folder, *more, config=""):
    """Of the training program, for a run in folder/run."""
    return f"--config={write_config(folder, config)}", f"--workdir={folder / 'run'}", *more


def launched(count, *flags):
    """The command of a launcher."""
    return [[*LAUNCH, f"--processes={count}", "--", *flags]]


def seen(folder, name, index):
    """What a process saw itself."""
    return json.loads((folder / f"{name}.process{index}.json").read_text())


def same(one, two, name):
    """Asserts that the runs of this name agree to rounding."""
    first, second = lines(one / name), lines(two / name)
    assert [line["step"] for line in first] == [line["step"] for line in second] == list(range(1, len(first) + 1))
    for key in ("loss", "grad_norm", "held_out_loss"):
        found, expected = ([line.get(key, 0.0) for line in log] for log in (second, first))
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{name}: {key}")
    assert lines(one / name, "samples.jsonl") == lines(two / name, "samples.jsonl")


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(one, two, name):
    same(one, two, name)


def test_training_goes_on_after_each_evaluation(two):
    assert ["held_out_loss" in line for line in lines(two / "pipe")] == [True] * 4


@pytest.mark.slow
def test_two_processes_are_one_under_every_schedule(tmp_path):
    folders = []
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        folders.append(train_all(tmp_path / str(count), count, SCHEDULES))
    for name in SCHEDULES:
        same(*folders, name)
        mesh = np.array(seen(folders[1], name, 0)["mesh"])
        assert (mesh[:, 0] == 0).all() and (mesh[:, 1] == 1).all(), "the pipeline crosses, nothing else does"


def test_tensor_groups_lie_inside_a_process(two):
    assert seen(two, "pipe", 0)["mesh"] == [[[0, 0], [1, 1]]], "pipe crosses"
    assert seen(two, "data", 0)["mesh"] == [[[0, 0]], [[1, 1]]], "data crosses where there is no pipe"


def test_every_process_has_the_true_loss(one, two):
    """Not only the one that holds the last stage, and not a part of it."""
    for name in RUNS:
        expected = seen(one, name, 0)
        for index in (0, 1):
            found = seen(two, name, index)
            np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
            np.testing.assert_allclose(found["held_out"], expected["held_out"], rtol=1e-5)


def test_data_ranks_read_disjoint_rows_and_pipe_and_tensor_peers_the_same(two):
    assert [seen(two, "data", index)["rows"] for index in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [seen(two, "pipe", index)["rows"] for index in (0, 1)] == [list(range(8))] * 2


def test_what_two_processes_saved_one_restores(one, two, tmp_path):
    shutil.copytree(two / "pipe", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    flags = arguments(tmp_path, "--config.train.resume=auto", "--config.train.num_steps=4")
    with Started(peers(1, *TRAIN, *flags), tmp_path / "log") as started:
        assert started.wait(START_S) == [0], started.everything()
    found, expected = lines(tmp_path / "run"), lines(one / "pipe")
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in expected], rtol=1e-5)
    assert lines(tmp_path / "run", "samples.jsonl") == lines(one / "pipe", "samples.jsonl")


def test_sigterm_to_the_launcher_saves_one_step_for_all(one, tmp_path):
    """Starts from what one process saved, too."""
    workdir = tmp_path / "run"
    shutil.copytree(one / "pipe", workdir)
    flags = arguments(tmp_path, "--config.train.resume=auto", *LONG)
    with Started(launched(2, *flags), tmp_path / "log") as started:
        started.wait_for(lambda: num_lines(workdir) >= 7, START_S)
        started.processes[0].send_signal(signal.SIGTERM)
        assert started.wait(END_S) == [0], started.everything()
        out, err = started.out(), started.err()
    steps = [line["step"] for line in lines(workdir)]
    assert steps == list(range(1, steps[-1] + 1)), "the first new step follows the one that was saved"
    assert f"interrupted after step {steps[-1]}" in out and f"saved     step {steps[-1]}" in out
    assert "goes on   from step 4" in out and saved_steps(workdir)[-1] == steps[-1]
    assert "ended first" not in err and "Traceback" not in err


def test_sigterm_before_the_first_step_ends_it(tmp_path):
    """The run does not go on as if nothing had been said."""
    flags = arguments(tmp_path, *LONG)
    with Started(launched(2, *flags), tmp_path / "log") as started:
        started.wait_for(lambda: (tmp_path / "run" / "config.json").exists(), START_S)
        started.processes[0].send_signal(signal.SIGTERM)
        assert started.wait(END_S) == [128 + signal.SIGTERM]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_is_killed_and_the_other_ends(tmp_path, victim):
    """Without a launcher, and with saves on their way all the time."""
    flags = arguments(tmp_path, *LONG, "--config.checkpoint.every=1")
    with Started(peers(2, *TRAIN, *flags), tmp_path / "log") as started:
        started.wait_for(lambda: num_lines(tmp_path / "run") >= 5, START_S)
        started.processes[victim].kill()
        (status,) = started.wait(END_S, [1 - victim])
        assert status not in (0, None)
        assert re.search("another process ended or cannot be reached|another task died", started.err(1 - victim))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed_under_the_launcher(tmp_path, victim):
    flags = arguments(tmp_path, *LONG)
    with Started(launched(2, *flags), tmp_path / "log") as started:
        started.wait_for(lambda: num_lines(tmp_path / "run") >= 5, START_S)
        _kill_child(started.processes[0].pid, victim)
        assert started.wait(END_S) == [128 + signal.SIGKILL], started.everything()
        assert f"process {victim} ended first, with SIGKILL; the others were ended" in started.err()


def _kill_child(parent, number):
    """Kills the process with this number among those that the launcher started."""
    for child in pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"--process_id={number}" in pathlib.Path(f"/proc/{child}/cmdline").read_text().split("\0"):
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", ["save", "wait"])
def test_a_save_without_its_peer_does_not_wait_for_it(tmp_path, moment, victim):
    """One dies as it begins to save, or after it began; the other sits in the save's barriers then."""
    runs = json.dumps({"run": {"checkpoint.every": 6}})
    environs = [{"DIE_AT": moment} if index == victim else {} for index in (0, 1)]
    with Started(peers(2, WORKER, write_config(tmp_path), str(tmp_path), runs), tmp_path / "log", environs) as started:
        assert started.wait(START_S, [victim]) == [-signal.SIGKILL], started.everything()
        assert started.wait(END_S, [1 - victim]) != [0]
    assert not saved_steps(tmp_path / "run"), "half a checkpoint does not count"


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_stands_still_is_missed(tmp_path, victim):
    """No connection breaks: the heartbeat tells."""
    flags = arguments(tmp_path, *LONG)
    with Started(peers(2, *TRAIN, *flags), tmp_path / "log") as started:
        started.wait_for(lambda: num_lines(tmp_path / "run") >= 5, START_S)
        started.processes[victim].send_signal(signal.SIGSTOP)
        (status,) = started.wait(END_S, [1 - victim])
        assert status not in (0, None)
        assert re.search("heartbeat", started.err(1 - victim), re.IGNORECASE)


def test_an_exception_in_one_ends_all_and_is_printed_first(tmp_path):
    """Process 1 alone fails, and before it has met the other."""
    broken = 'assert "--process_id=1" not in __import__("sys").argv, "broken on purpose"'
    flags = arguments(tmp_path, config=broken)
    with Started(launched(2, *flags), tmp_path / "log") as started:
        begun = time.monotonic()
        assert started.wait(START_S) == [2], started.everything()
        assert time.monotonic() - begun < END_S
        err = started.err()
    assert re.match(r"\[1\] config=.* cannot be used: line \d+ raises AssertionError \(broken on purpose\)", err)
    assert "process 1 ended first, with status 2; the others were ended\nits last words:\nconfig=" in err


@pytest.mark.slow
def test_an_exception_in_one_while_they_train(tmp_path):
    """The one that fails is named, not the one that lost its peer to it."""
    flags = arguments(tmp_path, "--config.train.num_steps=20")
    broken = (
        "import sys; from experiments import train; from experiments._app import loop; advance = loop._advance\n"
        "def fail(progress, history, step, *rest):\n"
        "    if step == 5: raise RuntimeError('broken on purpose')\n"
        "    advance(progress, history, step, *rest)\n"
        "if '--process_id=1' in sys.argv: loop._advance = fail\n"
        "sys.exit(train.main(['train', *sys.argv[1:]]))"
    )
    with Started(peers(2, "-c", broken, *flags), tmp_path / "log") as started:
        assert started.wait(START_S) == [1, 1] or started.processes[0].returncode < 0
        assert "RuntimeError: broken on purpose" in started.err(1)
        assert "another process ended or cannot be reached" in started.err(0)


def test_a_setting_that_cannot_work_is_told_once_a_process(tmp_path):
    flags = arguments(tmp_path, "--config.emulate_devices=3")
    with Started(launched(2, *flags), tmp_path / "log") as started:
        assert started.wait(START_S) == [2], started.everything()
        assert 1 <= started.err().count("emulate_devices=3 does not divide by 2 processes") <= 2
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--config=x.py"], "--config=x.py does not say how many processes"),
        (["--processes=two", "--", "--config=x.py"], "processes=two is not a number of processes"),
        (["--processes=0", "--", "--config=x.py"], "processes=0 is not a number of processes"),
        (["--processes=2", "--"], "-- is followed by nothing"),
    ],
)
def test_the_launcher_refuses(arguments, part, capsys):
    from experiments import launch

    assert launch.main(["launch", *arguments]) == 2
    assert part in capsys.readouterr().err
