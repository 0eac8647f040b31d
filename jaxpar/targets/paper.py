"""The bytes that a step should need, from its plan: slots, stash, and what one stage works with.

The number of slots is the plan's, on paper. What a slot takes on one device depends on how the partitioner splits it
over ``tensor``, and what a stage works with on the target's own kernels: for these one layer is compiled alone, its
forward, recompute, input gradient, weight gradient, and the head.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.accounting.memory import bytes_per_device, temporary_bytes
from jaxpar.pipeline.remat import checkpointed
from jaxpar.pipeline.split import POOLS, split_layer
from jaxpar.targets.compile import compile_for, placed
from jaxpar.targets.moves import largest, moves


@dataclasses.dataclass(frozen=True)
class StepBytes:
    """Bytes on one device, of the rank that needs most.

    Attributes:
      payload: one microbatch's activation, what a message carries.
      slots: received and sent activations and gradients, and the residuals from F to I and W.
      stash: what crosses from I to W.
      stage: temporaries and results of the head, or of the hungriest action: on one layer where a loop goes over them,
        on all of a stage's where they are unrolled.
      residual: the largest array that is kept for one layer and microbatch.
      relayout: the largest copy in the programs of one layer alone: what its own mathematics moves.
      buffers: shapes on one device of what lives from tick to tick: slots, and stacked parameters and gradients.
    """

    payload: int
    slots: int
    stash: int
    stage: int
    residual: int
    relayout: int
    buffers: tuple

    @property
    def total(self):
        """What the program's temporaries are held against."""
        return self.slots + self.stash + self.stage


def step_bytes(step):
    """StepBytes of a `jaxpar.targets.compile.Step`."""
    parts, pools, x = _parts(step)
    plan, depth = step.pipeline.plan, int(step.pipeline.layout.count.max())
    payload = bytes_per_device(x)
    of_pool = {name: max(1, plan.num_slots[name]) * depth * bytes_per_device(pools[name]) for name in POOLS}
    # Each buffer of payloads has a spare slot, and F and I each hand one to the messages.
    payloads = plan.num_slots["act"] + plan.num_slots["grad"] + 4
    copies = [largest(moves(part.as_text(), in_loop=False), "copy") for part in parts]
    *layer, head = [temporary_bytes(part) + part.memory_analysis().output_size_in_bytes for part in parts]
    at_once = depth if step.layers == "unroll" else 1
    return StepBytes(
        payload=payload,
        slots=payloads * payload + sum(of_pool[name] for name in POOLS if name != "IW"),
        stash=of_pool["IW"],
        stage=max(at_once * max(layer), head),
        residual=max(map(bytes_per_device, jax.tree.leaves(pools)), default=0),
        relayout=max(copies),
        buffers=_buffers(step, pools, x, depth),
    )


def _buffers(step, pools, x, depth):
    num_slots = step.pipeline.plan.num_slots
    shapes = [(num_slots[name] + 1, *x.shape) for name in ("act", "grad")]
    for name in POOLS:
        shapes += [(max(1, num_slots[name]), depth, *_local(a)) for a in jax.tree.leaves(pools[name])]
    return (*shapes, *map(_local, jax.tree.leaves(step.params["layers"])))


def _local(a):
    return a.sharding.shard_shape(a.shape)


def _parts(step):
    """(programs of one layer and the head, pools as placed ShapeDtypeStructs, x).

    What one part keeps for another goes in as it came out, so that its shardings are the partitioner's own choice.
    """
    p, x, tokens, scale = _arguments(step)
    split = split_layer(checkpointed(step.model.layer, step.remat), p, x, {}, None)
    parts, pools = [], {}

    def add(fn, *args):
        part = compile_for(step.mesh, jax.jit(fn).lower(*args))
        parts.append(part)
        return placed(jax.eval_shape(fn, *args), part.output_shardings)

    def kept(*names):
        return {name: pools[name] for name in names}

    _, _, made = add(lambda p, x: split.forward(p, x, {}, None), p, x)
    pools.update(made)
    pools.update(RI=(), RW=())
    if split.pools["RI"] or split.pools["RW"]:
        pools.update(add(lambda p, k: split.recompute(p, {}, None, k), p, kept("FR", "FI", "FW")))
    _, made, _ = add(
        lambda p, ct, a, k: split.input_grad(p, {}, None, ct, a, k), p, x, scale, kept("FI", "FW", "RI", "RW")
    )
    pools.update(made)
    add(lambda p, a, k: split.weight_grad(p, {}, None, a, k), p, scale, kept("FW", "RW", "IW"))
    loss = jax.value_and_grad(lambda head, y, labels: step.model.loss(head, y, labels)[0], argnums=(0, 1))
    add(loss, step.model.head(step.params), x, tokens)
    return parts, pools, x


def _arguments(step):
    """(one layer's parameters, x, labels, a scalar): placed ShapeDtypeStructs of one microbatch on one data rank."""
    whole = NamedSharding(step.mesh, P())
    layers = step.params["layers"]
    p = layers[0] if isinstance(layers, list) else layers
    p = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), p)
    specs = step.param_specs["layers"]
    p = placed(p, jax.tree.map(lambda s: NamedSharding(step.mesh, s), specs, is_leaf=lambda s: isinstance(s, P)))
    tokens = jax.ShapeDtypeStruct((step.microbatch_rows, step.batch["inputs"].shape[1]), jnp.int32, sharding=whole)
    x = placed(jax.eval_shape(step.model.embed, step.params["embed"], tokens), whole)
    return p, x, tokens, jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
