"""Mesh: which sizes fit, what the refusals offer, and where tensor groups lie."""

import dataclasses
import itertools

import jax
import pytest

from jaxpar.errors import SettingError
from jaxpar.mesh import AXES, factorizations, make_mesh, resolve_shape


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """As much of a device as placing it takes."""

    id: int
    process_index: int
    platform: str = "gpu"
    slice_index: int | None = None


def test_every_factorization_of_eight_is_a_mesh_of_all_devices():
    for shape in factorizations(8):
        mesh = make_mesh(*shape)
        assert mesh.axis_names == AXES and mesh.devices.shape == shape
        assert sorted(d.id for d in mesh.devices.flat) == list(range(8))
        assert all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def test_one_axis_is_inferred():
    assert resolve_shape(8, 1, -1, 2) == (1, 4, 2)
    assert resolve_shape(8, -1, 2, 2) == (2, 2, 2)
    assert resolve_shape(1, 1, 1, -1) == (1, 1, 1)


def test_a_product_that_does_not_fit_lists_those_that_do():
    with pytest.raises(SettingError) as error:
        resolve_shape(8, 1, 3, 2)
    message = str(error.value)
    assert "mesh.data=1 x mesh.pipe=3 x mesh.tensor=2" in message and "the product is 6, but there are 8" in message
    for shape in factorizations(8):
        assert "x".join(map(str, shape)) in message


def test_a_long_list_starts_with_the_nearest():
    with pytest.raises(SettingError, match=r"data x pipe x tensor = (4x4x4|2x8x4|4x8x2|2x4x8)"):
        resolve_shape(64, 3, 5, 4)


def test_what_cannot_be_inferred_is_refused():
    with pytest.raises(SettingError, match="3 does not divide 8"):
        resolve_shape(8, -1, 3, 1)
    with pytest.raises(SettingError, match="cannot both be inferred"):
        resolve_shape(8, -1, -1, 1)


@pytest.mark.parametrize("size", [0, -2, 1.0, True, "2"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(SettingError, match="mesh.pipe=.* is not a size"):
        resolve_shape(8, 1, size, 1)


@pytest.mark.parametrize("shape", [s for s in factorizations(16) if s[2] <= 4])
def test_a_tensor_group_is_consecutive_devices_of_one_node(shape):
    devices = [FakeDevice(id=i, process_index=i // 4) for i in range(16)]
    mesh = make_mesh(*shape, devices=devices[::-1])  # the order given does not matter
    for data, pipe in itertools.product(range(shape[0]), range(shape[1])):
        group = list(mesh.devices[data, pipe])
        assert len({d.process_index for d in group}) == 1
        assert [d.id for d in group] == list(range(group[0].id, group[0].id + shape[2]))


def test_data_groups_stay_in_the_node_and_the_pipeline_crosses():
    devices = [FakeDevice(id=i, process_index=i // 4) for i in range(8)]
    mesh = make_mesh(2, 2, 2, devices=devices)
    assert [[d.process_index for d in row] for row in mesh.devices[:, :, 0]] == [[0, 1], [0, 1]]


def test_a_tensor_group_over_two_nodes_is_refused():
    devices = [FakeDevice(id=i, process_index=i // 4) for i in range(16)]
    with pytest.raises(SettingError, match=r"mesh.tensor=8 does not divide a node's 4 devices.*Use one of 1, 2, 4\."):
        make_mesh(1, 2, 8, devices=devices)


def test_processes_on_one_machine_or_slice_are_one_node():
    gpus = [FakeDevice(id=i, process_index=i, slice_index=i // 8) for i in range(16)]
    assert make_mesh(1, 2, 8, devices=gpus).devices.shape == (1, 2, 8)
    tpus = [FakeDevice(id=i, process_index=i // 4, platform="tpu") for i in range(16)]
    assert make_mesh(1, 2, 8, devices=tpus).devices.shape == (1, 2, 8)
