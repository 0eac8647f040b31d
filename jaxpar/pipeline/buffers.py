"""What a rank holds while it runs a plan: zeros to start from, and layers stacked or apart."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxpar.pipeline.split import POOLS


def zeros_at_start(options, plan, layout, split, params, x):
    """Zeros. Slots as many as the plan says, and a spare one for payloads that nobody waits for."""
    depth = int(layout.count.max())

    def zeros(tree, *lead):
        return jax.tree.map(lambda a: jnp.zeros((*lead, *a.shape), a.dtype), tree)

    state = {
        "act": zeros(x, plan.num_slots["act"] + 1),
        "grad": zeros(x, plan.num_slots["grad"] + 1) if options.train else (),
        "sent_act": zeros(x),
        "nats": jnp.float32(0),
        "aux": jnp.float32(0),
        "grads": _zero_grads(options, params) if options.train else (),
    }
    if options.train:
        state["sent_grad"] = zeros(x)
        state.update({pool: zeros(split.pools[pool], max(1, plan.num_slots[pool]), depth) for pool in POOLS})
    return state


def _zero_grads(options, params):
    """Float32, in the parameters' shardings over ``tensor``; a list of layers where stages are unrolled."""
    if options.unroll:
        params = {**params, "layers": unstack(params["layers"])}
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), params)
    if options.param_specs is None:
        return zeros
    specs = dict(options.param_specs)
    if options.unroll:
        specs["layers"] = [specs["layers"]] * len(zeros["layers"])
    else:
        specs["layers"] = jax.tree.map(lambda s: P(None, *s), specs["layers"], is_leaf=lambda s: isinstance(s, P))
    return jax.tree.map(lambda z, s: lax.with_sharding_constraint(z, s), zeros, specs)


def unstack(layers):
    """One tree a layer, from [N, ...] together or [1, ...] apart."""
    if isinstance(layers, list):
        return [jax.tree.map(lambda a: a[0], layer) for layer in layers]
    num_rows = jax.tree.leaves(layers)[0].shape[0]
    return [jax.tree.map(lambda a, n=n: a[n], layers) for n in range(num_rows)]


def stack(layers, like):
    """The inverse of ``unstack``."""
    if isinstance(like, list):
        return [jax.tree.map(lambda a: a[None], layer) for layer in layers]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *layers)
