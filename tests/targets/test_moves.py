"""Which instructions of a compiled loop count as data movement."""

from jaxpar.targets.moves import largest, moves, of_buffers

PROGRAM = """HloModule m

%transposing (p: f32[4,8,16]) -> f32[4,16,8] {
  %p = f32[4,8,16]{2,1,0} parameter(0)
  %b = f32[4,16,8]{1,2,0} bitcast(%p)
  ROOT %t = f32[4,16,8]{2,1,0} transpose(%b), dimensions={0,1,2}
}

%slicing (p.1: f32[4,8,16], i: s32[]) -> f32[1,8,16] {
  %p.1 = f32[4,8,16]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %d = f32[1,8,16]{2,1,0} dynamic-slice(%p.1, %i, %z, %z), dynamic_slice_sizes={1,8,16}
}

%computing (p.2: f32[4,8,16]) -> f32[4,8,16] {
  %p.2 = f32[4,8,16]{2,1,0} parameter(0)
  %c = f32[4,8,16]{2,1,0} copy(%p.2)
  ROOT %n = f32[4,8,16]{2,1,0} negate(%c)
}

%body (s: (f32[4,8,16], s32[])) -> (f32[4,8,16], s32[]) {
  %s = (f32[4,8,16]{2,1,0}, s32[]) parameter(0)
  %x = f32[4,8,16]{2,1,0} get-tuple-element(%s), index=0
  %j = s32[] get-tuple-element(%s), index=1
  %whole = f32[4,16,8]{2,1,0} fusion(%x), kind=kInput, calls=%transposing, metadata={op_name="jit(f)/while/body/I"}
  %part = f32[1,8,16]{2,1,0} fusion(%x, %j), kind=kLoop, calls=%slicing
  %y = f32[4,8,16]{2,1,0} fusion(%x), kind=kLoop, calls=%computing
  %prefetch = (f32[4,8,16]{2,1,0:T(8,128)S(1)}, f32[4,8,16]{2,1,0}, u32[]) copy-start(%x)
  %small = bf16[8,16]{1,0} copy(%q)
  ROOT %r = (f32[4,8,16]{2,1,0}, s32[]) tuple(%y, %j)
}

%cond (s.1: (f32[4,8,16], s32[])) -> pred[] {
  %s.1 = (f32[4,8,16]{2,1,0}, s32[]) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (a: f32[4,8,16]) -> f32[4,8,16] {
  %a = f32[4,8,16]{2,1,0} parameter(0)
  %once = f32[4,8,16]{0,1,2} copy(%a)
  %n.1 = s32[] constant(3)
  %start = (f32[4,8,16]{2,1,0}, s32[]) tuple(%once, %n.1)
  %w = (f32[4,8,16]{2,1,0}, s32[]) while(%start), condition=%cond, body=%body
  ROOT %out = f32[4,8,16]{2,1,0} get-tuple-element(%w), index=0
}
"""
WHOLE, SLICE, SMALL = 4 * 8 * 16 * 4, 8 * 16 * 4, 8 * 16 * 2


def test_fused_transposes_and_slices_of_a_loop_are_found():
    found = moves(PROGRAM)
    assert [(m.kind, m.num_bytes, m.name) for m in found] == [
        ("copy", WHOLE, "whole"),
        ("load", SLICE, "part"),
        ("copy", SMALL, "small"),
    ]
    assert found[0].source == "jit(f)/while/body/I"


def test_outside_of_loops_on_request():
    assert [m.name for m in moves(PROGRAM, in_loop=False)] == ["once"]


def test_the_largest_of_a_kind():
    found = moves(PROGRAM)
    assert (largest(found, "copy"), largest(found, "load"), largest([], "copy")) == (WHOLE, SLICE, 0)


def test_copies_of_a_buffer_are_told_from_others_by_their_dims():
    found = moves(PROGRAM)
    assert [m.name for m in of_buffers(found, [(4, 1, 8, 16)])] == ["whole"]
    assert [m.name for m in of_buffers(found, [(8, 16)])] == ["small"]  # a load of these dims is no copy
    assert not of_buffers(found, [(4, 8, 8), (4, 4, 8, 16)])
