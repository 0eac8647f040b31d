"""The programs that are compared: one device, GPipe by autodiff, ours. All compute loss and gradients of one batch."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from experiments._bench.autodiff import gpipe_by_autodiff, param_specs
from experiments._bench.sizes import num_chunks_of
from jaxpar.accounting.memory import temporary_bytes
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout
from jaxpar.schedule import build
from jaxpar.sharding import param_shardings
from jaxpar.train.grads import make_grad_fn


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A compiled step and its arguments, already where they belong.

    Attributes:
      row: what the result's row says of it: name, schedule, vocabulary, ranks, num_microbatches, temp_bytes (of one
        device), program_bytes (of the compiled text), compile_s; ours also bubble (simulated, unit costs, gradients
        sent after I) and peak_live (most activations of a rank, in microbatches).
      compiled: called with args, gives a tree whose first leaf is the loss.
      args: tuple.
    """

    row: dict
    compiled: Any
    args: tuple

    def run(self):
        """One step, to its end: the loss, float."""
        return finish(self.compiled(*self.args))


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What all programs of one comparison share: model, parameters and batch, as NumPy arrays."""

    size: Any
    num_microbatches: int
    model: Any
    params: Any
    batch: Any


def make_case(size, num_microbatches, seed=0):
    """The Case of a Size: initial parameters, random tokens, every label counted."""
    model = decoder(_config(size), vocab_multiple=size.num_ranks)
    params = jax.device_get(jax.jit(lambda key: init_params(model, key))(jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, size.vocab_size, (num_microbatches, size.seq_len + 1), dtype=np.int32)
    return Case(size, num_microbatches, model, params, {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]})


def make_single(case, accumulated=False):
    """Program on one device: the whole batch in one go, or accumulated microbatch by microbatch in a scan."""
    fn = jax.value_and_grad(lambda params, batch: _loss(case.model, params, batch))
    args = jax.device_put((case.params, case.batch), jax.devices()[0])
    name = "single_accumulated" if accumulated else "single"
    row = {"name": name, "schedule": None, "vocabulary": None, "ranks": 1}
    return _compile(case, row, _accumulate(fn, case.num_microbatches) if accumulated else fn, args)


def make_autodiff(case, remat=False):
    """Program of GPipe by autodiff."""
    mesh = _mesh(case.size.num_ranks)
    fn = gpipe_by_autodiff(case.model, mesh, case.num_microbatches, remat)
    where = jax.tree.map(lambda s: NamedSharding(mesh, s), param_specs(case.params), is_leaf=lambda s: isinstance(s, P))
    args = jax.device_put(case.params, where), jax.device_put(case.batch, NamedSharding(mesh, P()))
    name = "autodiff_remat" if remat else "autodiff"
    row = {"name": name, "schedule": "gpipe", "vocabulary": "pipe", "ranks": case.size.num_ranks}
    return _compile(case, row, fn, args)


def make_jaxpar(case, schedule, vocabulary="ends", layers="unroll"):
    """Program of ours for a schedule by name; interleaved ones get two chunks a rank."""
    step, args = jaxpar_step(case, schedule, vocabulary, layers)
    row = {"name": "jaxpar", "schedule": schedule, "vocabulary": vocabulary, "ranks": case.size.num_ranks}
    timeline = _schedule(case, schedule).simulate()
    on_paper = {"bubble": timeline.bubble, "peak_live": max(timeline.peak_live)}
    return _compile(case, {**row, "layers": layers, **on_paper}, step.run, args)


def jaxpar_step(case, schedule, vocabulary="ends", layers="unroll", remat="none"):
    """(Pipeline, arguments of its `run`): packed parameters, batch, no random key, the plan's tables."""
    size, model = case.size, case.model
    mesh = _mesh(size.num_ranks)
    table = _schedule(case, schedule)
    layout = Layout.of(table, size.num_layers)
    options = {"layers": layers, "vocabulary": vocabulary, "remat": remat}
    step = make_grad_fn(model, table, mesh, layout=layout, **options)
    packed = {**case.params, "layers": layout.pack(case.params["layers"])}
    if layers == "unroll":
        packed["layers"] = layout.apart(packed["layers"])
    whole = jax.tree.map(lambda _: P(), packed)
    params = jax.device_put(packed, param_shardings(mesh, whole, vocabulary))
    batch = jax.device_put(case.batch, NamedSharding(mesh, P("data")))
    tables = jax.device_put(step.tables(), NamedSharding(mesh, P()))
    return step, (params, batch, None, tables)


def _schedule(case, name):
    return build(name, case.size.num_ranks, case.num_microbatches, num_chunks_of(name))


def finish(result):
    """Waits for all of a step's results; the loss, float, which is their first leaf."""
    return float(jax.tree.leaves(jax.block_until_ready(result))[0])


def put_whole(array, like):
    """The array on the devices, placed as another."""
    return jax.device_put(array, like.sharding)


def _config(size):
    return DecoderConfig(
        num_layers=size.num_layers,
        width=size.width,
        num_heads=size.num_heads,
        num_kv_heads=size.num_heads,
        mlp_width=size.mlp_width,
        vocab_size=size.vocab_size,
    )


def _mesh(num_ranks):
    return make_mesh(1, num_ranks, 1, jax.devices()[:num_ranks])


def _loss(model, params, batch):
    x = model.embed(params["embed"], batch["inputs"])
    for index in range(model.num_layers):
        x = model.layer(jax.tree.map(lambda a, i=index: a[i], params["layers"]), x, {}, None)
    nats, tokens = model.loss(model.head(params), x, batch["labels"])
    return nats / tokens


def _accumulate(fn, num_microbatches):
    """The mean over microbatches, all of which have the same number of tokens; summed in float32."""

    def accumulated(params, batch):
        def body(total, microbatch):
            return jax.tree.map(lambda t, u: t + u / num_microbatches, total, fn(params, microbatch)), None

        batch = jax.tree.map(lambda a: a.reshape(num_microbatches, -1, *a.shape[1:]), batch)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), params)
        return jax.lax.scan(body, (jnp.float32(0), zeros), batch)[0]

    return accumulated


def _compile(case, row, fn, args):
    start = time.perf_counter()
    compiled = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args).compile()
    row = {
        **row,
        "num_microbatches": case.num_microbatches,
        "compile_s": time.perf_counter() - start,
        "temp_bytes": temporary_bytes(compiled),
        "program_bytes": len(compiled.as_text()),
    }
    return Program(row, compiled, args)
