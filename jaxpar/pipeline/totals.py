"""What a step adds up once: counted tokens before the first tick, losses and gradients after the last.

All functions run inside ``shard_map``; ``options`` are the executor's.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxpar.pipeline.graph import cut, trace
from jaxpar.pipeline.interpreter import DATA, PIPE, TENSOR, with_tied
from jaxpar.pipeline.reduce import psum, reduce_to


class Output(NamedTuple):
    """What a step reports, the same on every device.

    Attributes:
      loss: float32, nats per counted token over the global batch; 0 where no token counted.
      num_tokens: int32, counted tokens of the global batch; float32 where the loss counts them in fractions.
      aux: float32, the layers' auxiliary scalars: summed over layers, averaged over microbatches and data ranks.
        The gradients are those of loss + aux.
    """

    loss: jax.Array
    num_tokens: jax.Array
    aux: jax.Array


def count_tokens(options, params, batch):
    """Counted tokens of this data rank's rows (float32 where the loss weighs them), before anything is computed."""
    p_head = with_tied(params["head"], params["embed"], options.tied)

    def like(tree):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)

    x = like(batch["inputs"])
    y = x if options.embed is None else jax.eval_shape(options.embed, like(params["embed"]), x)
    labels = jax.tree.leaves(batch["labels"])
    graph = trace(options.loss, like(p_head), y, like(batch["labels"]))
    count = cut(graph, graph.outputs[1:], graph.inputs)
    first = len(graph.inputs) - len(labels)
    allowed = dict(zip(graph.inputs[first:], labels, strict=True))
    if not set(count.inputs) <= set(allowed):
        raise TypeError(
            "loss: the number of counted tokens depends on the parameters or on y, but it is needed before the first "
            "forward, to weigh every microbatch alike. Compute it from labels alone."
        )
    number = jnp.asarray(count.run(*[allowed[v] for v in count.inputs])[0])
    return number.astype(jnp.float32 if jnp.issubdtype(number.dtype, jnp.floating) else jnp.int32)


def output_of(options, inputs, num_tokens, state):
    """What the step reports, the same on every device."""
    nats, aux = psum((state["nats"], state["aux"]), (DATA, PIPE))
    if options.vocabulary == "pipe":  # every rank has the whole sum
        nats = nats / options.mesh.shape[PIPE]
    return Output(nats * inputs.nat_weight, num_tokens, aux * inputs.aux_weight)


def reduced(options, grads, specs, grad_specs):
    """Gradients summed over the manual axes, once a step and in float32."""

    def reduce(grads):
        return jax.tree.map(functools.partial(reduce_to, (DATA, PIPE)), grads, specs, grad_specs)

    if options.grad_specs is None or options.param_specs is None:
        return reduce(grads)
    # All axes manual: XLA's partitioner gathers what it splits itself before it lets a reduce-scatter at it.
    tensor = {name: options.param_specs.get(name, {}) for name in grads}
    rows = jax.tree.map(lambda s: P(None, *s), tensor["layers"], is_leaf=lambda s: isinstance(s, P))
    tensor["layers"] = [rows] * len(grads["layers"]) if isinstance(grads["layers"], list) else rows
    return jax.shard_map(reduce, in_specs=(tensor,), out_specs=tensor, axis_names={TENSOR}, check_vma=False)(grads)
