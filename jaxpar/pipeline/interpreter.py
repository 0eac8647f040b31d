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
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.pipeline.loops import load, rows_of, run_once, store
from jaxpar.pipeline.reduce import psum
from jaxpar.pipeline.split import Split
from jaxpar.pipeline.vocabulary import VocabularyEmbedding, lookup_grad, split_lookup, split_loss
from jaxpar.schedule.messages import CHANNELS

PIPE, DATA, TENSOR = "pipe", "data", "tensor"


class Depths(NamedTuple):
    """Of each chunk: the row where its layers begin, and the bounds of their number over the ranks."""

    first: tuple
    least: tuple
    most: tuple


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
    depths: Depths
    unroll: bool
    num_rows: int  # of a microbatch on one data rank
    pin: bool  # keep what the pools hold row-major
    exact_pairs: bool  # a tick's messages are permutes of its own senders and receivers; else of all there ever are
    train: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What a step is given and does not change; the arrays are this rank's own."""

    params: Any  # "layers": leaves [N, ...]; unrolled, a list of N trees
    batch: Any
    key: Any  # the step's random key, or None
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
            for chunk, flag in _cases(program, kind, columns):
                args = (program, inputs) if chunk is None else (program, inputs, chunk)
                touched = run_once(flag, lambda c, at, args=args: _chained(body(*args, at, c)), touched, columns)
        return {**state, **touched}

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


def _chained(carry):
    """Slots that an action only reads look the same before and after it: without this, XLA copies them."""
    return {**carry, **{name: lax.optimization_barrier(carry[name]) for name in ("act", "grad") if name in carry}}


def _cases(program, kind, columns):
    """(chunk, flag) of the loops that may run an action; chunk None where it has none.

    Looping over layers, a chunk is a traced number and one loop serves all. Unrolled, every chunk has a loop of its
    own, so that its layers' rows are known when the program is compiled: parameters are then read where they lie.
    """
    run = columns[f"{kind}.run"]
    if f"{kind}.chunk" not in columns:
        return [(None, run)]
    chunk = columns[f"{kind}.chunk"]
    if not program.unroll:
        return [(chunk, run)]
    return [(v, run * (chunk == v).astype(run.dtype)) for v in range(len(program.depths.first))]


def _over_layers(program, inputs, chunk, at, layer, carry, reverse=False):
    """``carry = layer(l, row, at, carry)`` for the layers of a rank's chunk, the last one first where ``reverse``."""
    if not program.unroll:
        # Not at["F.chunk"] but the loop's own copy: see run_once.
        chunk = next(value for name, value in at.items() if name.endswith(".chunk"))
        count, first = inputs.count[chunk], jnp.asarray(program.depths.first, jnp.int32)[chunk]

        def body(i, carry):
            l = count - 1 - i if reverse else i
            return layer(l, first + l, at, carry)

        return lax.fori_loop(0, count, body, carry)
    first, least, most = (values[chunk] for values in program.depths)
    for l in reversed(range(most)) if reverse else range(most):
        if l < least:
            carry = layer(l, first + l, at, carry)
        else:  # only some ranks have this layer
            flag = (inputs.count[chunk] > l).astype(jnp.int32)
            carry = run_once(flag, lambda c, at, l=l: layer(l, first + l, at, c), carry, at)
    return carry


def _embed(program, inputs, at, c):
    tokens = rows_of(inputs.batch["inputs"], at["E.microbatch"], program.num_rows)
    if program.embed is None:
        x = tokens
    elif program.vocabulary == "pipe":
        x = split_lookup(program.embed, inputs.params["embed"], tokens, PIPE)
    else:
        x = program.embed(inputs.params["embed"], tokens)
    return {"act": store(c["act"], x, at["E.out"])}


def _layer_inputs(program, inputs, row, microbatch):
    """(parameters, side inputs, random keys of the rows) of one layer and one microbatch."""
    layers = inputs.params["layers"]
    p = layers[row] if program.unroll else load(layers, row)
    side = rows_of(inputs.batch["side"], microbatch, program.num_rows)
    if inputs.key is None:
        return p, side, None
    key = jax.random.fold_in(inputs.key, inputs.layer_ids[row])
    local_rows = jax.tree.leaves(inputs.batch["inputs"])[0].shape[0]
    first_row = lax.axis_index(DATA) * local_rows + microbatch * program.num_rows
    return p, side, jax.vmap(jax.random.fold_in, (None, 0))(key, first_row + jnp.arange(program.num_rows))


def _forward(program, inputs, chunk, at, c):
    names = ("FR", "FI", "FW") if program.train else ()

    def layer(l, row, at, state):
        x, aux, pools = state
        p, side, keys = _layer_inputs(program, inputs, row, at["F.microbatch"])
        if not program.train:
            x, more = program.split.evaluate(p, x, side, keys)
            return x, aux + more, pools
        x, more, kept = program.split.forward(p, x, side, keys)
        return (
            x,
            aux + more,
            {name: store(pools[name], kept[name], at[f"F.{name}"], l, pin=program.pin) for name in names},
        )

    start = load(c["act"], at["F.in"]), c["aux"], {name: c[name] for name in names}
    x, aux, pools = _over_layers(program, inputs, chunk, at, layer, start)
    return {"act": store(c["act"], x, at["F.out"]), "sent_act": x, "aux": aux, **pools}


def _head(program, inputs, at, c):
    labels = rows_of(inputs.batch["labels"], at["H.microbatch"], program.num_rows)
    y = load(c["act"], at["H.in"])
    p_head = with_tied(inputs.params["head"], inputs.params["embed"], program.tied)
    if not program.train:
        nats = _loss_alone(program, p_head, y, labels)
        return {**c, "nats": c["nats"] + nats}
    grads = c["grads"]
    so_far = with_tied(grads["head"], grads["embed"], program.tied)
    if program.vocabulary == "pipe":
        y = _broadcast(y, program.last_rank)
        nats, _, dy, d_head = split_loss(
            program.loss, p_head, y, labels, inputs.nat_weight, so_far, program.last_rank, PIPE
        )
    else:
        nats, vjp, _ = jax.vjp(lambda p, y: program.loss(p, y, labels), p_head, y, has_aux=True)
        d_head, dy = vjp(inputs.nat_weight.astype(nats.dtype))
        d_head = _add(so_far, d_head)
    if program.tied:
        embed = {**grads["embed"], **{name: d_head[name] for name in program.tied}}
        grads = {**grads, "embed": embed}
        d_head = {name: value for name, value in d_head.items() if name not in program.tied}
    grads = {**grads, "head": d_head}
    return {**c, "grad": store(c["grad"], dy, at["H.out"]), "grads": grads, "nats": c["nats"] + nats}


def with_tied(head, embed, tied):
    """The head's parameters (or gradients) with the embedding's tables that it shares."""
    return {**head, **{name: embed[name] for name in tied}} if tied else head


def _loss_alone(program, p_head, y, labels):
    if program.vocabulary != "pipe":
        return program.loss(p_head, y, labels)[0]
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), p_head)
    y = _broadcast(y, program.last_rank)
    return split_loss(program.loss, p_head, y, labels, jnp.float32(0), zeros, program.last_rank, PIPE)[0]


def _recompute(program, inputs, chunk, at, c):
    def layer(l, row, at, pools):
        p, side, keys = _layer_inputs(program, inputs, row, at["R.microbatch"])
        kept = {name: load(c[name], at[f"R.{name}"], l, pin=program.pin) for name in ("FR", "FI", "FW")}
        made = program.split.recompute(p, side, keys, kept)
        return {name: store(pools[name], made[name], at[f"R.{name}"], l, pin=program.pin) for name in ("RI", "RW")}

    pools = _over_layers(program, inputs, chunk, at, layer, {name: c[name] for name in ("RI", "RW")})
    return {**c, **pools}


def _input_grad(program, inputs, chunk, at, c):
    def layer(l, row, at, state):
        ct, stash, grads = state
        p, side, keys = _layer_inputs(program, inputs, row, at["I.microbatch"])
        kept = {name: load(c[name], at[f"I.{name}"], l, pin=program.pin) for name in ("FI", "FW", "RI", "RW")}
        dx, made, early = program.split.input_grad(p, side, keys, ct, inputs.aux_weight, kept)
        return dx, store(stash, made["IW"], at["I.IW"], l, pin=program.pin), _accumulate(program, grads, early, row)

    start = load(c["grad"], at["I.in"]), c["IW"], c["grads"]["layers"]
    dx, stash, layers = _over_layers(program, inputs, chunk, at, layer, start, reverse=True)
    grads = {**c["grads"], "layers": layers}
    return {**c, "grad": store(c["grad"], dx, at["I.out"]), "sent_grad": dx, "IW": stash, "grads": grads}


def _weight_grad(program, inputs, chunk, at, c):
    def layer(l, row, at, grads):
        p, side, keys = _layer_inputs(program, inputs, row, at["W.microbatch"])
        kept = {name: load(c[name], at[f"W.{name}"], l, pin=program.pin) for name in ("FW", "RW", "IW")}
        late = program.split.weight_grad(p, side, keys, inputs.aux_weight, kept)
        return _accumulate(program, grads, late, row)

    layers = _over_layers(program, inputs, chunk, at, layer, c["grads"]["layers"])
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
        return psum(jnp.where(mine, a, 0).astype(jnp.float32), PIPE).astype(a.dtype)

    return jax.tree.map(leaf, tree)


def _add(total, update):
    """float32 sums; an update without a gradient (an integer parameter) changes nothing."""
    return jax.tree.map(lambda t, u: t if u.dtype == jax.dtypes.float0 else t + u.astype(t.dtype), total, update)


def _accumulate(program, grads, updates, row):
    """Adds the gradients of one layer, leaf index -> array, to row ``row`` of the float32 gradients."""
    leaves, structure = jax.tree.flatten(grads[row] if program.unroll else grads)
    for index, update in updates.items():
        update = update.astype(jnp.float32)
        if program.unroll:
            leaves[index] = leaves[index] + update
        else:
            leaves[index] = store(leaves[index], load(leaves[index], row) + update, row)
    layers = jax.tree.unflatten(structure, leaves)
    return [*grads[:row], layers, *grads[row + 1 :]] if program.unroll else layers


def _messages(program, at, pattern, state):
    """One hop on every channel that the schedule uses.

    With exact pairs a rank waits for no payload that it does not need, but a permute inside a branch of a switch has
    nothing to hide behind: compilers make it synchronous. The other way is one permute of all pairs in every tick;
    it runs beside the tick's W, and where nobody sends, what arrives goes to the spare slot.
    """
    out = dict(state)
    for number, channel in enumerate(CHANNELS):
        patterns, buffer = program.patterns[number], channel[:-2]
        if len(patterns) == 1 or (buffer == "grad" and not program.train):
            continue
        sent = state[f"sent_{buffer}"]
        with jax.named_scope(f"send_{channel}"):
            if program.exact_pairs:
                hops = [lambda x: x, *(functools.partial(_hop, pairs) for pairs in patterns[1:])]
                arrived = lax.switch(pattern[number], hops, sent)
            else:
                arrived = _hop(sorted({pair for pairs in patterns for pair in pairs}), sent)
            out[buffer] = store(out[buffer], arrived, at[f"{channel}.recv"])
    return out


def _hop(pairs, payload):
    return jax.tree.map(lambda a: lax.ppermute(a, PIPE, pairs), payload)
