"""Reading compiled text: instructions, sizes, loops. The texts are hand-made after real ones."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpar.accounting.hlo import array_bytes, largest_copy_bytes, parse, shape_bytes

TEXT = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4,16]{1,0})->f32[]}, num_partitions=8

%add.clone (x.3: f32[], y.1: f32[]) -> f32[] {
  %x.3 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %add = f32[] add(%x.3, %y.1)
}

%inner_body (arg: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {
  %arg = (s32[], f32[4,16]{1,0}) parameter(0)
  %gte = f32[4,16]{1,0:T(8,128)S(1)} get-tuple-element(%arg), index=1
  %copy.1 = f32[4,16]{1,0} copy(%gte)
  ROOT %t = (s32[], f32[4,16]{1,0}) tuple(%arg, %copy.1)
}

%always (arg: (s32[], f32[4,16])) -> pred[] {
  ROOT %c = pred[] constant(true)
}

%branch_a (arg: f32[4,16]) -> f32[4,16] {
  %while.2 = (s32[], f32[4,16]{1,0}) while(%arg), condition=%always, body=%inner_body
  ROOT %g = f32[4,16]{1,0} get-tuple-element(%while.2), index=1
}

%branch_b (arg: f32[4,16]) -> f32[4,16] {
  ROOT %arg.2 = f32[4,16]{1,0} parameter(0)
}

%outer_body (arg: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {
  %cond = f32[4,16]{1,0} conditional(%i, %a, %b), branch_computations={%branch_a, %branch_b}
  ROOT %t.2 = (s32[], f32[4,16]{1,0}, /*index=2*/bf16[2,2]{1,0}) tuple(%i, %cond)
}

ENTRY %main.8_spmd (param.4: f32[4,16]) -> f32[] {
  %param.4 = f32[4,16]{1,0} parameter(0)
  %copy.9 = f32[1000]{0} copy(%param.4)
  %while.1 = (s32[], f32[4,16]{1,0}) while(%param.4), condition=%always, body=%outer_body, metadata={op_name="while"}
  %copy-start.3 = (f32[1000]{0}, f32[1000]{0}, u32[]) copy-start(%copy.9)
  ROOT %reduce = f32[] reduce(%while.1), dimensions={0,1}, to_apply=%add.clone
}
"""


def test_instructions_and_their_places():
    found = {i.name: i for i in parse(TEXT)}
    assert found["while.1"].opcode == "while" and found["while.1"].computation == "main.8_spmd"
    assert found["while.1"].calls == (("condition", "always"), ("body", "outer_body"))
    assert found["cond"].calls == (("branch_computations", "branch_a"), ("branch_computations", "branch_b"))
    assert found["t.2"].shape == "(s32[], f32[4,16]{1,0}, /*index=2*/bf16[2,2]{1,0})"


def test_a_loop_repeats_what_it_calls_through_branches_and_inner_loops():
    looped = {i.computation for i in parse(TEXT) if i.in_loop}
    assert looped == {"outer_body", "branch_a", "branch_b", "inner_body", "always"}


def test_copies_count_in_loops_alone():
    assert largest_copy_bytes(TEXT) == 256
    assert largest_copy_bytes(TEXT.replace("%copy.1 = f32[4,16]{1,0} copy(", "%n = f32[4,16]{1,0} negate(")) == 0


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("f32[]", [4]),
        ("f32[4,16]{1,0:T(8,128)(2,1)S(1)}", [256]),
        ("(bf16[2,3]{1,0}, u32[]{:S(2)}, pred[7]{0}, s4[3]{0})", [12, 4, 7, 2]),
        ("f32[<=8,2]{1,0}", [64]),
        ("(f8e4m3fn[8]{0}, token[], c64[2]{0})", [8, 0, 16]),
    ],
)
def test_sizes_of_shapes(shape, sizes):
    assert array_bytes(shape) == sizes and shape_bytes(shape) == sum(sizes)


def test_text_of_something_else_is_an_error():
    with pytest.raises(ValueError, match="no computation"):
        parse("module @jit_f { func.func }\n")


def test_a_real_program():
    def f(x):
        return lax.fori_loop(0, 3, lambda i, x: jnp.sin(x @ x), x) @ x

    found = parse(jax.jit(f).lower(jnp.ones((64, 64))).compile().as_text())
    assert sum(i.opcode == "while" for i in found) == 1
    entry = [i for i in found if i.opcode == "parameter" and not i.in_loop]
    assert any(i.num_bytes == 64 * 64 * 4 for i in entry)
    assert any(i.in_loop for i in found) and not all(i.in_loop for i in found)
