"""Settings: types, names, ranges and cross-checks; every refusal names the setting and what would do."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest

from experiments._app import flags
from jaxpar import config_checks as checks
from jaxpar.config import Config, base_config, build_schedule, fit, resolve, setting_names
from jaxpar.errors import SettingError
from jaxpar.schedule import Costs, build

CONFIGS = sorted(pathlib.Path(__file__).parents[1].glob("configs/*.py"))


def settings(**changes):
    """The defaults on pipe 4 x tensor 2, with changes named "section__name"."""
    tree = base_config()
    tree.mesh.pipe, tree.mesh.tensor = 4, 2
    for name, value in changes.items():
        section, _, leaf = name.partition("__")
        if leaf:
            tree[section][leaf] = value
        else:
            tree[section] = value
    return tree


def refusal(num_devices=8, **changes):
    with pytest.raises(SettingError) as caught:
        fit(resolve(settings(**changes)), num_devices)
    return str(caught.value)


def test_defaults_resolve_to_frozen_dataclasses():
    config = resolve(base_config())
    assert config == Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    assert fit(resolve(settings()), 8).mesh.pipe == 4


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_resolves_and_fits(path):
    config, workdir, *_ = flags.parse(["train", f"--config={path}"])
    fit(config, config.emulate_devices)
    assert workdir == f"runs/{path.stem}"
    doc = path.read_text()
    assert f"python -m experiments.train --config=configs/{path.name}" in doc, "the docstring gives the command"


def test_one_device_is_the_quickstart_but_for_the_devices():
    quick, one = (
        flags.parse(["train", f"--config={CONFIGS[0].parent}/{n}.py"])[0] for n in ("quickstart", "one_device")
    )
    assert one == dataclasses.replace(quick, mesh=one.mesh, emulate_devices=1, pipeline=one.pipeline)


@pytest.mark.parametrize(
    ("tree", "part"),
    [
        ({"modle": {}}, "modle is not a setting: nothing would read it. Did you mean model?"),
        ({"model": {"widht": 3}}, "model.widht is not a setting: nothing would read it. Did you mean model.width?"),
        ({"width": 3}, "Did you mean model.width?"),
        ({"model": 3}, "model=3 is not a section"),
        ({"model": {"width": 1.5}}, "model.width=1.5 is not a whole number"),
        ({"model": {"width": True}}, "model.width=True is not a whole number"),
        ({"model": {"width": "64"}}, "model.width='64' is not a whole number"),
        ({"model": {"tie_embeddings": 1}}, "model.tie_embeddings=1 is not True or False"),
        ({"optimizer": {"peak_rate": True}}, "optimizer.peak_rate=True is not a number"),
        ({"optimizer": {"peak_rate": "high"}}, "optimizer.peak_rate='high' is not a number"),
        ({"pipeline": {"stage_layers": (1, "a")}}, "is not a list of whole numbers"),
        ({"pipeline": {"schedule": 3}}, "pipeline.schedule=3 is not text"),
        ({"model": {"dtype": "float16"}}, "Did you mean bfloat16? Use one of float32, bfloat16."),
        ({"data": {"kind": "txt"}}, "Did you mean text?"),
        ({"data": {"path": "x"}}, "Set data.kind=text"),
        ({"data": {"kind": "text"}}, "data.path='' names no file"),
        ({"optimizer": {"clip_norm": -1.0}}, "optimizer.clip_norm=-1.0 is negative"),
        ({"optimizer": {"peak_rate": float("nan")}}, "optimizer.peak_rate=nan is not a finite number"),
        ({"optimizer": {"b2": 1.0}}, "optimizer.b2=1.0 is not in 0 .. 1"),
        ({"optimizer": {"weight_decay": float("inf")}}, "optimizer.weight_decay=inf is not a finite number"),
        ({"optimizer": {"clip_norm": 10**400}}, "optimizer.clip_norm=inf is not a finite number"),
        ({"pipeline": {"remat": "x"}}, "remat='x' is unknown: it says what a layer's backward recomputes. Use one of"),
        ({"pipeline": {"remat": "names:qkv,"}}, "remat='names:qkv,' is unknown"),
        ({"optimizer": {"name": "x"}}, "there is no other optimizer. Use one of adamw, "),
        ({"sample": {"prompt": "a\udcff"}}, "sample.prompt='a\\udcff' is not UTF-8 text"),
        ({"train": {"num_steps": 0}}, "train.num_steps=0 is not positive"),
        ({"train": {"eval_every": -1}}, "train.eval_every=-1 is negative"),
        ({"model": {"vocab_size": 255}}, "model.vocab_size=255 is under 256"),
        ({"seed": -1}, "seed=-1"),
        ({"emulate_devices": -8}, "emulate_devices=-8 is negative"),
    ],
)
def test_values_that_are_wrong_by_themselves(tree, part):
    with pytest.raises(SettingError) as caught:
        resolve(tree)
    assert part in str(caught.value)


def test_whole_numbers_serve_as_floats_and_lists_as_tuples():
    config = resolve({"optimizer": {"peak_rate": 1}, "pipeline": {"stage_layers": [1, 2]}})
    assert config.optimizer.peak_rate == 1.0 and isinstance(config.optimizer.peak_rate, float)
    assert config.pipeline.stage_layers == (1, 2)


def test_every_count_must_be_positive():
    counts = [name for name in setting_names() if name.split(".")[-1].startswith(("num_", "max_"))]
    assert len(counts) > 8
    for name in set(counts) - {"sample.num_bytes", "pipeline.max_live", "train.max_skips"}:
        section, leaf = name.split(".")
        with pytest.raises(SettingError, match=f"{name}=0 "):
            resolve({section: {leaf: 0}})


def test_every_count_has_an_upper_bound():
    fields = {name: value for name, value in _leaves(Config()) if type(value) is int and not name.startswith("mesh.")}
    assert len(fields) > 15
    for name in fields:
        section, _, leaf = name.rpartition(".")
        with pytest.raises(SettingError, match=f"{name}=10{{40}} is (over|not in)"):
            resolve({section: {leaf: 10**40}} if section else {leaf: 10**40})
    assert resolve({"emulate_devices": 1024}).emulate_devices == 1024


def _leaves(config, prefix=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = f"{prefix}{field.name}"
        yield from _leaves(value, f"{name}.") if dataclasses.is_dataclass(value) else [(name, value)]


def test_every_choice_of_the_executor_is_accepted():
    from jaxpar.pipeline.remat import POLICIES

    for remat in (*POLICIES, "names:qkv,gate_up"):
        assert resolve({"pipeline": {"remat": remat}}).pipeline.remat == remat


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mesh__pipe": 3}, ["mesh.pipe=3", "8 device", "1x4x2"]),
        ({"mesh__data": -1, "mesh__pipe": -1}, ["cannot both be inferred"]),
        ({"mesh__data": 0}, ["mesh.data=0"]),
        ({"model__num_heads": 6}, ["model.width=128", "model.num_heads=6", "120 or 132, or model.num_heads=4 or 8"]),
        ({"model__num_heads": 128, "model__num_kv_heads": 2}, ["heads of odd size", "model.width=256"]),
        ({"model__num_kv_heads": 3}, ["model.num_kv_heads=3"]),
        (
            {"model__num_kv_heads": 1},
            ["model.num_kv_heads=1", "mesh.tensor=2", "model.num_kv_heads=2, or mesh.tensor=1."],
        ),
        ({"model__mlp_width": 383}, ["model.mlp_width=383", "382 or 384"]),
        ({"train__global_batch": 30}, ["mesh.data=1 x pipeline.num_microbatches=4", "28 or 32", "1, 2, 3, 5, 6, 10"]),
        ({"train__global_batch": 3}, ["train.global_batch=3", "Use train.global_batch=4"]),
        ({"model__num_layers": 3}, ["model.num_layers=3", "mesh.pipe=4", "Use 4 layers or more"]),
        ({"pipeline__stage_layers": (2, 2)}, ["has 2 stages", "(1, 1, 1, 1)"]),
        ({"pipeline__stage_layers": (2, 1, 1, 1)}, ["adds up to 5", "model.num_layers=4"]),
        ({"pipeline__stage_layers": (2, 2, 0, 0)}, ["a stage without a layer"]),
        ({"pipeline__schedule": "1fb1"}, ["pipeline.schedule=1fb1", "Did you mean 1f1b?"]),
        ({"pipeline__schedule": "nowhere.csv"}, ["pipeline.schedule=nowhere.csv is not a file"]),
        ({"pipeline__num_chunks": 2, "model__num_layers": 8}, ["pipeline.num_chunks=2"]),
    ],
)
def test_values_that_do_not_fit_together(changes, parts):
    message = refusal(**changes)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("width", [40, 66, 96, 128])
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_proposal_for_heads_removes_the_fault(width, tensor):
    """Each proposal gives a config that passes, or one with another fault: never the same one, nor odd heads."""
    refused = 0
    for heads in range(1, 25):
        for kv_heads in (1, 2, 3, 4):
            given = {"width": width, "num_heads": heads, "num_kv_heads": kv_heads, "mlp_width": 384}
            message = _model_fault(given, tensor)
            if message is None:
                continue
            refused += 1
            remedies = re.findall(
                r"(?:model\.(\w+)|mesh\.tensor)=(\d+(?:(?:, | or )\d+)*)", message.rsplit(". Use ", 1)[1]
            )
            assert remedies, message
            for leaf, values in remedies:
                for value in map(int, re.findall(r"\d+", values)):
                    after = _model_fault(given | {leaf: value}, tensor) if leaf else _model_fault(given, value)
                    if leaf == "num_heads":
                        assert after is None or after.startswith("model.num_kv_heads="), (message, after)
                    else:
                        assert after is None or after.split(":")[0] != message.split(":")[0] and "odd size" not in after
    assert refused


def _model_fault(sizes, tensor):
    try:
        checks.check_model(resolve({"mesh": {"tensor": tensor}, "model": sizes}))
    except SettingError as error:
        return str(error)
    return None


def test_one_mesh_axis_is_inferred():
    assert fit(resolve(settings(mesh__data=-1)), 16).mesh.data == 2
    assert "leaves no whole size" in refusal(num_devices=12, mesh__data=-1)


def test_a_schedule_from_a_file_must_be_the_runs(tmp_path):
    path = tmp_path / "mine.csv"
    build("gpipe", 4, 4).to_csv(path)
    config = fit(resolve(settings(pipeline__schedule=str(path))), 8)
    assert build_schedule(config) == dataclasses.replace(build("gpipe", 4, 4), name="mine")
    path.write_text(path.read_text().replace("0F0", "0F1", 1))
    message = refusal(pipeline__schedule=str(path))
    assert message.startswith(f"pipeline.schedule={path} has 0F1 at tick 1 on rank 0 (row 1, column 2), twice:")
    assert message.splitlines()[-1].strip() == "^^^"


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "num_chunks", "asked", "remedy"),
    [
        (4, 8, 1, "pipeline.num_microbatches=4 is not", "Set pipeline.num_microbatches=8."),
        (4, 4, 2, "pipeline.num_chunks=1 is not", "Set pipeline.num_chunks=2."),
        (2, 4, 1, "mesh.pipe=4 is not", "Set mesh.pipe=2."),
        (
            4,
            5,  # as many as 32 rows do not divide by: the file is named first
            3,
            "pipeline.num_microbatches=4 and pipeline.num_chunks=1 are not",
            "Set pipeline.num_microbatches=5, pipeline.num_chunks=3.",
        ),
        (
            2,
            6,
            2,
            "mesh.pipe=4, pipeline.num_microbatches=4 and pipeline.num_chunks=1 are not",
            "Set mesh.pipe=2, pipeline.num_microbatches=6, pipeline.num_chunks=2.",
        ),
    ],
)
def test_all_sizes_of_a_file_that_differ_are_named_at_once(
    num_ranks, num_microbatches, num_chunks, asked, remedy, tmp_path
):
    path = tmp_path / "mine.csv"
    build("interleaved_1f1b", num_ranks, num_microbatches, num_chunks).to_csv(path)
    sizes = f"mesh.pipe={num_ranks}, pipeline.num_microbatches={num_microbatches}, pipeline.num_chunks={num_chunks}"
    message = refusal(pipeline__schedule=str(path))
    assert message == f"{asked} the schedule's: {path} was written for {sizes}. {remedy}"


def test_a_file_with_vocabulary_actions_says_where_they_are(tmp_path):
    path = tmp_path / "mine.csv"
    build("1f1b", 4, 4).with_vocabulary("pipe").to_csv(path)
    message = refusal(pipeline__schedule=str(path))
    assert message.startswith("pipeline.vocabulary=ends is not the schedule's: ")
    assert message.endswith("Set pipeline.vocabulary=pipe.")
    config = fit(resolve(settings(pipeline__schedule=str(path), pipeline__vocabulary="pipe")), 8)
    assert build_schedule(config).vocabulary == "pipe"


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(pipeline__schedule="mine.csv")
    assert message == (
        f"pipeline.schedule=mine.csv is not a file: a name in .csv is read from the working directory {tmp_path}. "
        "Give the path of a file."
    )
    build("1f1b", 4, 4).to_csv("mine.csv")
    assert build_schedule(fit(resolve(settings(pipeline__schedule="mine.csv")), 8)).name == "mine"
    (tmp_path / "mine.csv").rename("mine")
    assert "pipeline.schedule=mine is a file without the end .csv" in refusal(pipeline__schedule="mine")
    (tmp_path / "folder.csv").mkdir()
    assert "pipeline.schedule=folder.csv is not a file" in refusal(pipeline__schedule="folder.csv")


def test_a_schedule_from_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xff\xfe0\0F\0")
    assert f"pipeline.schedule={path} cannot be read: it is not UTF-8" in refusal(pipeline__schedule=str(path))
    monkeypatch.setattr("pathlib.Path.open", _no_permission)
    assert f"pipeline.schedule={path} cannot be read: Permission denied." in refusal(pipeline__schedule=str(path))


def _no_permission(*_, **__):
    raise PermissionError(13, "Permission denied")


def test_settings_need_no_jax():
    code = "import sys; from jaxpar.config import *; fit(resolve(base_config()), 1); sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_auto_keeps_the_cap_with_the_costs_of_a_file(tmp_path):
    path = tmp_path / "costs.json"
    Costs(F=1.0, I=1.6, W=0.7, hop=0.1).to_json(path)
    asked = settings(pipeline__schedule="auto", pipeline__max_live=3, pipeline__costs=str(path))
    asked.pipeline.num_microbatches = 8
    config = fit(resolve(asked), 8)
    schedule = build_schedule(config)
    assert schedule is build_schedule(config), "a run searches once"
    timeline = schedule.with_vocabulary("ends").simulate(Costs.from_json(path))
    assert schedule.name == "auto" and max(timeline.peak_live) <= 3
    for name in ("naive", "1f1b", "zb_h1"):
        named = build(name, 4, 8).simulate(Costs.from_json(path))
        assert max(named.peak_live) > 3 or named.makespan >= timeline.makespan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_live": 0.5, "schedule": "auto"}, "pipeline.max_live=0.5 is under 1: when a microbatch reaches the loss"),
        ({"max_live": -1}, "pipeline.max_live=-1.0 is under 1"),
        ({"max_live": float("nan")}, "pipeline.max_live=nan is not a finite number"),
        ({"max_live": 3, "schedule": "1f1b"}, "pipeline.max_live=3 is exceeded: pipeline.schedule=1f1b holds 4 micro"),
        ({"search_mode": "lockstep"}, "pipeline.search_mode=lockstep would not be read: pipeline.schedule=1f1b does"),
        ({"search_mode": "x"}, "pipeline.search_mode=x is not known: it says how time is counted"),
        ({"costs": "c.json"}, "pipeline.costs=c.json would not be read: pipeline.schedule=1f1b does not search"),
        ({"costs": "nowhere.json", "schedule": "auto"}, "pipeline.costs=nowhere.json cannot be read: No such file"),
    ],
)
def test_settings_of_the_search(changes, message):
    assert message in refusal(**{f"pipeline__{name}": value for name, value in changes.items()})


def test_costs_for_another_number_of_stages_are_refused(tmp_path):
    Costs(F=[1.0, 2.0], I=1.0, W=1.0).to_json(tmp_path / "two.json")
    message = refusal(pipeline__schedule="auto", pipeline__costs=str(tmp_path / "two.json"))
    assert message.startswith(f"pipeline.costs={tmp_path / 'two.json'}: costs.F=[1.0, 2.0] has 2 entries for 4 stages")
