"""The real compilers' programs for accelerators that are not here: memory, copies, messages (pytest -m targets).

One step of a decoder, 1F1B over 4 ranks x tensor 2, 8 microbatches of 4 x 1,024 tokens, compiled in a process of its
own for each target.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxpar.targets import topology

LIMIT_S = 1500  # a compilation takes about a minute on two idle cores
ROOT = Path(__file__).parents[2]
TARGETS = ("v5p:2x2x2", "h100:8")
LAYERS = ("loop", "unroll")
LAYERS_PER_RANK = 2

pytestmark = pytest.mark.targets
needs_layouts = pytest.mark.skipif(
    tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11),
    reason="before jax 0.11 layouts cannot be pinned (the partitioner gathers), and whole pools are turned",
)


@functools.cache
def compiled(target, layers):
    """The worker's report; a test that needs a compiler which is not installed is skipped."""
    wanted = topology._GPU_PLUGINS if target.startswith("h100") else ("libtpu",)
    if not any(map(topology._is_installed, wanted)):
        pytest.skip(f"{target}: {wanted[0]} is not installed; pip install -e '.[targets]'")
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("worker.py")), target, layers],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1]) | {"layers": layers}


@pytest.fixture(params=[(target, layers) for target in TARGETS for layers in LAYERS], ids="-".join)
def report(request):
    return compiled(*request.param)


@needs_layouts
def test_temporaries_are_slots_stash_and_one_stage(report):
    assert report["temp_bytes"] <= 1.3 * report["expected_bytes"]["total"], report


@needs_layouts
def test_no_buffer_is_copied_in_the_tick_loop(report):
    assert not report["copied_buffers"]


@needs_layouts
def test_nothing_larger_than_a_payload_is_copied_in_the_tick_loop(report):
    """But for what one layer alone moves of its own values: the model's affair, and the same without a pipeline."""
    assert report["largest_copy_bytes"] <= max(report["payload_bytes"], report["relayout_bytes"]), report["copies"]


def test_slots_are_read_a_layer_at_a_time(report):
    assert report["largest_load_bytes"] <= report["residual_bytes"]


def test_permutes_are_asynchronous(report):
    assert report["permutes"] and report["asynchronous_permutes"] == report["permutes"]


def test_collectives_are_those_counted_on_paper(report):
    """Two all-reduces over tensor a layer forward and two backward; none but permutes over pipe in the loop."""
    counts = report["collectives"]
    of_layers = 4 * (1 if report["layers"] == "loop" else LAYERS_PER_RANK)
    of_vocabulary = 4  # the lookup; the loss's maximum, its sums, and the gradient of its input
    assert counts["tensor"] == {"all-reduce": {"loop": of_layers + of_vocabulary, "once": 0}}
    assert set(counts) == {"pipe", "tensor"}
    assert set(counts["pipe"]) == {"all-reduce", "collective-permute"} and counts["pipe"]["all-reduce"]["loop"] == 0
