"""The training program from the command line: its files, its refusals, its end on Ctrl-C."""

import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import jax
import pytest

from experiments import train

FILES = {"config.json", "metrics.jsonl", "report.json", "loss.png", "schedule.svg", "tensorboard"}
ROOT = pathlib.Path(__file__).parents[2]

CONFIG = """
from jaxpar.config import base_config

def get_config():
    c = base_config()
    c.emulate_devices = 8
    c.mesh.data, c.mesh.pipe, c.mesh.tensor = 2, 2, 2
    c.pipeline.num_microbatches = 2
    c.model.num_layers, c.model.width, c.model.mlp_width = 3, 16, 32
    c.model.num_heads = c.model.num_kv_heads = 2
    c.data.kind, c.data.path, c.data.seq_len = "text", {text!r}, 16
    c.train.global_batch, c.train.num_steps, c.train.eval_every = 8, 4, 2
    c.optimizer.warmup_steps = 0
    c.sample.num_bytes = 8
    return c
"""


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(400)))
    (folder / "tiny.py").write_text(CONFIG.format(text=str(text)))
    return str(folder / "tiny.py")


@pytest.fixture(scope="module")
def finished(config_file, tmp_path_factory):
    """(workdir, what was logged) of a whole run in this process."""
    workdir, messages = tmp_path_factory.mktemp("run"), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("jax").addHandler(handler)
    with jax.log_compiles():
        status = train.main(["train", f"--config={config_file}", f"--workdir={workdir}"])
    logging.getLogger("jax").removeHandler(handler)
    assert status == 0
    return workdir, messages


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def report(workdir):
    return json.loads((workdir / "report.json").read_text())


def test_the_files_are_all_there_and_whole(finished):
    workdir, _ = finished
    assert set(os.listdir(workdir)) == FILES
    assert json.loads((workdir / "config.json").read_text())["mesh"] == {"data": 2, "pipe": 2, "tensor": 2}
    assert (workdir / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "simulated" in "".join(xml.etree.ElementTree.parse(workdir / "schedule.svg").getroot().itertext())


def test_metrics_have_a_line_a_step(finished):
    found = lines(finished[0])
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    for line in found:
        assert {"loss", "grad_norm", "learning_rate", "tokens", "step_time_s", "tokens_per_s", "mfu"} <= set(line)
        assert line["tokens"] == line["step"] * 8 * 16
        assert line["tokens_per_s"] == pytest.approx(8 * 16 / line["step_time_s"])
        assert line["mfu"] is None, "the peak of an emulated device is not known"
    assert ["held_out_loss" in line for line in found] == [False, True, False, True]
    assert found[-1]["loss"] < found[0]["loss"]


def test_the_report_says_what_the_run_was_and_reached(finished):
    found, steps = report(finished[0]), lines(finished[0])
    assert found["schedule"] == "1f1b" and found["ticks"] > 0 and found["num_steps"] == 4
    assert found["bubble"] == pytest.approx(1 / 4) and not found["interrupted"]  # 2 ranks, 2 microbatches: 6 of 8
    assert found["final_loss"] == steps[-1]["loss"] and found["held_out_loss"] == steps[-1]["held_out_loss"]
    assert 0 < found["order2_bits_per_byte"] < 8 and found["compile_s"] > 0
    assert found["peak_slots"]["act"] >= 1 and found["message_patterns"]["act+1"] >= 1
    moments = 2 * 4 * found["num_params"] / 8  # two of AdamW, float32, over all devices
    assert found["temp_bytes"] > 0 and found["optimizer_bytes"] == pytest.approx(moments, rel=0.05)
    by_rank = found["bytes_by_rank"]
    assert by_rank["params"][1] < by_rank["params"][0] == found["param_bytes"], "one layer and two"
    assert by_rank["optimizer"][1] < by_rank["optimizer"][0] == found["optimizer_bytes"]
    assert found["collectives"]["tensor"]["all-reduce"]["loop"] >= 4
    assert all(kind["loop"] == 0 for axes, kinds in found["collectives"].items() if "data" in axes
               for kind in kinds.values()), "gradients are reduced over data once a step"  # fmt: skip
    assert len(set(found["layer_bytes_by_rank"])) == 2, "3 layers on 2 ranks"
    median = sorted(line["step_time_s"] for line in steps)
    assert found["step_time_s"] == pytest.approx((median[1] + median[2]) / 2)


def test_the_step_is_compiled_once(finished):
    compiled = [message for message in finished[1] if re.match(r"Compiling (jit\()?step\b", message)]
    assert len(compiled) == 1, compiled


def curve(config_file, workdir, *args):
    """(loss, gradient norm) of two steps of a model with 4 layers."""
    short = ["--config.train.num_steps=2", "--config.sample.num_bytes=0", "--config.model.num_layers=4"]
    assert train.main(["train", f"--config={config_file}", f"--workdir={workdir}", *short, *args]) == 0
    return [(line["loss"], line["grad_norm"]) for line in lines(workdir)]


def test_the_loss_curve_is_the_same_on_any_mesh(config_file, tmp_path):
    first = curve(config_file, tmp_path / "0")
    pipe = ["--config.mesh.data=1", "--config.mesh.pipe=4"]
    split = ["--config.mesh.data=4", "--config.mesh.tensor=1", "--config.pipeline.vocabulary=pipe"]
    for case in (pipe, [*split, "--config.pipeline.schedule=gpipe"]):
        assert curve(config_file, tmp_path / case[0], *case) == [pytest.approx(pair, rel=1e-5) for pair in first]


def test_a_sample_that_fails_does_not_lose_the_report(config_file, tmp_path, monkeypatch):
    from experiments._app import trainer

    def fail(*_):
        raise RuntimeError("no sample")

    monkeypatch.setattr(trainer, "generate", fail)
    with pytest.raises(RuntimeError, match="no sample"):
        curve(config_file, tmp_path, "--config.sample.num_bytes=8")
    assert set(os.listdir(tmp_path)) == FILES
    assert report(tmp_path)["num_steps"] == 2 and report(tmp_path)["sample"] is None


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--config.model.widht=3"], "Did you mean model.width?"),
        (["--config.mesh.pipe=3"], "8 device(s). Use data x pipe x tensor = "),
        (["--config.model.num_heads=4", "--config.model.num_kv_heads=1"], "model.num_kv_heads=1"),
        (["--config.train.global_batch=9"], "train.global_batch=9"),
        (["--config.pipeline.schedule=1f2b"], "Did you mean 1f1b?"),
        (["--config.sample.prompt=\udcff"], "sample.prompt='\\udcff' is not UTF-8 text"),
        (["--config.data.path=/nowhere/text"], "data.path=/nowhere/text does not exist"),
        (["--config.data.path=/dev/null"], "data.path=/dev/null is empty"),
        (["--config.data.seq_len=100000"], "data.seq_len=100000 is too long"),
        (["--config.optimizer.clip_norm=-1"], "optimizer.clip_norm=-1.0 is negative"),
        (["--config.emulate_devices=4", "--config.mesh.data=1"], "emulate_devices=4 comes too late"),
        (["--config=nowhere.py"], "config=nowhere.py is not a file"),
    ],
)
def test_bad_input_ends_with_one_message_and_status_2(config_file, tmp_path, capsys, flags, part):
    (tmp_path / "report.json").write_text("old")
    with jax.log_compiles(False):
        assert train.main(["train", f"--config={config_file}", f"--workdir={tmp_path}", *flags]) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == ""
    assert os.listdir(tmp_path) == ["report.json"] and (tmp_path / "report.json").read_text() == "old"


def start(config_file, workdir, *flags):
    command = [sys.executable, "-m", "experiments.train", f"--config={config_file}", f"--workdir={workdir}", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_bad_input_as_a_program(config_file, tmp_path):
    process = start(config_file, tmp_path, "--config.modle.width=3")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == "modle.width is not a setting: nothing would read it. Did you mean model.width?\n"


def test_ctrl_c_ends_in_good_order(config_file, tmp_path):
    process = start(config_file, tmp_path, "--config.train.num_steps=1000000", "--config.train.eval_every=0")
    try:
        metrics = tmp_path / "metrics.jsonl"
        limit = time.monotonic() + 180
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3) and process.poll() is None:
            assert time.monotonic() < limit, "no steps"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert set(os.listdir(tmp_path)) == FILES | {"checkpoints"}
    steps = lines(tmp_path)
    found = report(tmp_path)
    assert found["interrupted"] and found["num_steps"] == len(steps) == steps[-1]["step"]
    assert found["held_out_loss"] is None and found["final_loss"] == steps[-1]["loss"]
    assert f"saved     step {len(steps)}" in out and "interrupted after" in out
    assert "\x1b" not in out and "Traceback" not in err
