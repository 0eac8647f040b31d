"""Metrics: one set of figures in every file, of every step once, timed after the work is done, and traces of steps."""

import json
import pathlib
import sys
import time

import jax
import pytest
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from experiments import train
from experiments._app import loop, outputs
from experiments._app.profile import Profile
from jaxpar.accounting import flops
from jaxpar.config import Config, TrainConfig
from jaxpar.metrics import read_lines

CONFIG = """
from jaxpar.config import base_config

def get_config():
    c = base_config()
    c.emulate_devices = 8
    c.mesh.data, c.mesh.pipe, c.mesh.tensor = 4, 2, 1
    c.pipeline.num_microbatches = 2
    c.model.num_layers, c.model.width, c.model.mlp_width = 2, 16, 32
    c.model.num_heads = c.model.num_kv_heads = 2
    c.data.kind, c.data.path, c.data.seq_len = "text", {text!r}, 16
    c.data.log_ids = True
    c.train.global_batch, c.train.num_steps, c.train.eval_every = 8, 5, 2
    c.sample.num_bytes = 0
    return c
"""
SLOW_S = 0.3


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    (folder / "text.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(100)))
    (folder / "tiny.py").write_text(CONFIG.format(text=str(folder / "text.txt")))
    return str(folder / "tiny.py")


def run(config_file, workdir, *flags):
    return train.main(["train", f"--config={config_file}", f"--workdir={workdir}", *flags])


class Late:
    """A number that is ready only after a while, as a result of a device that is still at work."""

    def __init__(self, value):
        self._value, self._ready = value, time.perf_counter() + SLOW_S

    def block_until_ready(self):
        time.sleep(max(0.0, self._ready - time.perf_counter()))
        return self

    def __array__(self, dtype=None, copy=None):
        self.block_until_ready()
        return jax.device_get(self._value)


@pytest.fixture(scope="module")
def two_starts(config_file, tmp_path_factory):
    """(workdir, metrics after the first start) of a run that ends and goes on.

    The first start is traced, and what it wrote of step 3 is not in its checkpoint; the second has another mesh and a
    device of a known kind that takes its time.
    """
    workdir = tmp_path_factory.mktemp("run")
    saves = ("--config.checkpoint.every=2", "--config.train.resume=auto")
    assert run(config_file, workdir, *saves, "--config.train.stop_after=2", "--config.train.profile_steps=2:3") == 0
    stale = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1]) | {"step": 3, "loss": 99.0}
    with open(workdir / "metrics.jsonl", "a") as file:  # as of a start that was killed after it
        file.write(json.dumps(stale) + '\n{"step": 4, "lo')
    with SummaryWriter(str(workdir / "tensorboard")) as writer:
        writer.add_scalar("loss", 99.0, 3)
    first = read_lines(workdir / "metrics.jsonl")
    real = loop.train

    def on_a_slow_device(made, compiled, *rest):
        def step(*args):
            state, metrics = compiled(*args)
            return state, {**metrics, "loss": Late(metrics["loss"])}

        return real(made, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train", on_a_slow_device)
        patch.setitem(flops._PEAK, "cpu", (1e-3, 1))
        assert run(config_file, workdir, *saves, "--config.mesh.data=2", "--config.mesh.tensor=2") == 0
    return workdir, first


def scalars(workdir):
    """[(step, name, value)] of all event files, in the order of their names, those purged left out."""
    found = []
    for path in sorted(pathlib.Path(workdir, "tensorboard").iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):  # a record: length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(data[place : place + 8], "little")
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            if event.session_log.status == event.session_log.START:
                found = [entry for entry in found if entry[0] < event.step]
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def test_event_files_hold_the_same_numbers(two_starts):
    workdir, _ = two_starts
    expected = {
        (line["step"], name): value
        for line in read_lines(workdir / "metrics.jsonl")
        for name, value in line.items()
        if name != "step" and value is not None
    }
    found = scalars(workdir)
    assert len(found) == len({entry[:2] for entry in found}), "no step twice"
    assert {(step, name) for step, name, _ in found} == set(expected)
    for step, name, value in found:
        assert value == pytest.approx(expected[step, name], rel=1e-6), (step, name)


def test_a_run_that_goes_on_has_every_step_once(two_starts):
    workdir, first = two_starts
    found = read_lines(workdir / "metrics.jsonl")
    assert [line["step"] for line in first] == [1, 2, 3] and first[-1]["loss"] == 99.0
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5] and found[:2] == first[:2] and found[2]["loss"] < 99
    assert [line["step"] for line in read_lines(workdir / "samples.jsonl")] == [1, 2, 3, 4, 5]


def test_step_time_is_measured_after_the_work_is_done(two_starts):
    workdir, _ = two_starts
    found = read_lines(workdir / "metrics.jsonl")
    assert all(line["step_time_s"] >= SLOW_S for line in found[2:])
    assert json.loads((workdir / "report.json").read_text())["step_time_s"] >= SLOW_S
    assert all(line["tokens_per_s"] <= 8 * 16 / SLOW_S for line in found[2:])


def test_utilization_is_null_on_an_unknown_device_and_right_on_a_known_one(two_starts):
    workdir, _ = two_starts
    found = read_lines(workdir / "metrics.jsonl")
    assert [line["mfu"] for line in found[:2]] == [None, None]
    layer = 4 * 16 * 16 + 2 * 16 * 16 + 3 * 16 * 32  # projections, attention, MLP: multiply-adds of a token
    flops_per_token = 3 * 2 * (2 * layer + 16 * 256)
    for line in found[2:]:
        assert line["mfu"] == pytest.approx(flops_per_token * line["tokens_per_s"] / (8 * 1e9))
    assert json.loads((workdir / "report.json").read_text())["flops_per_token"] == flops_per_token


def test_a_range_of_steps_is_traced(two_starts):
    workdir, _ = two_starts
    traces = list(pathlib.Path(workdir, "profile").rglob("*.xplane.pb"))
    assert len(traces) == 1 and traces[0].stat().st_size > 1000


def test_a_trace_covers_its_range_alone(monkeypatch):
    said = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: said.append(("start", folder)))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: said.append("stop"))
    for first, last, expected in [(3, 5, {3: ("start", "run/profile"), 5: "stop"}), (0, 0, {}), (8, 9, {})]:
        with Profile("run", first, last) as profile:
            for step in range(1, 7):
                said.clear()
                profile.before(step)
                assert said == ([expected[step]] if step in expected else [])
    said.clear()
    with pytest.raises(RuntimeError), Profile("run", 2, 9) as profile:
        profile.before(2)
        raise RuntimeError
    assert said == [("start", "run/profile"), "stop"], "a run that fails in the middle still writes it"


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("train.profile_steps=5", "train.profile_steps=5 is not a range a:b"),
        ("train.profile_steps=5:5", "train.profile_steps=5:5 is not a range a:b"),
        ("train.profile_steps=0:2", "train.profile_steps=0:2 is not a range a:b"),
        ("train.profile_steps=a:b", "train.profile_steps=a:b is not a range a:b"),
        ("train.wandb=project", "train.wandb=project cannot be written: the package wandb is not installed"),
    ],
)
def test_what_cannot_be_written_is_refused(config_file, tmp_path, capsys, monkeypatch, setting, part):
    find = outputs.importlib.util.find_spec
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    assert run(config_file, tmp_path / "run", f"--config.{setting}") == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == "" and not (tmp_path / "run").exists()


def test_wandb_gets_the_metrics_too(monkeypatch, tmp_path):
    class Fake:
        def __init__(self):
            self.said = []

        def init(self, **settings):
            self.said.append(settings["project"])
            return self

        def log(self, numbers, step):
            self.said.append((step, numbers))

        def finish(self):
            self.said.append("finish")

    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    settings = Config(train=TrainConfig(tensorboard=False, wandb="project"))
    with outputs.Outputs(str(tmp_path), settings) as files:
        files.metrics(1, loss=2.0, mfu=None)
    with outputs.Outputs(str(tmp_path), settings, first_process=False) as files:
        files.metrics(1, loss=2.0)
    assert fake.said == ["project", (1, {"loss": 2.0}), "finish"], "once, by the first process"
