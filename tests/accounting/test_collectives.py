"""Collectives counted by mesh axis, in every spelling of a replica group that compilers use."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.accounting.collectives import collectives, count_by_axes, select
from jaxpar.mesh import make_mesh

MESH = {"data": 2, "pipe": 2, "tensor": 2}


def _one(instruction, mesh=MESH):
    (found,) = collectives("ENTRY %main (p: f32[4]) -> f32[4] {\n  " + instruction + "\n}\n", mesh)
    return found


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", ("pipe",)),
        ("{{0,2,4,6},{1,3,5,7}}", ("data", "pipe")),
        ("{{0,1,2,3,4,5,6,7}}", ("data", "pipe", "tensor")),
        ("{}", ("data", "pipe", "tensor")),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", ()),
        ("[4,2]<=[8]", ("tensor",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("[4,2]<=[2,2,2]T(0,2,1)", ("pipe",)),
        ("[2,4]<=[4,2]T(1,0)", ("data", "pipe")),
        ("[1,8]<=[8]", ("data", "pipe", "tensor")),
        ("mesh['data'=2,'pipe'=2,'tensor'=2] {'data'}", ("data",)),
        ("mesh['data'=2,'pipe'=2,'tensor'=2] {'data','tensor'}", ("data", "tensor")),
        ("mesh[data=2,pipe=2,tensor=2] {pipe}", ("pipe",)),
        ("@mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ("tensor",)),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", ("tensor",)),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'a'}", ("tensor",)),
        ("mesh['a'=8] {'a':(1)2}", ("data",)),
        ("mesh['a'=8] {'a':(2)2}", ("pipe",)),
        ("mesh['a'=8] {'a':(4)2}", ("tensor",)),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ("data", "tensor")),
    ],
)
def test_groups_become_axes(groups, axes):
    rest = f"replica_groups={groups}, use_global_device_ids=true, to_apply=%add"
    found = _one(f"ROOT %r = f32[4]{{0}} all-reduce(%p), channel_id=1, {rest}")
    assert found.axes == axes and found.kind == "all-reduce" and found.num_bytes == 16


def test_every_axis_of_every_mesh_in_both_iota_forms():
    for shape in itertools.product((1, 2, 3), repeat=3):
        mesh = dict(zip(MESH, shape, strict=True))
        dims, total = ",".join(map(str, shape)), shape[0] * shape[1] * shape[2]
        for place, axis in enumerate(mesh):
            order = [d for d in range(3) if d != place] + [place]
            text = f"[{total // shape[place]},{shape[place]}]<=[{dims}]T({','.join(map(str, order))})"
            found = _one(f"%r = f32[4]{{0}} all-reduce(%p), replica_groups={text}", mesh)
            assert found.axes == ((axis,) if shape[place] > 1 else ()) and len(found.groups[0]) == shape[place]


def test_permutes_go_by_their_pairs():
    line = "%r = f32[4]{0} collective-permute(%p), channel_id=1, source_target_pairs={{0,2},{1,3}}, metadata={a=1}"
    found = _one(line)
    assert found.axes == ("pipe",) and found.groups == ((0, 2), (1, 3))


def test_a_form_that_is_not_known_is_an_error():
    with pytest.raises(ValueError, match="unknown form"):
        _one("%r = f32[4]{0} all-reduce(%p), replica_groups=<new>")
    with pytest.raises(ValueError, match="no source_target_pairs"):
        _one("%r = f32[4]{0} collective-permute(%p)")


ASYNC = """\
%wrapped (p: f32[8]) -> f32[4] {
  ROOT %rs = f32[4]{0} reduce-scatter(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %ar = f32[8]{0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add
  %ar-done = f32[8]{0} all-reduce-done(%ar)
  %ag = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[4,2]<=[8], dimensions={0}
  %ag-done = f32[16]{0} all-gather-done(%ag)
  %cp = (f32[8]{0:T(8)}, f32[8]{0:T(8)}, u32[]{:S(2)}) collective-permute-start(%p), source_target_pairs={{0,2},{2,0}}
  %cp-done = f32[8]{0} collective-permute-done(%cp)
  %rs-start = ((f32[8]{0}), f32[4]{0}) async-start(%p), calls=%wrapped
  %rs-done = f32[4]{0} async-done(%rs-start)
  ROOT %two = (f32[8]{0}, f32[4]{0}) all-reduce(%p, %rs-done), replica_groups=[4,2]<=[8], to_apply=%add
}
"""


def test_a_start_and_its_done_are_one():
    found = collectives(ASYNC, MESH)
    assert [(one.kind, one.asynchronous, one.num_bytes) for one in found] == [
        ("reduce-scatter", True, 16),
        ("all-reduce", True, 32),
        ("all-gather", True, 64),
        ("collective-permute", True, 32),
        ("all-reduce", False, 48),
    ]
    assert count_by_axes(found) == {
        "data": {"reduce-scatter": {"loop": 0, "once": 1}},
        "pipe": {"collective-permute": {"loop": 0, "once": 1}},
        "tensor": {"all-gather": {"loop": 0, "once": 1}, "all-reduce": {"loop": 0, "once": 2}},
    }


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 4, 1), (1, 4, 2)])
def test_a_real_program_on_a_mesh_whose_devices_are_out_of_order(shape):
    mesh = make_mesh(*shape)

    def local(x, w):
        def body(_, x):
            return lax.ppermute(jnp.tanh(x @ w) @ w.T, "pipe", [(0, 1), (1, 0)])

        x = lax.fori_loop(0, 5, body, x)
        return lax.psum(lax.all_gather(x, "data").sum(), ("data", "pipe")), lax.psum(x, "data")

    def f(x, w):
        return jax.shard_map(
            local, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), axis_names={"data", "pipe"}, check_vma=False
        )(x, w)

    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "tensor")))
    found = collectives(jax.jit(f).lower(x, w).compile().as_text(), mesh)
    (permute,) = select(found, "collective-permute")
    assert permute.axes == ("pipe",) and permute.in_loop
    assert len(select(found, "all-reduce", "tensor", in_loop=True)) == (shape[2] > 1)
    assert not select(found, axis="data", in_loop=True) and not select(found, axis="tensor", in_loop=False)
    expected = ("data", "pipe") if shape[0] > 1 else ("pipe",)
    assert [one.axes for one in select(found, "all-reduce", "pipe", in_loop=False)] == [expected]
    assert bool(select(found, axis="data")) == (shape[0] > 1)
