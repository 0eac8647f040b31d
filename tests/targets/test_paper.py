"""A step compiled for emulated devices: the report's parts, and its bytes against the plan's, counted by hand."""

import jax
import pytest

from jaxpar.accounting.memory import temporary_bytes
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.pipeline.split import split_layer
from jaxpar.schedule import build
from jaxpar.targets import compile_step, report
from jaxpar.targets.paper import step_bytes

ROWS, SEQ_LEN, WIDTH, NUM_MICROBATCHES = 2, 16, 32, 4
SIZES = dict(num_layers=4, width=WIDTH, num_heads=4, num_kv_heads=2, mlp_width=64, vocab_size=64)


def compiled(schedule="1f1b", data=1, pipe=2, tensor=2, **options):
    mesh = make_mesh(data, pipe, tensor, jax.devices()[: data * pipe * tensor])
    rows = ROWS * NUM_MICROBATCHES * data
    model = decoder(DecoderConfig(**SIZES), vocab_multiple=tensor)
    return compile_step(
        model, build(schedule, pipe, NUM_MICROBATCHES), mesh, global_batch=rows, seq_len=SEQ_LEN, **options
    )


@pytest.fixture(scope="module")
def step():
    return compiled()


@pytest.fixture(scope="module")
def paper(step):
    return step_bytes(step)


def test_slots_are_the_plans_times_a_microbatch(step, paper):
    payload = ROWS * SEQ_LEN * WIDTH * 4
    # Rank 0 of 1F1B with two ranks holds two microbatches' residuals, two layers each.
    assert {n: step.pipeline.plan.num_slots[n] for n in ("FI", "FW", "IW")} == {"FI": 2, "FW": 2, "IW": 1}
    whole = compiled(tensor=1)
    p = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), whole.params["layers"])
    x = jax.ShapeDtypeStruct((ROWS, SEQ_LEN, WIDTH), "float32")
    pools = split_layer(whole.model.layer, p, x, {}, None).pools
    size = {name: sum(a.size * a.dtype.itemsize for a in pool) for name, pool in pools.items()}
    payloads = sum(step.pipeline.plan.num_slots[name] for name in ("act", "grad")) + 4
    unsplit = step_bytes(whole)
    assert unsplit.payload == payload
    assert unsplit.slots == payloads * payload + 2 * 2 * (size["FI"] + size["FW"])
    assert unsplit.stash == 2 * size["IW"]
    assert payloads * payload < paper.slots < unsplit.slots  # tensor ranks share the residuals
    assert paper.stash < unsplit.stash


def test_temporaries_are_what_the_paper_says(step, paper):
    assert temporary_bytes(step.compiled) < 1.3 * paper.total


def test_the_report_counts_bytes_and_collectives(step, paper):
    found = report(step)
    assert found["temp_bytes"] == temporary_bytes(step.compiled)
    assert found["expected_bytes"]["total"] == paper.total
    assert found["collectives"]["tensor"]["all-reduce"]["loop"] >= 4
    assert found["permutes"] == sum(len(p) - 1 for p in step.pipeline.plan.patterns)
    assert found["param_bytes"] < sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step.params))


def test_more_data_ranks_do_not_change_a_devices_bytes(paper):
    assert step_bytes(compiled(data=2)) == paper


def test_unrolled_layers_need_the_same_slots_and_may_work_at_once(paper):
    unrolled = step_bytes(compiled(layers="unroll"))
    assert (unrolled.slots, unrolled.stash, unrolled.payload) == (paper.slots, paper.stash, paper.payload)
    assert paper.stage < unrolled.stage <= 2 * paper.stage


def test_recomputed_residuals_are_counted_apart(paper):
    assert step_bytes(compiled(remat="full")).slots < paper.slots
