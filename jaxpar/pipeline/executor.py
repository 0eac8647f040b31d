"""The pipeline as one program: a schedule's plan, interpreted tick by tick inside ``shard_map``.

``value_and_grad`` is the whole interface. The mesh axes ``data`` and ``pipe`` are manual, ``tensor`` is left to XLA's
partitioner: a layer is written as if for one device.

Source of the combination: Narayanan et al. 2021, arXiv:2104.04473 (data x pipe x tensor); the single-program executor
is ours.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxpar.pipeline.buffers import stack, unstack, zeros_at_start
from jaxpar.pipeline.checks import check_arguments, check_batch, check_params, check_tables, count_layers
from jaxpar.pipeline.interpreter import DATA, PIPE, Depths, Inputs, Program, tick
from jaxpar.pipeline.layout import Layout
from jaxpar.pipeline.reduce import psum
from jaxpar.pipeline.remat import check_names, checkpointed
from jaxpar.pipeline.split import split_layer
from jaxpar.pipeline.totals import count_tokens, output_of, reduced
from jaxpar.schedule.plan import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled-once function of (params, batch, rng); ``value_and_grad`` makes it.

    Attributes:
      plan, layout: the tables it interprets and where the layers live.
      run: jitted (params, batch, rng, tables) -> (Output, grads): what ``__call__`` calls. Other tables of the same
        shape (``jaxpar.schedule.unify``) run another schedule without compiling anew.
    """

    plan: Plan
    layout: Layout
    run: Any

    def __call__(self, params, batch, rng=None):
        """(Output, grads). See ``value_and_grad``."""
        return self.run(params, batch, rng, self.tables())

    def tables(self, plan=None):
        """The plan as arrays for ``run``."""
        plan = plan or self.plan
        return {
            "table": plan.table,
            "pattern": plan.pattern,
            "num_ticks": np.int32(plan.num_ticks),
            "count": self.layout.count,
            "layer_ids": self.layout.rows,
        }


def value_and_grad(
    layer,
    loss,
    schedule,
    mesh,
    *,
    embed=None,
    param_specs=None,
    remat="none",
    layers="loop",
    vocabulary="ends",
    tied=(),
    layout=None,
    packed=False,
    train=True,
    grad_specs=None,
):
    """Loss and gradients of a model split over the mesh, by the given schedule.

    Args:
      layer: (p, x, side, rng) -> x, or (x, aux scalar). p is one layer's parameters, x a pytree of float arrays with a
        microbatch's rows leading, side a dict of arrays with the same rows, rng a key array [rows] or None.
      loss: (p_head, y, labels) -> (sum of nats, number of counted tokens). The number, int or a float sum of weights,
        may depend on labels only.
      schedule: jaxpar.schedule.Schedule, or a Plan with a vocabulary, whose num_ranks is the mesh's ``pipe``.
      mesh: jax.sharding.Mesh with the axes ``data``, ``pipe`` and ``tensor``.
      embed: (p_embed, inputs) -> x; None: the inputs are x.
      param_specs: like params, PartitionSpecs over ``tensor`` alone; a layer's without the stacked dim. None: whole.
      remat: what a layer's backward recomputes: "none", "dots" (all but its matrix products), "full", or "names:a,b"
        (all but what the layer marks by these names). R runs where the schedule has it, else right before I.
      layers: "loop" over a stage's layers, or "unroll".
      vocabulary: "ends": embed on the first rank, loss on the last. "pipe": both split over all ranks along the
        vocabulary; embed must be a VocabularyEmbedding and loss a VocabularyLoss. Pad the tables' rows to a multiple
        of the ranks and say where padding begins: VocabularyLoss(vocab_size=...).
      tied: names of entries of params["embed"] that ``loss`` finds in its p_head too: one weight, one gradient.
      layout: Layout; default: as even as the number of stacked layers allows.
      packed: params and grads have their layers packed (``Layout.pack``), so that nothing moves between steps; for
        unrolled stages better still apart (``Layout.apart``), so that nothing is copied either.
      train: False: no gradients, nothing is kept for them; the schedule needs forwards only, and grads is None.
      grad_specs: like packed params, PartitionSpecs over ``data`` and ``pipe`` alone, the parameters' own with more
        axes: the gradients come split so, each summed right into its parts (a reduce-scatter). None: whole over data.

    Returns:
      Pipeline: (params, batch, rng=None) -> (Output, grads). params {"embed", "layers", "head"}, layers stacked by
      global layer index; embed and head may be missing. batch {"inputs", "labels", "side"}, rows leading, in the order
      of the global batch; side may be missing. rng: the step's key; a layer's row gets it with the global layer and row
      folded in. grads: structure and sharding of params (or grad_specs), float32.

    Raises:
      SettingError: the schedule, mesh, layout or options do not fit together.
      TypeError: a layer whose output is not like its input (at trace time).
    """
    schedule = check_arguments(schedule, mesh, remat, layers, vocabulary, embed, loss, tied, layout, packed, grad_specs)
    if not isinstance(schedule, Plan):
        schedule = (schedule if remat == "none" else schedule.with_recompute()).lower(recompute=True)
    options = _Options(
        layer=layer,
        remat=remat,
        loss=loss,
        embed=embed,
        tied=tuple(tied),
        vocabulary=vocabulary,
        unroll=layers == "unroll",
        train=train,
        mesh=mesh,
        param_specs=param_specs,
        grad_specs=grad_specs,
    )
    if layout is not None:
        return Pipeline(schedule, layout, jax.jit(functools.partial(_run, options, schedule, layout, packed)))
    return _LazyPipeline(schedule, options, packed)


class _LazyPipeline:
    """A Pipeline whose even layout waits for the parameters, which tell the number of layers."""

    def __init__(self, plan, options, packed):
        self.plan, self._options, self._packed, self._made = plan, options, packed, {}

    def __call__(self, params, batch, rng=None):
        """(Output, grads). See ``value_and_grad``."""
        return self.bind(count_layers(params))(params, batch, rng)

    def bind(self, num_layers):
        """The Pipeline for a number of layers."""
        if num_layers not in self._made:
            layout = Layout.of(self.plan, num_layers)
            run = jax.jit(functools.partial(_run, self._options, self.plan, layout, self._packed))
            self._made[num_layers] = Pipeline(self.plan, layout, run)
        return self._made[num_layers]


@dataclasses.dataclass(frozen=True, eq=False)
class _Options:
    layer: Any
    remat: str
    loss: Any
    embed: Any
    tied: tuple
    vocabulary: str
    unroll: bool
    train: bool
    mesh: Any
    param_specs: Any
    grad_specs: Any


def _run(options, plan, layout, packed, params, batch, rng, tables):
    """The jitted whole: pack, shard_map, unpack."""
    batch = {"side": {}, **batch}
    given = params
    params = {"embed": {}, "head": {}, **params}
    check_params(params, layout, packed, options.unroll, options.tied)
    check_batch(batch, options.mesh.shape[DATA], plan.num_microbatches)
    if options.vocabulary == "pipe":
        check_tables(params, options.embed.table, options.loss.table, options.tied, plan.num_ranks)
    if not packed:
        params = {**params, "layers": layout.pack(params["layers"])}
    specs = _manual_specs(options, params)
    grad_specs = specs if options.grad_specs is None else {name: options.grad_specs.get(name, {}) for name in specs}
    if rng is not None and not jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.wrap_key_data(rng)
    mapped = jax.shard_map(
        functools.partial(_step, options, plan, layout, specs, grad_specs),
        mesh=options.mesh,
        axis_names={DATA, PIPE},
        in_specs=(specs, jax.tree.map(lambda _: P(DATA), batch), P(), _table_specs(tables)),
        out_specs=(P(), grad_specs if options.train else P()),
        check_vma=False,
    )
    output, grads = mapped(params, batch, rng, tables)
    if options.train and not packed:
        grads = {**grads, "layers": layout.unpack(grads["layers"])}
    return output, {name: grads[name] for name in given} if options.train else None


def _manual_specs(options, params):
    """Over ``pipe`` alone: layers split, the rest whole, but for a vocabulary that is split over the ranks."""
    specs = {name: jax.tree.map(lambda _: P(), params[name]) for name in ("embed", "head")}
    specs["layers"] = jax.tree.map(lambda _: P(PIPE), params["layers"])
    if options.vocabulary == "pipe":
        specs["embed"] = {**specs["embed"], options.embed.table: P(PIPE)}
        if options.loss.table not in options.tied:
            specs["head"] = {**specs["head"], options.loss.table: P(PIPE)}
    return specs


def _table_specs(tables):
    by_rank = {"table": P(None, PIPE), "count": P(PIPE), "layer_ids": P(PIPE)}
    return {name: by_rank.get(name, P()) for name in tables}


def _step(options, plan, layout, specs, grad_specs, params, batch, key, tables):
    """One rank's step, inside shard_map."""
    x, split = _trace_layer(options, params, batch, key, plan)
    num_rows = jax.tree.leaves(batch["inputs"])[0].shape[0] // plan.num_microbatches
    num_tokens = psum(count_tokens(options, params, batch), DATA)
    num_data = options.mesh.shape[DATA]
    inputs = Inputs(
        params={**params, "layers": unstack(params["layers"])} if options.unroll else params,
        batch=batch,
        key=key,
        count=tables["count"][0],
        layer_ids=tables["layer_ids"][0],
        nat_weight=jnp.where(num_tokens > 0, 1.0 / num_tokens, 0.0).astype(jnp.float32),
        aux_weight=jnp.float32(1.0 / (plan.num_microbatches * num_data)) * (num_tokens > 0),
    )
    accelerated = _is_accelerated(options.mesh)
    program = Program(
        columns=plan.columns,
        patterns=plan.patterns,
        split=split,
        embed=options.embed,
        loss=options.loss,
        tied=options.tied,
        vocabulary=options.vocabulary,
        last_rank=layout.last_rank,
        depths=Depths(layout.first, *(tuple(f(axis=0).tolist()) for f in (layout.count.min, layout.count.max))),
        unroll=options.unroll,
        num_rows=num_rows,
        pin=accelerated,
        exact_pairs=not accelerated,
        train=options.train,
    )

    def body(t, state):
        row = lax.dynamic_index_in_dim(tables["table"], t, 0, keepdims=False)[0].astype(jnp.int32)
        pattern = lax.dynamic_index_in_dim(tables["pattern"], t, 0, keepdims=False)
        return tick(program, inputs, row, pattern, state)

    state = lax.fori_loop(0, tables["num_ticks"], body, zeros_at_start(options, plan, layout, split, params, x))
    output = output_of(options, inputs, num_tokens, state)
    if not options.train:
        return output, None
    grads = state["grads"]
    if options.unroll:
        grads = {**grads, "layers": stack(grads["layers"], like=params["layers"])}
    return output, reduced(options, grads, specs, grad_specs)


def _is_accelerated(mesh):
    """Whether layouts and asynchronous messages matter."""
    return mesh.devices.flat[0].platform != "cpu"


def _trace_layer(options, params, batch, key, plan):
    """(what x looks like, the layer's Split), from shapes alone."""
    num_rows = jax.tree.leaves(batch["inputs"])[0].shape[0] // plan.num_microbatches

    def rows(tree):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((num_rows, *a.shape[1:]), a.dtype), tree)

    layers = params["layers"][0] if isinstance(params["layers"], list) else params["layers"]
    p = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), layers)
    x = rows(batch["inputs"])
    if options.embed is not None:
        x = jax.eval_shape(options.embed, params["embed"], x)
    rng = None if key is None else jax.eval_shape(lambda k: jax.random.split(k, num_rows), key)
    args = p, x, rows(batch["side"]), rng
    check_names(options.layer, options.remat, *args)
    return x, split_layer(checkpointed(options.layer, options.remat), *args)
