"""Optimizers for parameters narrower than float32: float32 arithmetic and moments, and float32 master weights.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.1 (master weights).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class MasterState(NamedTuple):
    """The state of `master_weights`: float32 parameters, and the optimizer's own state."""

    master: Any
    inner: Any


def in_float32(tx):
    """Shows an optimizer its parameters in float32, so that its moments and its arithmetic are."""
    return optax.GradientTransformation(
        lambda params: tx.init(_widen(params)), lambda grads, state, params: tx.update(grads, state, _widen(params))
    )


def master_weights(tx):
    """Keeps a float32 copy of the parameters, which is what the optimizer updates; `apply` makes the parameters of it.

    An update smaller than half a unit in a bfloat16 parameter's last place is lost on it, and is kept on the copy.

    Args:
      tx: optax.GradientTransformation.

    Returns:
      optax.GradientTransformation with a `MasterState`; its updates are the change of the copy.
    """

    def init(params):
        # Not the parameters' own arrays where they are float32 already: each buffer of a state is donated once.
        master = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return MasterState(master, tx.init(master))

    def update(grads, state, params=None):
        updates, inner = tx.update(grads, state.inner, state.master)
        return updates, MasterState(optax.apply_updates(state.master, updates), inner)

    return optax.GradientTransformation(init, update)


def apply(params, updates, opt_state):
    """The new parameters, in the parameters' types: the master weights' cast where there are any.

    Args:
      params: before the step.
      updates, opt_state: what the optimizer's update returned.
    """
    if isinstance(opt_state, MasterState):
        return jax.tree.map(lambda p, m: m.astype(p.dtype), params, opt_state.master)
    return optax.apply_updates(params, updates)  # adds in float32, then rounds


def _widen(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
