"""What the compiler made of it: memory, collectives, copies, and the size of the program."""

import functools

import jax
import numpy as np
import pytest
from tiny import FAMILIES, make_mesh

from jaxpar.accounting.collectives import collectives
from jaxpar.accounting.hlo import parse
from jaxpar.accounting.memory import temporary_bytes
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout
from jaxpar.pipeline.remat import checkpointed
from jaxpar.pipeline.split import POOLS, split_layer
from jaxpar.schedule import build, names
from jaxpar.sharding import TENSOR_RULES, param_shardings
from jaxpar.train.grads import make_grad_fn

SEQ_LEN = 64
KEEP_ALL = ("gpipe", "looped_bfs")  # forwards of all microbatches come first
MODEL = decoder(DecoderConfig(8, 64, 4, 4, 256, 64), 8)


@functools.cache
def compiled(name, num_microbatches, mesh=(1, 4, 1), remat="none", layers="loop", vocabulary="ends"):
    """(compiled program, pipeline, mesh) of 8 layers; one row a microbatch and data rank."""
    made = make_mesh(*mesh)
    schedule = build(name, mesh[1], num_microbatches, 1 if name in FAMILIES["one"] else 2)
    specs = TENSOR_RULES.specs(MODEL.dims)
    layout = Layout.of(schedule, 8)
    options = {"remat": remat, "layers": layers, "vocabulary": vocabulary}
    fn = make_grad_fn(MODEL, schedule, made, layout=layout, **options)
    params = jax.eval_shape(lambda: init_params(MODEL, jax.random.key(0), layout.rows))
    shardings = param_shardings(made, specs, vocabulary)
    params = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), params, shardings)
    tokens = jax.ShapeDtypeStruct((mesh[0] * num_microbatches, SEQ_LEN), np.int32)
    return fn.run.lower(params, {"inputs": tokens, "labels": tokens}, None, fn.tables()).compile(), fn, made


@pytest.mark.parametrize("name", [name for name in names() if name not in KEEP_ALL])
def test_memory_is_flat_in_microbatches(name):
    few, many = (temporary_bytes(compiled(name, m)[0]) for m in (8, 32))
    assert abs(many - few) <= 0.02 * few


def test_gpipe_keeps_every_microbatch():
    """The contrast that gives the test above its meaning."""
    assert temporary_bytes(compiled("gpipe", 32)[0]) > 2 * temporary_bytes(compiled("1f1b", 32)[0])


def _paper_bytes(fn, remat):
    """(slots x bytes, stash included; one stage's working set): what the plan and the split say, one tensor rank."""
    p = jax.eval_shape(lambda: MODEL.init_layer(jax.random.key(0), 0))
    x = jax.ShapeDtypeStruct((1, SEQ_LEN, 64), np.float32)
    split = split_layer(checkpointed(MODEL.layer, remat), p, x, {}, None)

    def size(tree):
        return sum(int(np.prod(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(tree))

    depth, slots = int(fn.layout.count.max()), fn.plan.num_slots
    kept = sum(max(1, slots[name]) * depth * size(split.pools[name]) for name in POOLS)
    payloads = (slots["act"] + slots["grad"] + 4) * size(x)
    one_layer = jax.jit(lambda p, x, ct: jax.vjp(lambda p, x: MODEL.layer(p, x, {}, None), p, x)[1](ct))
    stage = one_layer.lower(p, x, x).compile().memory_analysis()
    grads = size(jax.eval_shape(lambda: init_params(MODEL, jax.random.key(0), fn.layout.rows[:1])))
    # Gradients accumulate in temporaries, since only their sum over ranks is the program's result.
    return kept + payloads + grads, stage.temp_size_in_bytes + stage.output_size_in_bytes


def _remat_by_name():
    """Every schedule; with recomputation three in the default suite."""
    for name in names():
        yield name, "none"
        few = name in ("gpipe", "1f1b", "interleaved_1f1b")
        yield pytest.param(name, "full", marks=() if few else pytest.mark.slow)


@pytest.mark.parametrize(("name", "remat"), list(_remat_by_name()))
def test_memory_is_what_the_plan_says(name, remat):
    program, fn, _ = compiled(name, 32, remat=remat)
    slots, stage = _paper_bytes(fn, remat)
    measured = temporary_bytes(program)
    assert slots - stage <= measured <= 1.15 * (slots + stage), (measured, slots, stage)


def test_recomputation_saves_memory():
    remats = ("none", "dots", "full", "names:qkv")
    none, dots, full, names = (temporary_bytes(compiled("1f1b", 32, remat=remat)[0]) for remat in remats)
    assert none > dots > full
    assert none > names > full


@pytest.mark.parametrize("layers", ["loop", "unroll"])
@pytest.mark.parametrize("mesh", [(1, 4, 2), (2, 2, 2)], ids=str)
def test_collectives_are_the_ones_counted_on_paper(mesh, layers):
    """Over tensor: two all-reduces a layer in F, two in I, none in W; over data: none inside the loop."""
    program, fn, made = compiled("1f1b", 8, mesh=mesh, layers=layers)
    text = program.as_text()
    found = collectives(text, made)
    bodies = int(fn.layout.count.max()) if layers == "unroll" else 1

    def count(axes, in_loop, scope=None):
        names = [c.name for c in found if c.kind == "all-reduce" and c.axes == axes and c.in_loop == in_loop]
        return sum(scope is None or _scope(text, name) == scope for name in names)

    assert count(("tensor",), True, "F") == 2 * bodies
    assert count(("tensor",), True, "I") == 2 * bodies
    assert count(("tensor",), True, "W") == 0
    assert count(("tensor",), True, None) - 4 * bodies == _vocabulary_all_reduces(found, text)
    assert not [c for c in found if c.in_loop and "data" in c.axes]
    assert {c.kind for c in found if c.in_loop} <= {"all-reduce", "collective-permute"}
    assert all(c.axes == ("pipe",) for c in found if c.kind == "collective-permute")


def _scope(text, name):
    """The action whose loop holds an instruction: the name scope just inside the tick loop."""
    (line,) = [line for line in text.splitlines() if f"%{name} = " in line or f" {name} = " in line][:1]
    operation = line.split('op_name="')[1].split('"')[0]
    parts = [part for part in operation.split("/") if len(part) == 1 and part in "EFHRIGW"]
    return parts[0] if parts else None


def _vocabulary_all_reduces(found, text):
    inside = [c for c in found if c.kind == "all-reduce" and c.axes == ("tensor",) and c.in_loop]
    return sum(_scope(text, c.name) in ("E", "H", "G") for c in inside)


@pytest.mark.parametrize("layers", ["loop", "unroll"])
@pytest.mark.parametrize("name", ["naive", "1f1b", "interleaved_1f1b"])
def test_no_work_is_hoisted_out_of_its_action(name, layers):
    """Every matrix product lies in a loop inside the tick loop, which runs only where the plan says so.

    With one slot, or one layer a stage, XLA drops the index that ties a load to its loop: naive's weight gradients once
    ran in every tick.
    """
    instructions = parse(compiled(name, 8, layers=layers)[0].as_text())
    inside = {}
    for i in instructions:
        inside.setdefault(i.computation, []).append(i)

    def depths(computation, depth, found):
        for i in inside.get(computation, ()):
            if i.opcode in ("dot", "custom-call"):
                found.append((depth, i.name))
            for _, target in i.calls:
                depths(target, depth + (i.opcode == "while"), found)
        return found

    called = {target for i in instructions for _, target in i.calls}
    (entry,) = [c for c in inside if c not in called]
    products = depths(entry, 0, [])
    assert len(products) > 10
    assert all(depth >= 2 for depth, _ in products), products


def test_program_text_does_not_grow_with_microbatches():
    few, many = (len(compiled("1f1b", m)[0].as_text()) for m in (8, 64))
    assert many <= 1.02 * few
