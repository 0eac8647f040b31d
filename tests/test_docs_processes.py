"""The files in docs/processes.md work: SLURM's with a stand-in for srun, JobSet's variables and shell."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from experiments._app import flags
from jaxpar.config import fit
from jaxpar.distributed import Processes, find

yaml = pytest.importorskip("yaml")

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "processes.md").read_text()
SLURM = next(block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) if "#SBATCH" in block)
JOBSET = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])

# Stands for the training program: notes its arguments, reports, and ends as told or on SIGTERM.
PYTHON = """#!/bin/bash
printf '%s\\n' "$@" > {folder}/arguments
trap 'kill $!; echo told > {folder}/told; exit 0' TERM
echo '"finished": {finished}' > {report}
sleep {seconds} & wait $!
exit {status}
"""


@pytest.fixture
def stand_ins(tmp_path):
    """Makes the commands that the files call; returns the environment."""

    def make(report, finished="true", status=0, seconds=0):
        report.parent.mkdir(parents=True, exist_ok=True)
        python = PYTHON.format(folder=tmp_path, report=report, finished=finished, status=status, seconds=seconds)
        commands = {
            "python": python,
            "srun": '#!/bin/bash\nshift\nexec "$@"\n',
            "scontrol": f'#!/bin/bash\necho "$@" > {tmp_path}/requeued\n',
        }
        for name, text in commands.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_ID": "7"}

    return make


def check_arguments(tmp_path):
    """What the training program was given fits 16 devices."""
    module, program, *rest = (tmp_path / "arguments").read_text().splitlines()
    assert (module, program) == ("-m", "experiments.train")
    given = [f"--config={ROOT}/{arg.partition('=')[2]}" if arg.startswith("--config=") else arg for arg in rest]
    command = flags.parse(["train", *given])
    assert fit(command.config, 16).train.resume == "auto" and command.config.emulate_devices == 0


@pytest.mark.parametrize(
    ("finished", "status", "requeued"), [("false", 0, True), ("true", 0, False), ("false", 1, False)]
)
def test_the_slurm_file_goes_on_until_the_run_is_finished(stand_ins, tmp_path, finished, status, requeued):
    env = stand_ins(tmp_path / "runs" / "long_run" / "report.json", finished, status)
    done = subprocess.run(["bash", "-c", SLURM], env=env, timeout=60)
    assert done.returncode == status
    assert (tmp_path / "requeued").exists() == requeued
    check_arguments(tmp_path)


def container():
    """The JobSet's only container, its job and its pod."""
    (job,) = JOBSET["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return found, job, pod


def test_the_jobset_starts_processes_that_find_each_other():
    found, job, pod = container()
    spec, name = job["template"]["spec"], JOBSET["metadata"]["name"]
    env = {entry["name"]: entry["value"] for entry in found["env"]}
    count = spec["completions"]
    assert count == spec["parallelism"] and spec["completionMode"] == "Indexed"
    address = f"{name}-{job['name']}-0-0.{name}:{found['ports'][0]['containerPort']}"
    for index in range(count):  # Kubernetes adds the index
        assert find(environ={**env, "JOB_COMPLETION_INDEX": str(index)}) == Processes(count, index, address)
    assert {mount["name"] for mount in found["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("finished", "status", "expected"), [("true", 0, 0), ("false", 0, 1), ("false", 2, 2), ("false", 1, 1)]
)
def test_the_jobsets_shell_reports_what_is_left(stand_ins, tmp_path, finished, status, expected):
    env = stand_ins(tmp_path / "runs" / "long_run" / "report.json", finished, status)
    (text,) = container()[0]["args"]
    done = subprocess.run(["bash", "-c", text.replace("/runs/", f"{tmp_path}/runs/")], env=env, timeout=60)
    assert done.returncode == expected
    check_arguments(tmp_path)


def test_the_jobsets_shell_hands_on_sigterm(stand_ins, tmp_path):
    env = stand_ins(tmp_path / "runs" / "long_run" / "report.json", "false", seconds=50)
    (text,) = container()[0]["args"]
    shell = subprocess.Popen(["bash", "-c", text.replace("/runs/", f"{tmp_path}/runs/")], env=env)
    while not (tmp_path / "runs" / "long_run" / "report.json").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(timeout=20) == 1, "saved, and not finished"
    assert (tmp_path / "told").exists()
