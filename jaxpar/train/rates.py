"""Learning rates by step: a straight line up to the peak, then what `optimizer.schedule` names."""

import jax.numpy as jnp


def rate_schedule(config, num_steps):
    """Learning rate by step.

    The first step already moves (rate peak / warmup_steps), the last warm-up step has the peak rate, and the last step
    of the run has final_rate_ratio of it, but for "constant".

    Args:
      config: `jaxpar.config.OptimizerConfig`; reads schedule, peak_rate, warmup_steps, decay_steps, final_rate_ratio.
      num_steps: steps of the whole run.

    Returns:
      Function from an int32 step, counted from 0, to a float32 rate.
    """
    peak, warmup, fall = config.peak_rate, config.warmup_steps, _FALLS[config.schedule]

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        share = 1 - (1 - config.final_rate_ratio) * fall(step, config, num_steps)
        return jnp.asarray(peak, jnp.float32) * jnp.where(step < warmup, (step + 1) / max(warmup, 1), share)

    return rate


def _linear(step, config, num_steps):
    """0 at the end of the warm-up, 1 at the last step."""
    span = max(num_steps - config.warmup_steps - 1, 1)
    return jnp.clip((step - config.warmup_steps) / span, 0.0, 1.0)


def _cosine(step, config, num_steps):
    """Half a cosine. Source: Loshchilov and Hutter 2017, arXiv:1608.03983."""
    return 0.5 * (1 - jnp.cos(jnp.pi * _linear(step, config, num_steps)))


def _wsd(step, config, num_steps):
    """0, but a straight line over the last decay_steps. Source: Hu et al. 2024, arXiv:2404.06395, section 4."""
    last_at_peak = num_steps - config.decay_steps - 1
    return jnp.clip((step - last_at_peak) / max(config.decay_steps, 1), 0.0, 1.0)


def _constant(step, config, num_steps):
    return 0.0


# How far the rate has fallen from its peak (0) to its end (1); counted from the peak, whatever the warm-up.
_FALLS = {"cosine": _cosine, "linear": _linear, "wsd": _wsd, "constant": _constant}
