"""The bench: its baseline is right, it measures by turns, and its programs write what they promise."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments import bench
from experiments._bench import measure, sizes, wall, wall_child
from experiments._bench.autodiff import gpipe_by_autodiff
from jaxpar.errors import SettingError
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.schedule import Costs, build, names
from tests.reference import (
    assert_grads_close,
    assert_loss_close,
    random_batch,
    random_params,
    reference_value_and_grad,
)

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 900  # a busy machine compiles slowly
KEYS = {"name", "schedule", "ranks", "num_microbatches", "cpu_s", "wall_s", "temp_bytes", "program_bytes"}


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "tied", "remat"),
    [(2, 1, True, True), (4, 6, True, False), (4, 3, False, True)],
)
def test_the_baseline_equals_the_reference(num_ranks, num_microbatches, tied, remat):
    config = DecoderConfig(
        num_layers=4, width=16, num_heads=2, num_kv_heads=2, mlp_width=24, vocab_size=37, tie_embeddings=tied
    )
    model = decoder(config, vocab_multiple=num_ranks)
    params, batch = random_params(model), random_batch(config.vocab_size, 2 * num_microbatches, 6)
    mesh = make_mesh(1, num_ranks, 1, jax.devices()[:num_ranks])
    loss, grads = jax.jit(gpipe_by_autodiff(model, mesh, num_microbatches, remat))(params, batch)
    (expected, _), expected_grads = reference_value_and_grad(model, params, batch)
    assert_loss_close(loss, expected)
    assert_grads_close(jax.device_get(grads), expected_grads)


def test_functions_take_turns_and_the_warm_up_does_not_count():
    calls, now = [], [0.0]
    seconds = {"a": iter([100, 3, 1, 2]), "b": iter([100, 6, 50, 4])}

    def function(name):
        calls.append(name)
        now[0] += next(seconds[name])

    found = measure.take_turns(
        [lambda: function("a"), lambda: function("b")], 3, cpu_clock=lambda: 2 * now[0], wall_clock=lambda: now[0]
    )
    assert calls == ["a", "b"] * 4
    assert found == [{"cpu_s": 4, "wall_s": 2}, {"cpu_s": 12, "wall_s": 6}]


class Fake:
    """A program that computes this loss."""

    def __init__(self, name, loss):
        self.row, self.loss = {"name": name, "temp_bytes": 10}, loss

    def run(self):
        return self.loss


def test_programs_that_compute_unlike_losses_are_not_compared():
    assert len(measure.measure([Fake("single", 2.0), Fake("jaxpar", 2.00001)], 5)) == 2
    for loss in (2.01, float("nan")):
        with pytest.raises(RuntimeError, match="jaxpar"):
            measure.measure([Fake("single", 2.0), Fake("jaxpar", loss)], 5)


def test_a_plan_of_one_kind_of_action():
    plan = build("1f1b", 1, 3).with_vocabulary("ends").lower(recompute=True)
    for kinds in ("", "F", "IW", wall_child.KINDS):
        table = wall_child.only(plan, kinds)
        runs = {kind: int(table[..., plan.columns[f"{kind}.run"]].sum()) for kind in "EFHRIWG"}
        assert runs == {kind: 3 if kind in kinds else 0 for kind in "EFHRIWG"}
        others = [column for name, column in plan.columns.items() if not name.endswith(".run")]
        np.testing.assert_array_equal(table[..., others], plan.table[..., others])


def test_the_simulated_wall_clock_is_that_of_lockstep_ticks():
    size = sizes.two_ranks(sizes.QUICK)
    assert (size.num_ranks, size.num_layers) == (2, sizes.QUICK.num_layers)
    costs = {"E": 0.0, "F": 1.0, "H": 0.0, "I": 1.0, "W": 1.0, "G": 0.0}
    num_microbatches = size.num_microbatches[0]
    assert wall.simulated(size, "gpipe", costs).makespan == 3 * num_microbatches + 2  # one F and one I of filling
    with_head = wall.simulated(size, "gpipe", {**costs, "H": 2.0})
    assert with_head.makespan > 3 * num_microbatches + 2
    assert with_head.mode == "lockstep" and with_head.send == "after_I"


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--turns=4", "turns=4 is too few"),
        ("--turns=many", "turns=many"),
        ("--layers=rolled", "layers=rolled is unknown"),
        ("--num_microbatches=8,none", "num_microbatches=none is not a positive integer"),
        ("--num_microbatches=0", "num_microbatches=0"),
        ("--num_chunks=3", "num_chunks=3 does not divide"),
        ("--num_chunks=2", "without --costs"),
        ("--remat=some", "pipeline.remat='some' is unknown"),
        ("--quik", "quik"),
        ("quick", "quick is not a flag"),
        ("--workdir=/proc/nowhere", "workdir=/proc/nowhere cannot be written"),
    ],
)
def test_bad_flags_end_with_one_message_and_status_2(flag, part, capsys):
    assert bench.main(["bench", flag]) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == ""


def test_the_wall_clock_needs_a_core_a_rank(monkeypatch):
    monkeypatch.setattr(wall, "usable_cores", lambda: [0])
    with pytest.raises(SettingError, match="each of the 2 ranks needs a core"):
        wall.compare(sizes.two_ranks(sizes.QUICK), names(), "unroll", 5, None)


def test_flags_that_exclude_each_other_are_refused(capsys):
    assert bench.main(["bench", "--costs", "--wall"]) == 2
    assert capsys.readouterr().err == (
        "costs and wall together: each is a run of its own. Leave out --costs or --wall.\n"
    )


def test_what_only_the_measuring_process_can_tell_ends_with_one_message_and_status_2(tmp_path, capsys):
    assert bench.main(["bench", "--quick", "--costs", "--remat=names:zzz", f"--workdir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("pipeline.remat=names:zzz asks for zzz, which ") and err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def run(*flags):
    """The bench as a program of its own (it chooses its devices); its output."""
    command = [sys.executable, "-m", "experiments.bench", "--quick", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_comparison_as_a_program(tmp_path):
    out = run(f"--workdir={tmp_path}", "--num_microbatches=3")
    assert os.listdir(tmp_path) == ["bench.json"]
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    found = [(row["name"], row["schedule"], row["vocabulary"]) for row in rows]
    assert found[:4] == [
        ("single", None, None),
        ("single_accumulated", None, None),
        ("autodiff", "gpipe", "pipe"),
        ("autodiff_remat", "gpipe", "pipe"),
    ]
    ours = {(schedule, "ends") for schedule in names()} | {("1f1b", "pipe")}
    assert sorted(found[4:]) == sorted(("jaxpar", *pair) for pair in ours)
    for row in rows:
        assert set(row) >= KEYS
        assert row["num_microbatches"] == 3 and row["ranks"] == (1 if "single" in row["name"] else 2)
        assert row["cpu_s"] > 0 and row["wall_s"] > 0 and row["temp_bytes"] > 0 and row["program_bytes"] > 0
        assert row["cpu_vs_single"] == pytest.approx(row["cpu_s"] / rows[0]["cpu_s"])
        assert row["temp_vs_autodiff"] == pytest.approx(row["temp_bytes"] / rows[2]["temp_bytes"])
        assert row["loss"] == pytest.approx(rows[0]["loss"], rel=1e-5)
    assert all(schedule in out for schedule in names()) and "\x1b" not in out


def test_measured_costs_are_what_the_search_takes(tmp_path):
    run("--costs", "--num_chunks=2", "--remat=full", f"--workdir={tmp_path}")
    assert os.listdir(tmp_path) == ["costs.json"]
    costs = Costs.from_json(tmp_path / "costs.json")  # tiny actions may come out as nothing
    assert costs.hop == 0 and min(costs.F, costs.I, costs.W, costs.R, costs.H, costs.E, costs.G) >= 0


@pytest.mark.slow
@pytest.mark.skipif(len(wall.usable_cores()) < 2, reason="a core a rank")
def test_the_wall_clock_as_a_program(tmp_path):
    out = run("--wall", f"--workdir={tmp_path}", "--out=wall.json")
    found = json.loads((tmp_path / "wall.json").read_text())
    assert [row["schedule"] for row in found["rows"]] == [*names(), "1f1b"]
    assert [row["threads"] for row in found["rows"]][-1] == 2 < found["rows"][0]["threads"]
    assert set(found["actions"]) == {"1", "2"}  # layers of a stage, with and without two chunks
    for row in found["rows"]:
        assert set(row) >= KEYS and row["wall_s"] > 0 and row["simulated_s"] >= 0
    for times in found["actions"].values():
        assert set(times["action_s"]) == set("EFHRIWG") and times["step_s"] > 0
    assert "measured / simulated" in " ".join(out.split())
