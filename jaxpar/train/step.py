"""One training step: gradients, one global clip, AdamW, as one jitted program with a donated state."""

import jax
import jax.numpy as jnp
import optax

from jaxpar.compat import overlap_options
from jaxpar.train.state import TrainState


def make_train_step(grad_fn, optimizer, rate_fn, shardings=None):
    """The jitted step.

    A batch without a counted token, or with a gradient that is not finite, changes neither parameters nor moments nor
    the learning rate's position; it only raises `state.skipped`.

    Args:
      grad_fn: (params, batch, rng) -> (Output(loss, num_tokens, aux), grads), from `jaxpar.pipeline.value_and_grad`.
      optimizer: optax.GradientTransformation.
      rate_fn: step -> learning rate, for the metrics.
      shardings: the state's, from `state_shardings`, so that a step's result lies exactly as its input did (one
        compilation). None leaves it to XLA.

    Returns:
      step(state, batch, rng=None) -> (state, metrics). `state` is donated. rng is the run's key, which the step folds
      with the batch's number. metrics, all scalars: loss (mean nats over counted tokens), aux, num_tokens, grad_norm
      (before the clip), learning_rate, skipped (1 where this batch changed nothing).
    """

    def step(state, batch, rng=None):
        if rng is not None:
            rng = jax.random.fold_in(rng, state.step + state.skipped)
        output, grads = grad_fn(state.params, batch, rng)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        useful = (output.num_tokens > 0) & jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)

        def choose(new, old):
            return jax.tree.map(lambda n, o: jnp.where(useful, n, o), new, old)

        new = TrainState(
            step=state.step + useful.astype(jnp.int32),
            skipped=state.skipped + (~useful).astype(jnp.int32),
            params=choose(params, state.params),
            opt_state=choose(opt_state, state.opt_state),
        )
        metrics = {
            "loss": jnp.where(output.num_tokens > 0, output.loss, 0.0),
            "aux": output.aux,
            "num_tokens": output.num_tokens,
            "grad_norm": norm,
            "learning_rate": rate_fn(state.step),
            "skipped": (~useful).astype(jnp.int32),
        }
        return new, metrics

    if shardings is None:
        return jax.jit(step, donate_argnums=0)
    options = overlap_options(jax.tree.leaves(shardings)[0].mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None), compiler_options=options)
