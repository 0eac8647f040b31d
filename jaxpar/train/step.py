"""One training step: gradients, one global clip, the optimizer, as one jitted program with a donated state."""

import jax
import jax.numpy as jnp
import optax

from jaxpar.compat import overlap_options
from jaxpar.train.precision import apply
from jaxpar.train.state import TrainState


def make_train_step(grad_fn, optimizer, rate_fn, shardings=None, shards=None):
    """The jitted step.

    A batch without a counted token, or with a gradient whose norm is not finite, changes neither parameters nor moments
    nor the learning rate's position, not by a bit; it only raises `state.skipped`.

    Args:
      grad_fn: (params, batch, rng) -> (Output(loss, num_tokens, aux), grads), from `jaxpar.train.grads.make_grad_fn`.
      optimizer: optax.GradientTransformation, from `make_optimizer`.
      rate_fn: step -> learning rate, for the metrics.
      shardings: the state's, from `state_shardings`, so that a step's result lies exactly as its input did (one
        compilation). None leaves it to XLA.
      shards: from `update_shardings`: each device updates its part of the parameters, and the parts are gathered
        (ZeRO-1); `grad_fn` and `shardings` must have been made with the same. None: each updates all it holds.

    Returns:
      step(state, batch, rng=None) -> (state, metrics). `state` is donated. rng is the run's key, which the step folds
      with the batch's number. metrics, all scalars: loss (mean nats over counted tokens), aux, num_tokens, grad_norm
      (before the clip, float32), learning_rate, skipped (1 where this batch changed nothing), nonfinite (1 where that
      was for its gradient).
    """

    def step(state, batch, rng=None):
        if rng is not None:
            rng = jax.random.fold_in(rng, state.step + state.skipped)
        output, grads = grad_fn(state.params, batch, rng)
        grads = _at(shards, jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        norm = optax.tree.norm(grads)  # as the clip computes it: XLA does it once
        finite = jnp.isfinite(norm)
        useful = (output.num_tokens > 0) & finite
        old = _at(shards, state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, old)

        def choose(new, old):
            return jax.tree.map(lambda n, o: jnp.where(useful, n, o), new, old)

        new = TrainState(
            step=state.step + useful.astype(jnp.int32),
            skipped=state.skipped + (~useful).astype(jnp.int32),
            # The constraint keeps what follows the gather out of it: it carries the parameters' own type, once.
            params=_at(shards, choose(apply(old, updates, opt_state), old)),
            opt_state=choose(opt_state, state.opt_state),
        )
        metrics = {
            "loss": jnp.where(output.num_tokens > 0, output.loss, 0.0),
            "aux": output.aux,
            "num_tokens": output.num_tokens,
            "grad_norm": norm,
            "learning_rate": rate_fn(state.step),
            "skipped": (~useful).astype(jnp.int32),
            "nonfinite": (~finite).astype(jnp.int32),
        }
        return new, metrics

    if shardings is None:
        return jax.jit(step, donate_argnums=0)
    options = overlap_options(jax.tree.leaves(shardings)[0].mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None), compiler_options=options)


def _at(shards, tree):
    return tree if shards is None else jax.lax.with_sharding_constraint(tree, shards)
