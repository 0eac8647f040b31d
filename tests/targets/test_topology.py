"""Names of targets, and what is said where one cannot be had."""

import importlib.util

import pytest

from jaxpar.errors import SettingError
from jaxpar.targets import devices, topology


@pytest.mark.parametrize(
    "name", ["", "v5p", "v5p:", "v5p:2x2y2", "v5p:0x2x2", "b200:8", "h100:2x2x2", "V5P:2x2x2", "v5p:2x2x2 "]
)
def test_unknown_names_are_refused_with_examples(name):
    with pytest.raises(SettingError, match=r"target='.*' names no topology: .* Use for example v5p:2x2x2"):
        devices(name)


@pytest.mark.parametrize("name", ["v5p:2x2x2", "h100:8"])
def test_a_missing_compiler_is_named_with_its_remedy(name, monkeypatch):
    monkeypatch.setattr(topology, "_is_installed", lambda module: False)
    with pytest.raises(SettingError, match=r"is not installed.*pip install 'jaxpar\[targets\]'"):
        devices(name)


def test_an_environment_that_is_set_already_stays(monkeypatch):
    monkeypatch.setattr(topology, "_is_installed", lambda module: False)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-8")
    with pytest.raises(SettingError):
        devices("v5p:2x2x2")
    assert topology.os.environ["TPU_ACCELERATOR_TYPE"] == "v6e-8"


@pytest.mark.targets
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jaxpar[targets]")
@pytest.mark.parametrize(("name", "number"), [("v5p:2x2x2", 8), ("v5e:2x4", 8), ("v6e:2x4", 8), ("v5p:4x4x8", 128)])
def test_tpu_slices_have_their_chips(name, number):
    found = devices(name)
    assert len(found) == number and found[0].platform == "tpu"


@pytest.mark.targets
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jaxpar[targets]")
def test_a_slice_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="target='v5p:3x3x3' is refused by its compiler"):
        devices("v5p:3x3x3")


@pytest.mark.targets
@pytest.mark.skipif(
    not any(map(topology._is_installed, topology._GPU_PLUGINS)), reason="no CUDA plugin: jaxpar[targets]"
)
@pytest.mark.parametrize(("name", "number", "machines"), [("h100:8", 8, 1), ("h100:2x8", 16, 2)])
def test_gpus_know_their_machine(name, number, machines):
    found = devices(name)
    assert len(found) == number and found[0].device_kind == "NVIDIA H100 80GB HBM3"
    assert len({device.process_index for device in found}) == machines
