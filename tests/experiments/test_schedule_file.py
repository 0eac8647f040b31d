"""--config.pipeline.schedule=path.csv trains with the file's schedule, or ends with status 2 before it compiles."""

import json
import os
import xml.etree.ElementTree

import numpy as np
import pytest

from experiments import train
from experiments._app.assemble import assemble
from jaxpar.config import base_config, fit, resolve
from jaxpar.schedule import build, from_csv
from tests.schedule.common import DATA

CONFIG = """
from jaxpar.config import base_config

def get_config():
    c = base_config()
    c.emulate_devices = 8
    c.mesh.data, c.mesh.pipe, c.mesh.tensor = 2, 2, 2
    c.model.num_layers, c.model.width, c.model.mlp_width = 4, 16, 32
    c.model.num_heads = c.model.num_kv_heads = 2
    c.data.kind, c.data.path, c.data.seq_len = "text", {text!r}, 16
    c.train.global_batch, c.train.num_steps = 8, 2
    c.optimizer.warmup_steps = 0
    c.sample.num_bytes = 0
    return c
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*flags) -> exit status; the workdir is "out" and the working directory a new folder."""
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(400)))
    (tmp_path / "tiny.py").write_text(CONFIG.format(text=str(text)))
    return lambda *flags: train.main(["train", "--config=tiny.py", "--workdir=out", *flags])


def losses():
    with open("out/metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]


def test_a_file_from_elsewhere_trains_as_any_schedule(run):
    assert run() == 0
    expected = losses()
    # V placement, several actions in a tick, split backwards.
    path = DATA / "ds_DualPipeV_P2_V2_M4.csv"
    assert run(f"--config.pipeline.schedule={path}", "--config.pipeline.num_chunks=2") == 0
    assert losses() == pytest.approx(expected, rel=1e-5)
    with open("out/report.json") as file:
        report = json.load(file)
    assert (report["schedule"], report["ticks"]) == ("ds_DualPipeV_P2_V2_M4", from_csv(path).num_ticks)
    picture = "".join(xml.etree.ElementTree.parse("out/schedule.svg").getroot().itertext())
    assert "ds_DualPipeV_P2_V2_M4" in picture


def test_a_wrong_cell_ends_with_status_2_and_its_drawing(run, capsys):
    build("1f1b", 2, 4).to_csv("mine.csv")
    with open("mine.csv", "r+") as file:
        text = file.read().replace("1F0,1B0", "1B0,1F0")
        file.seek(0)
        file.write(text)
    assert run("--config.pipeline.schedule=mine.csv") == 2
    out, err = capsys.readouterr()
    assert out == "" and not os.path.exists("out")
    first, row, mark = err.splitlines()
    assert first.startswith(
        "pipeline.schedule=mine.csv would deadlock: rank 1 waits at 1B0 (row 2, column 2) for 1F0, which comes later"
    )
    assert row.startswith("rank 1 1B0 1F0 ") and mark == "       ^^^"


@pytest.mark.parametrize("vocabulary", ["ends", "pipe"])
@pytest.mark.parametrize("written", ["ends", "pipe"])
def test_with_one_rank_a_file_is_taken_for_either_vocabulary(written, vocabulary, tmp_path):
    """Its table is the same for both, so that it comes back as "ends"; the run has what it asks for."""
    path, schedule = tmp_path / "mine.csv", build("1f1b", 1, 4)
    schedule.with_vocabulary(written).to_csv(path)
    assert from_csv(path).vocabulary == "ends"
    tree = base_config()
    tree.mesh.data, tree.mesh.pipe, tree.mesh.tensor = 2, 1, 4
    tree.pipeline.schedule, tree.pipeline.num_microbatches, tree.pipeline.vocabulary = str(path), 4, vocabulary
    plan = assemble(fit(resolve(tree), 8)).plan
    expected = schedule.with_vocabulary(vocabulary).lower(recompute=True)
    assert plan.vocabulary == expected.vocabulary == vocabulary
    np.testing.assert_array_equal(plan.table, expected.table)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--config.pipeline.schedule=nowhere.csv"], "pipeline.schedule=nowhere.csv is not a file"),
        (
            ["--config.pipeline.schedule=mine.csv"],
            "pipeline.num_microbatches=4 and pipeline.num_chunks=1 are not the schedule's: mine.csv was written for "
            "mesh.pipe=2, pipeline.num_microbatches=3, pipeline.num_chunks=2. "
            "Set pipeline.num_microbatches=3, pipeline.num_chunks=2.\n",
        ),
        (
            [f"--config.pipeline.{flag}" for flag in ("schedule=mine.csv", "num_microbatches=3", "num_chunks=2")],
            "train.global_batch=8 is not a multiple of mesh.data=2 x pipeline.num_microbatches=3",
        ),
    ],
)
def test_a_file_that_does_not_fit_ends_with_status_2(run, capsys, flags, part):
    build("interleaved_1f1b", 2, 3, 2).to_csv("mine.csv")
    assert run(*flags) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == "" and not os.path.exists("out")
