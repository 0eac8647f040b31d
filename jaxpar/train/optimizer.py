"""AdamW with a warm-up, a cosine and one global clip.

Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
"""

import jax
import jax.numpy as jnp
import optax

from jaxpar.errors import SettingError


def rate_schedule(config, num_steps):
    """Learning rate by step: a straight line up to the peak, then half a cosine down.

    The first step already moves (rate peak / warmup_steps), and the last warm-up step has the peak rate.

    Args:
      config: `jaxpar.config.OptimizerConfig`; reads peak_rate, warmup_steps, final_rate_ratio.
      num_steps: steps of the whole run.

    Returns:
      Function from an int32 step, counted from 0, to a float32 rate.
    """
    peak, warmup = config.peak_rate, config.warmup_steps
    span = max(num_steps - warmup - 1, 1)

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - warmup) / span, 0.0, 1.0)
        cosine = config.final_rate_ratio + (1 - config.final_rate_ratio) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return jnp.asarray(peak, jnp.float32) * jnp.where(step < warmup, (step + 1) / max(warmup, 1), cosine)

    return rate


def make_optimizer(config, num_steps):
    """The optimizer and its learning rate.

    Args:
      config: `jaxpar.config.OptimizerConfig`; name, b1, b2, eps, weight_decay, clip_norm (0 or None: no clip).
      num_steps: steps of the whole run.

    Returns:
      (optax.GradientTransformation, rate function). The clip is by the norm over all leaves together; a leaf that is
      replicated or tied is one leaf of the global arrays and counts once.

    Raises:
      SettingError: unknown name, negative clip.
    """
    if config.name != "adamw":
        raise SettingError(f"optimizer.name={config.name} is unknown: only adamw is built in. Use adamw.")
    if config.clip_norm and config.clip_norm < 0:
        raise SettingError(f"optimizer.clip_norm={config.clip_norm} is negative: a norm never is. Use 0 for no clip.")
    rate = rate_schedule(config, num_steps)
    adamw = optax.adamw(
        rate,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decay_mask,
        mu_dtype=jnp.float32,
    )
    return (optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw) if config.clip_norm else adamw), rate


def decay_mask(params):
    """True for the leaves that decay: those of two dims or more, not counting a layer's stacked dim (so norms do not).

    Args:
      params: {"embed", "layers", "head"}, layers stacked or packed along dim 0.
    """

    def part(name, tree):
        stacked = 1 if name == "layers" else 0
        return jax.tree.map(lambda leaf: leaf.ndim - stacked >= 2, tree)

    return {name: part(name, tree) for name, tree in params.items()}
