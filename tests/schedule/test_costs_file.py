"""Costs files: what is written is read, and what is no cost is refused with the file's path."""

import json

import pytest

from jaxpar.errors import SettingError
from jaxpar.schedule import Costs

GOOD = {"F": 1.0, "I": 1.0, "W": 1.0}


@pytest.mark.parametrize(
    "costs",
    [
        Costs(),
        Costs(F=[0.011, 0.012], I=0.0125, W=[0.008, 0.009], R=0.5, H=0.1, E=0.2, G=0.3, hop=0.0004),
        Costs(F=0, I=0.0, W=0),
    ],
)
def test_what_is_written_is_read(costs, tmp_path):
    costs.to_json(tmp_path / "costs.json", note="measured on two ranks")
    assert Costs.from_json(tmp_path / "costs.json") == costs
    assert json.loads((tmp_path / "costs.json").read_text())["note"] == "measured on two ranks"


def test_what_is_left_out_costs_nothing(tmp_path):
    (tmp_path / "costs.json").write_text('{"F": 1, "I": 2, "W": [1, 2]}')
    assert Costs.from_json(tmp_path / "costs.json") == Costs(F=1, I=2, W=[1, 2], R=0.0, H=0.0, E=0.0, hop=0.0, G=0.0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (json.dumps(GOOD | {"F": -1.0}), "costs.F=-1.0 is negative"),
        (json.dumps(GOOD | {"I": [1.0, -2.0]}), "costs.I=[1.0, -2.0] is negative"),
        (json.dumps(GOOD | {"W": float("nan")}), "costs.W=nan is not a finite number"),
        (json.dumps(GOOD | {"hop": float("inf")}), "costs.hop=inf is not a finite number"),
        (json.dumps(GOOD | {"F": "1.0"}), "costs.F='1.0' is not a finite number"),
        (json.dumps(GOOD | {"F": None}), "costs.F=None is not a finite number"),
        (json.dumps(GOOD | {"F": True}), "costs.F=True is not a finite number"),
        (json.dumps(GOOD | {"F": {"0": 1.0}}), "costs.F={'0': 1.0} is not a finite number"),
        (json.dumps(GOOD | {"F": [1.0, [2.0]]}), "costs.F=[1.0, [2.0]] is not a finite number"),
        (json.dumps(GOOD | {"F": 10**400}), "is not a finite number"),
        (json.dumps(GOOD | {"F": []}), "costs.F=[] is empty"),
        (json.dumps(GOOD | {"H": [1.0]}), "costs.H=[1.0] is a list: H has no cost for each stage"),
        (json.dumps(GOOD | {"B": 2.0}), "has an unknown cost B: there are F, I, W, R, H, E, hop, G"),
        (json.dumps({"F": 1.0, "I": 1.0}), "has no W: F, I and W are every step's work"),
        ('{"F": 1, "I": 1, "W": 1, "F": 2}', "is not a costs file: F comes twice"),
        ("[1, 2]", "is not a costs file: it holds a list, no object"),
        ("F=1", "is not a costs file"),
        ("[" * 100_000, "is not a costs file: maximum recursion depth"),
        (json.dumps(GOOD | {"F": 1e308}), "costs.F=1e+308 is over 1e+100"),
        ("", "is not a costs file"),
    ],
)
def test_what_is_no_cost_is_refused_with_the_path(text, part, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(SettingError) as error:
        Costs.from_json(path)
    assert str(error.value).startswith(f"pipeline.costs={path}") and part in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    for path, part in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingError, match=f"pipeline.costs={path} cannot be read: {part}"):
            Costs.from_json(path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="is not a costs file"):
        Costs.from_json(tmp_path / "bytes.json")


def test_nothing_is_written_where_a_cost_is_none(tmp_path):
    with pytest.raises(SettingError, match="costs.F=-1.0 is negative"):
        Costs(F=-1.0).to_json(tmp_path / "costs.json")
    assert not (tmp_path / "costs.json").exists()
