"""Runs of several processes for tests: a tiny config, processes with hard limits, what they wrote."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
WORKER = str(pathlib.Path(__file__).with_name("many_worker.py"))
TRAIN = ["-m", "experiments.train"]
LAUNCH = ["-m", "experiments.launch"]

CONFIG = """
import os
from jaxpar.config import base_config

def get_config():
    c = base_config()
    c.emulate_devices = 4
    c.mesh.data, c.mesh.pipe, c.mesh.tensor = 1, 2, 2
    c.pipeline.num_microbatches = 2
    c.model.num_layers, c.model.width, c.model.mlp_width = 4, 16, 32
    c.model.num_heads = c.model.num_kv_heads = 2
    c.data.kind, c.data.path, c.data.seq_len = "text", {text!r}, 16
    c.data.log_ids = True
    c.train.global_batch, c.train.num_steps = 8, 6
    c.optimizer.warmup_steps = 0
    c.sample.num_bytes = 0
    {more}
    return c
"""

_SET_BY_STARTERS = ("JAX_", "SLURM_", "OMPI_", "NPROC", "JOB_COMPLETION_INDEX")


def write_config(folder, more=""):
    """The path of a config file; `more` is a line of its get_config."""
    text = pathlib.Path(folder, "text.txt")
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(100)))
    path = pathlib.Path(folder, "tiny.py")
    path.write_text(CONFIG.format(text=str(text), more=more))
    return str(path)


def free_port(first=0, last=0):
    """A free port, of a range where one is given."""
    for port in range(first, last + 1):  # 0: any
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return listener.getsockname()[1]
    raise OSError("no free port")


class Started:
    """Processes that write to files and never outlive the test."""

    def __init__(self, commands, folder, environs=None):
        base = {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_STARTERS)}
        base["PYTHONPATH"] = str(ROOT)  # of this checkout, also for a program that is not started by -m
        self._folder, self.processes = pathlib.Path(folder), []
        self._folder.mkdir(exist_ok=True)
        for index, command in enumerate(commands):
            with open(self._folder / f"out{index}", "wb") as out, open(self._folder / f"err{index}", "wb") as err:
                env = {**base, **(environs[index] if environs else {})}
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *command], cwd=ROOT, stdout=out, stderr=err, env=env, start_new_session=True
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # the group: also what it has started itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def out(self, index=0):
        """What a process printed."""
        return (self._folder / f"out{index}").read_text()

    def err(self, index=0):
        """What a process said on standard error."""
        return (self._folder / f"err{index}").read_text()

    def everything(self):
        """All of it, for a message."""
        return "\n".join(f"[{i}] {p.poll()}\n{self.out(i)}\n{self.err(i)}" for i, p in enumerate(self.processes))

    def wait(self, limit, which=None):
        """The exit statuses of these processes (default all); fails where one has not ended within `limit` seconds."""
        end = time.monotonic() + limit
        chosen = self.processes if which is None else [self.processes[index] for index in which]
        for process in chosen:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not ended after {limit} s\n{self.everything()}") from None
        return [process.returncode for process in chosen]

    def wait_for(self, done, limit=300):
        """Waits until done() is true while all processes run."""
        end = time.monotonic() + limit
        while not done():
            assert all(process.poll() is None for process in self.processes), self.everything()
            assert time.monotonic() < end, f"not there after {limit} s\n{self.everything()}"
            time.sleep(0.05)


def peers(count, *command):
    """Commands of processes that find each other by flags; one alone gets none."""
    more = [f"--coordinator=127.0.0.1:{free_port()}", f"--num_processes={count}"]
    return [[*command, *more, f"--process_id={index}"] for index in range(count)] if count > 1 else [list(command)]


def num_lines(workdir):
    """Lines that the metrics have so far."""
    path = pathlib.Path(workdir, "metrics.jsonl")
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(workdir, name="metrics.jsonl"):
    """The lines of a log."""
    return [json.loads(line) for line in pathlib.Path(workdir, name).read_text().splitlines()]
