"""A run that ends and goes on is the run that never ended: same samples, same bits, on another layout to rounding."""

import json
import logging
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments import train
from jaxpar.checkpoint import Store, saved_steps
from jaxpar.checkpoint.export import named_weights

ROOT = pathlib.Path(__file__).parents[2]

CONFIG = """
from jaxpar.config import base_config

def get_config():
    c = base_config()
    c.emulate_devices = 8
    c.mesh.data, c.mesh.pipe, c.mesh.tensor = 2, 2, 2
    c.pipeline.schedule, c.pipeline.num_chunks, c.pipeline.num_microbatches = "interleaved_1f1b", 2, 2
    c.model.num_layers, c.model.width, c.model.mlp_width = 4, 16, 32
    c.model.num_heads = c.model.num_kv_heads = 8
    c.model.dropout = 0.1
    c.data.kind, c.data.path, c.data.seq_len = "text", {text!r}, 16
    c.data.log_ids = True
    c.train.global_batch, c.train.num_steps = 8, 10
    c.optimizer.warmup_steps = 7
    c.checkpoint.every = 5
    c.sample.num_bytes = 0
    return c
"""

ONE = ["--config.pipeline.schedule=1f1b", "--config.pipeline.num_chunks=1"]
PIPE_4 = [*ONE, "--config.mesh.data=2", "--config.mesh.pipe=4", "--config.mesh.tensor=1"]
TENSOR_8 = [*ONE, "--config.mesh.data=1", "--config.mesh.pipe=1", "--config.mesh.tensor=8"]
UNROLLED = [*PIPE_4, "--config.pipeline.layers=unroll", "--config.pipeline.vocabulary=pipe"]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(
            "".join(f"{n} and {number} is {n + number}.\n" for n in range(number % 5 + 1))
        )
    (folder / "tiny.py").write_text(CONFIG.format(text=str(texts)))
    return str(folder / "tiny.py")


def run(config_file, workdir, *flags):
    assert train.main(["train", f"--config={config_file}", f"--workdir={workdir}", *flags]) == 0


def lines(workdir, name="metrics.jsonl"):
    """The lines of a log, without what depends on the clock."""
    found = [json.loads(line) for line in (pathlib.Path(workdir) / name).read_text().splitlines()]
    clock = ("step_time_s", "input_wait_s", "tokens_per_s", "mfu")
    return [{key: value for key, value in line.items() if key not in clock} for line in found]


def weights(workdir):
    store = Store(workdir)
    found = named_weights(store.weights(store.latest()))
    store.close()
    return found


@pytest.fixture(scope="module")
def whole(config_file, tmp_path_factory):
    """A run of ten steps that nothing ended."""
    workdir = tmp_path_factory.mktemp("whole")
    run(config_file, workdir)
    return workdir


@pytest.fixture(scope="module")
def half(config_file, tmp_path_factory):
    """The same, ended after five steps."""
    workdir = tmp_path_factory.mktemp("half")
    run(config_file, workdir, "--config.train.stop_after=5")
    assert saved_steps(workdir) == [5] and len(lines(workdir)) == 5
    return workdir


def copied(workdir, to):
    subprocess.run(["cp", "-r", f"{workdir}/.", str(to)], check=True)
    return to


def test_ten_steps_are_five_and_five_bitwise(config_file, whole, half, tmp_path):
    """With dropout, in the middle of the warm-up and of an epoch, packed rows, an asynchronous save."""
    again = copied(half, tmp_path)
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("jax").addHandler(handler)
    with jax.log_compiles():
        run(config_file, again, "--config.train.resume=auto")
    logging.getLogger("jax").removeHandler(handler)
    compiled = [message for message in messages if re.match(r"Compiling (jit\()?step\b", message)]
    assert len(compiled) == 1, "a restored state runs the program that is there"
    assert lines(again) == lines(whole) and lines(again, "samples.jsonl") == lines(whole, "samples.jsonl")
    report = json.loads((again / "report.json").read_text())
    assert report["step"] == 10 and report["num_steps"] == 5 and report["finished"] and report["saved_step"] == 10
    for name, array in weights(whole).items():
        np.testing.assert_array_equal(weights(again)[name], array)


CUSTOM = """
import optax

def get_optimizer(rate):
    return optax.chain(optax.scale_by_rms(), optax.scale_by_learning_rate(rate))
"""


@pytest.mark.parametrize(
    "name", ["adafactor", *(pytest.param(n, marks=pytest.mark.slow) for n in ("muon", "lion", "sgd", "custom"))]
)
def test_every_optimizer_goes_on_bitwise(config_file, tmp_path, name):
    """Unrolled stages of unlike depth, bfloat16 parameters with master weights, a vocabulary over the ranks."""
    file = tmp_path / "config.py"
    file.write_text(pathlib.Path(config_file).read_text() + (CUSTOM if name == "custom" else ""))
    flags = [
        *UNROLLED,
        f"--config.optimizer.name={name}",
        "--config.model.num_layers=5",
        "--config.model.vocab_size=257",
    ]
    flags += ["--config.model.param_dtype=bfloat16", "--config.optimizer.master_weights=True"]
    flags += ["--config.train.num_steps=4", "--config.checkpoint.every=4", "--config.optimizer.peak_rate=0.01"]
    run(file, tmp_path / "whole", *flags)
    run(file, tmp_path / "parts", *flags, "--config.train.stop_after=2")
    run(file, tmp_path / "parts", *flags, "--config.train.resume=auto")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    for array, other in zip(weights(tmp_path / "whole").values(), weights(tmp_path / "parts").values(), strict=True):
        np.testing.assert_array_equal(array.view(np.uint16), other.view(np.uint16))


@pytest.mark.slow
def test_without_dropout_the_curve_would_be_another(config_file, whole, tmp_path):
    run(config_file, tmp_path, "--config.model.dropout=0.0", "--config.train.num_steps=1")
    assert lines(tmp_path)[0]["loss"] != lines(whole)[0]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [PIPE_4, TENSOR_8, UNROLLED])
def test_it_goes_on_in_another_layout(config_file, whole, half, tmp_path, layout):
    again = copied(half, tmp_path)
    run(config_file, again, "--config.train.resume=auto", *layout)
    _same_to_rounding(again, whole)


def _same_to_rounding(again, whole):
    assert lines(again, "samples.jsonl") == lines(whole, "samples.jsonl")
    for found, wanted in zip(lines(again), lines(whole), strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
        assert found["tokens"] == wanted["tokens"] and found["learning_rate"] == wanted["learning_rate"]


def test_through_every_layout_one_after_the_other_down_to_one_device(config_file, whole, half, tmp_path):
    """data 2 x pipe 2 x tensor 2, interleaved -> pipe 4 x data 2 -> tensor 8 -> one device."""
    again = copied(half, tmp_path)
    for layout, steps in ((PIPE_4, 2), (TENSOR_8, 1)):
        run(config_file, again, "--config.train.resume=auto", f"--config.train.stop_after={steps}", *layout)
    one = [*ONE, "--config.emulate_devices=1", "--config.train.resume=auto"]
    one += [f"--config.mesh.{axis}=1" for axis in ("data", "pipe", "tensor")]
    process = start(config_file, again, *one)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "goes on   from step 8" in out
    _same_to_rounding(again, whole)


def test_it_goes_on_with_another_clip(config_file, half, tmp_path):
    again = copied(half, tmp_path)
    run(
        config_file, again, "--config.train.resume=auto", "--config.optimizer.clip_norm=0", "--config.train.num_steps=6"
    )
    assert len(lines(again)) == 6


def test_another_batch_size_neither_repeats_nor_skips(config_file, half, tmp_path):
    again = copied(half, tmp_path)
    run(config_file, again, "--config.train.resume=auto", "--config.train.global_batch=16")
    seen = [i for line in lines(again, "samples.jsonl") for i in line["ids"]]
    assert len(seen) == 5 * 8 + 5 * 16
    size = len(set(seen))  # every row of the data was seen, so this is an epoch
    for first in range(0, len(seen) - size + 1, size):
        assert len(set(seen[first : first + size])) == size, "an epoch visits each row once"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ([], "holds checkpoints up to step 5: a new run would mix with them. Set train.resume=auto"),
        (["--config.train.resume=auto", "--config.seed=1"], "seed=1 is not the checkpoint's"),
        (["--config.train.resume=auto", "--config.model.mlp_width=48"], "model.mlp_width=48 is not the checkpoint's"),
        (["--config.train.resume=auto", "--config.optimizer.name=lion"], "optimizer.name=lion is not the checkpoint's"),
        (
            ["--config.train.resume=auto", "--config.data.held_out_fraction=0.5"],
            "its position would mean other samples",
        ),
        (["--config.train.resume=auto", "--config.train.num_steps=4"], "train.num_steps=4 is less than the steps"),
        (["--config.train.resume=maybe"], "train.resume=maybe is not known"),
    ],
)
def test_what_would_be_another_run_is_refused(config_file, half, tmp_path, capsys, flags, part):
    again = copied(half, tmp_path)
    before = {path: path.read_bytes() for path in again.rglob("*") if path.is_file()}
    assert train.main(["train", f"--config={config_file}", f"--workdir={again}", *flags]) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == ""
    assert before == {path: path.read_bytes() for path in again.rglob("*") if path.is_file()}


def start(config_file, workdir, *flags, limit=""):
    command = [sys.executable, "-m", "experiments.train", f"--config={config_file}", f"--workdir={workdir}", *flags]
    command = ["bash", "-c", f'{limit}exec "$@"', "bash", *command]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(workdir, count, process):
    limit = time.monotonic() + 240
    metrics = pathlib.Path(workdir) / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= count) and process.poll() is None:
        assert time.monotonic() < limit, "no steps"
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]


SHORT = ["--config.emulate_devices=2", "--config.mesh.tensor=1", "--config.mesh.data=1", *ONE]


def test_a_signal_saves_and_the_run_goes_on(config_file, tmp_path):
    flags = [*SHORT, "--config.train.num_steps=100000", "--config.checkpoint.every=0"]
    process = start(config_file, tmp_path, *flags)
    try:
        wait_for_lines(tmp_path, 3, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    (step,) = saved_steps(tmp_path)
    assert f"saved     step {step}" in out and lines(tmp_path)[-1]["step"] == step


def test_a_second_signal_ends_it_at_once(config_file, tmp_path):
    flags = [*SHORT, "--config.train.num_steps=100000", "--config.model.width=512", "--config.data.seq_len=128"]
    process = start(config_file, tmp_path, *flags)
    try:
        wait_for_lines(tmp_path, 1, process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (train.INTERRUPTED, 0)  # 0: it was done saving before the second one came


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_starts_from_a_complete_step(config_file, tmp_path, kills):
    """SIGKILL around saves, again and again: in the end the curve and the samples are those of a run without."""
    steps = 3 * kills + 4
    flags = [*SHORT, f"--config.train.num_steps={steps}", "--config.checkpoint.every=1", "--config.train.resume=auto"]
    flags += ["--config.model.num_layers=2", "--config.model.num_heads=2", "--config.model.num_kv_heads=2"]
    calm = start(config_file, tmp_path / "calm", *flags)
    assert calm.wait(timeout=900) == 0
    draw, done, killed = random.Random(0), 0, 0
    while True:
        process = start(config_file, tmp_path / "killed", *flags)
        if killed < kills:
            wait_for_lines(tmp_path / "killed", min(done + 1, steps), process)
            time.sleep(draw.uniform(0, 0.5))
        else:
            assert process.wait(timeout=300) == 0, process.communicate()[1]
            break
        process.kill()
        process.communicate()
        killed += 1
        saved = saved_steps(tmp_path / "killed")
        done = min(saved[-1] if saved else 0, steps - 1)
    assert lines(tmp_path / "killed") == lines(tmp_path / "calm")
    assert lines(tmp_path / "killed", "samples.jsonl") == lines(tmp_path / "calm", "samples.jsonl")


def test_steps_without_a_finite_gradient_end_the_run_and_name_the_good_checkpoint(config_file, tmp_path, capsys):
    """The rate of one step carries the parameters away; from then on every gradient is not finite."""
    flags = ["--config.optimizer.peak_rate=1e30", "--config.optimizer.warmup_steps=0", "--config.optimizer.clip_norm=0"]
    flags += ["--config.checkpoint.every=1", "--config.train.max_skips=3"]
    assert train.main(["train", f"--config={config_file}", f"--workdir={tmp_path}", *flags]) == 1
    err = capsys.readouterr().err
    assert "train.max_skips=3 steps in a row up to step " in err
    assert re.search(r"The last good checkpoint is \S+/checkpoints/\d+\.", err) and err.count("\n") == 1
    assert [line["skipped"] for line in lines(tmp_path)][-3:] == [1, 1, 1]


def test_a_full_disk_ends_the_run_with_the_last_step_named(config_file, tmp_path):
    """Files may grow to 400 kB, which some hundred steps fill. The run neither hangs nor hides it."""
    flags = [*SHORT, "--config.train.num_steps=100000", "--config.checkpoint.every=200", "--config.data.log_ids=False"]
    process = start(config_file, tmp_path, *flags, limit="ulimit -f 400; ")
    try:
        _, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert err.startswith(f"workdir={tmp_path} cannot be written: File too large.") and err.count("\n") == 1
    (named,) = re.findall(r"The last good checkpoint is \S+/checkpoints/(\d+)\.", err)
    assert int(named) == saved_steps(tmp_path)[-1]


def test_what_is_exported_is_what_was_trained(config_file, half, tmp_path, capsys):
    from experiments import export

    again = copied(half, tmp_path)
    env = dict(os.environ)
    command = [sys.executable, "-m", "experiments.export", f"--workdir={again}", "--to=safetensors"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    from safetensors.numpy import load_file

    found = load_file(done.stdout.strip())
    for name, array in weights(again).items():
        np.testing.assert_array_equal(found[name], array)
    for flags, part in (
        ([], "workdir=None names no run"),
        ([f"--workdir={tmp_path}/nowhere"], "holds no checkpoint"),
        ([f"--workdir={again}", "--step=4"], "step=4 is not saved"),
        ([f"--workdir={again}", "--to=gguf"], "to=gguf is not a format"),
    ):
        assert export.main(["export", *flags]) == 2
        assert part in capsys.readouterr().err
