"""One tick of the pipeline: the actions that the plan's row names, then one hop of the payloads.

Every function here runs inside ``shard_map`` with ``data`` and ``pipe`` manual; ``tensor`` belongs to the partitioner.
A rank holds its state in one dict:

  act, grad                 received (or local) activations and gradients, [slots + 1, ...]; the last slot is the spare
  FR FI FW RI RW IW         pools of the split, tuples of [slots, layers, ...]
  sent_act, sent_grad       what this tick's F and I hand to the messages
  grads                     {"embed", "layers", "head"}, float32
  nats, aux                 float32 sums

Columns of the plan are read as ``at["F.in"]``; see `jaxpar.schedule.plan.Plan`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.pipeline.loops import load, over_layers, rows_of, run_once, store
from jaxpar.pipeline.split import Split
from jaxpar.pipeline.vocabulary import VocabularyEmbedding, lookup_grad, split_lookup, split_loss
from jaxpar.schedule.messages import CHANNELS

PIPE, DATA = "pipe", "data"


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What is fixed when the program is compiled."""

    columns: dict
    patterns: tuple
    split: Split
    embed: Callable | None
    loss: Callable
    tied: tuple
    vocabulary: str
    last_rank: int  # the owner of the last stage
    unroll: dict  # keywords of over_layers
    num_rows: int  # of a microbatch on one data rank
    train: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What a step is given and does not change; the arrays are this rank's own."""

    params: Any
    batch: Any
    key: Any  # the step's random key, or None
    first: jax.Array  # int32 [V]: row where a chunk's layers begin
    count: jax.Array  # int32 [V]: layers of a chunk
    layer_ids: jax.Array  # int32 [N]: global layer index of a row
    nat_weight: jax.Array  # float32: what a nat counts in the objective
    aux_weight: jax.Array


def tick(program, inputs, row, pattern, state):
    """The state after one tick.

    Args:
      row: int32 [C], this rank's row of the plan's table.
      pattern: int32 [4], the tick's message pattern of each channel, the same on all ranks.
    """
    at = {name: row[column] for name, column in program.columns.items()}

    def act(kind, touches, body, state):
        columns = {name: value for name, value in at.items() if name.startswith(kind + ".")}
        touched = {name: state[name] for name in touches}
        with jax.named_scope(kind):
            out = run_once(columns[f"{kind}.run"], lambda c, at: body(program, inputs, at, c), touched, columns)
        return {**state, **out}

    kept = ("FR", "FI", "FW") if program.train else ()
    state = act("E", ("act",), _embed, state)
    state = act("F", ("act", "sent_act", "aux", *kept), _forward, state)
    state = act("H", ("act", "grad", "grads", "nats"), _head, state)
    if program.train:
        if program.split.pools["RI"] or program.split.pools["RW"]:
            state = act("R", ("FR", "FI", "FW", "RI", "RW"), _recompute, state)
        state = act("I", ("grad", "sent_grad", "FI", "FW", "RI", "RW", "IW", "grads"), _input_grad, state)
        if program.embed is not None:
            state = act("G", ("grad", "grads"), _embed_grad, state)
    state = _messages(program, at, pattern, state)
    if program.train:
        state = act("W", ("FW", "RW", "IW", "grads"), _weight_grad, state)
    return state


def _embed(program, inputs, at, c):
    tokens = rows_of(inputs.batch["inputs"], at["E.microbatch"], program.num_rows)
    if program.embed is None:
        x = tokens
    elif program.vocabulary == "pipe":
        x = split_lookup(program.embed, inputs.params["embed"], tokens, PIPE)
    else:
        x = program.embed(inputs.params["embed"], tokens)
    return {"act": store(c["act"], x, at["E.out"])}


def _layer_inputs(inputs, program, row, microbatch):
    """(parameters, side inputs, random keys of the rows) of one layer and one microbatch."""
    p = load(inputs.params["layers"], row)
    side = rows_of(inputs.batch["side"], microbatch, program.num_rows)
    if inputs.key is None:
        return p, side, None
    key = jax.random.fold_in(inputs.key, inputs.layer_ids[row])
    local_rows = jax.tree.leaves(inputs.batch["inputs"])[0].shape[0]
    first_row = lax.axis_index(DATA) * local_rows + microbatch * program.num_rows
    return p, side, jax.vmap(jax.random.fold_in, (None, 0))(key, first_row + jnp.arange(program.num_rows))


def _forward(program, inputs, at, c):
    chunk, microbatch = at["F.chunk"], at["F.microbatch"]
    names = ("FR", "FI", "FW") if program.train else ()

    def layer(l, state):
        x, aux, pools = state
        args = _layer_inputs(inputs, program, inputs.first[chunk] + l, microbatch)
        if not program.train:
            x, more = program.split.evaluate(args[0], x, *args[1:])
            return x, aux + more, pools
        x, more, kept = program.split.forward(args[0], x, *args[1:])
        return x, aux + more, {name: store(pools[name], kept[name], at[f"F.{name}"], l) for name in names}

    start = load(c["act"], at["F.in"]), c["aux"], {name: c[name] for name in names}
    x, aux, pools = over_layers(inputs.count[chunk], layer, start, **program.unroll)
    return {"act": store(c["act"], x, at["F.out"]), "sent_act": x, "aux": aux, **pools}


def _head(program, inputs, at, c):
    labels = rows_of(inputs.batch["labels"], at["H.microbatch"], program.num_rows)
    y = load(c["act"], at["H.in"])
    grads = c["grads"]
    tables = {name: inputs.params["embed"][name] for name in program.tied}
    p_head = {**inputs.params["head"], **tables} if tables else inputs.params["head"]
    if not program.train:
        nats = _loss_alone(program, p_head, y, labels)
        return {**c, "nats": c["nats"] + nats}
    if program.vocabulary == "pipe":
        y = _broadcast(y, program.last_rank)
        so_far = {**grads["head"], **{name: grads["embed"][name] for name in tables}}
        nats, _, dy, d_head = split_loss(
            program.loss, p_head, y, labels, inputs.nat_weight, so_far, program.last_rank, PIPE
        )
    else:
        nats, vjp, _ = jax.vjp(lambda p, y: program.loss(p, y, labels), p_head, y, has_aux=True)
        d_head, dy = vjp(inputs.nat_weight.astype(nats.dtype))
        so_far = {**grads["head"], **{name: grads["embed"][name] for name in tables}} if tables else grads["head"]
        d_head = _add(so_far, d_head)
    if tables:
        embed = {**grads["embed"], **{name: d_head[name] for name in tables}}
        head = {name: value for name, value in d_head.items() if name not in tables}
        grads = {**grads, "embed": embed, "head": head}
    else:
        grads = {**grads, "head": d_head}
    return {**c, "grad": store(c["grad"], dy, at["H.out"]), "grads": grads, "nats": c["nats"] + nats}


def _loss_alone(program, p_head, y, labels):
    if program.vocabulary != "pipe":
        return program.loss(p_head, y, labels)[0]
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), p_head)
    y = _broadcast(y, program.last_rank)
    return split_loss(program.loss, p_head, y, labels, jnp.float32(0), zeros, program.last_rank, PIPE)[0]


def _recompute(program, inputs, at, c):
    chunk, microbatch = at["R.chunk"], at["R.microbatch"]

    def layer(l, pools):
        p, side, keys = _layer_inputs(inputs, program, inputs.first[chunk] + l, microbatch)
        kept = {name: load(c[name], at[f"R.{name}"], l) for name in ("FR", "FI", "FW")}
        made = program.split.recompute(p, side, keys, kept)
        return {name: store(pools[name], made[name], at[f"R.{name}"], l) for name in ("RI", "RW")}

    pools = over_layers(inputs.count[chunk], layer, {name: c[name] for name in ("RI", "RW")}, **program.unroll)
    return {**c, **pools}


def _input_grad(program, inputs, at, c):
    chunk, microbatch = at["I.chunk"], at["I.microbatch"]

    def layer(l, state):
        ct, stash, grads = state
        row = inputs.first[chunk] + l
        p, side, keys = _layer_inputs(inputs, program, row, microbatch)
        kept = {name: load(c[name], at[f"I.{name}"], l) for name in ("FI", "FW", "RI", "RW")}
        dx, made, early = program.split.input_grad(p, side, keys, ct, inputs.aux_weight, kept)
        return dx, store(stash, made["IW"], at["I.IW"], l), _accumulate(grads, early, row)

    start = load(c["grad"], at["I.in"]), c["IW"], c["grads"]["layers"]
    dx, stash, layers = over_layers(inputs.count[chunk], layer, start, reverse=True, **program.unroll)
    grads = {**c["grads"], "layers": layers}
    return {**c, "grad": store(c["grad"], dx, at["I.out"]), "sent_grad": dx, "IW": stash, "grads": grads}


def _weight_grad(program, inputs, at, c):
    chunk, microbatch = at["W.chunk"], at["W.microbatch"]

    def layer(l, grads):
        row = inputs.first[chunk] + l
        p, side, keys = _layer_inputs(inputs, program, row, microbatch)
        kept = {name: load(c[name], at[f"W.{name}"], l) for name in ("FW", "RW", "IW")}
        late = program.split.weight_grad(p, side, keys, inputs.aux_weight, kept)
        return _accumulate(grads, late, row)

    layers = over_layers(inputs.count[chunk], layer, c["grads"]["layers"], **program.unroll)
    return {**c, "grads": {**c["grads"], "layers": layers}}


def _embed_grad(program, inputs, at, c):
    tokens = rows_of(inputs.batch["inputs"], at["G.microbatch"], program.num_rows)
    dx = load(c["grad"], at["G.in"])
    p_embed, so_far = inputs.params["embed"], c["grads"]["embed"]
    if program.vocabulary == "pipe":
        so_far = lookup_grad(program.embed, p_embed, tokens, _broadcast(dx, 0), so_far, PIPE)
    elif isinstance(program.embed, VocabularyEmbedding):
        so_far = lookup_grad(program.embed, p_embed, tokens, dx, so_far)
    else:
        _, vjp = jax.vjp(lambda p: program.embed(p, tokens), p_embed)
        so_far = _add(so_far, vjp(dx)[0])
    return {**c, "grads": {**c["grads"], "embed": so_far}}


def _broadcast(tree, owner):
    """The owner's arrays on all ranks; what the others hold is never read, be it finite or not."""
    mine = lax.axis_index(PIPE) == owner

    def leaf(a):  # float32: a narrower reduction over a manual axis aborts XLA on CPU; one summand is exact
        return lax.psum(jnp.where(mine, a, 0).astype(jnp.float32), PIPE).astype(a.dtype)

    return jax.tree.map(leaf, tree)


def _add(total, update):
    """float32 sums; an update without a gradient (an integer parameter) changes nothing."""
    return jax.tree.map(lambda t, u: t if u.dtype == jax.dtypes.float0 else t + u.astype(t.dtype), total, update)


def _accumulate(grads, updates, row):
    """Adds the gradients of one layer, leaf index -> array, to row ``row`` of the stacked float32 gradients."""
    leaves, structure = jax.tree.flatten(grads)
    for index, update in updates.items():
        leaves[index] = store(leaves[index], load(leaves[index], row) + update.astype(jnp.float32), row)
    return jax.tree.unflatten(structure, leaves)


def _messages(program, at, pattern, state):
    """One hop on every channel that the schedule uses."""
    out = dict(state)
    for number, channel in enumerate(CHANNELS):
        patterns, buffer = program.patterns[number], channel[:-2]
        if len(patterns) == 1 or (buffer == "grad" and not program.train):
            continue
        branches = [lambda x: x]
        branches += [lambda x, p=pairs: jax.tree.map(lambda a: lax.ppermute(a, PIPE, p), x) for pairs in patterns[1:]]
        with jax.named_scope(f"send_{channel}"):
            arrived = lax.switch(pattern[number], branches, state[f"sent_{buffer}"])
            out[buffer] = store(out[buffer], arrived, at[f"{channel}.recv"])
    return out
