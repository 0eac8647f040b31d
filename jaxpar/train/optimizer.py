"""Optimizers by name, from optax, each the same under every layout of the parameters; one global clip before them.

adamw: Loshchilov and Hutter 2019, arXiv:1711.05101; adafactor: Shazeer and Stern 2018, arXiv:1804.04235; lion: Chen et
al. 2023, arXiv:2302.06675; muon: Jordan 2024, https://kellerjordan.github.io/posts/muon, with the scale of Liu et al.
2025, arXiv:2502.16982. Weight decay is decoupled from the gradient in all of them: rate x weight_decay x parameter.
"""

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from jaxpar.errors import SettingError
from jaxpar.train.per_layer import per_layer, real_rows
from jaxpar.train.precision import in_float32, master_weights
from jaxpar.train.rates import rate_schedule

_MUON_RMS = 0.2  # an orthogonal update's elements get the size of AdamW's (arXiv:2502.16982, section 2.2)


def make_optimizer(config, num_steps, custom=None, vocab_size=None):
    """The optimizer and its learning rate.

    Args:
      config: `jaxpar.config.OptimizerConfig`.
      num_steps: steps of the whole run.
      custom: for name "custom": (rate function) -> optax chain. The chain sees one layer at a time, the embedding
        and the head, each a tree of its own; what it clips by a norm is clipped by that tree's norm.
      vocab_size: tokens; rows of tables after them are padding, which no mean of an optimizer may count. None: no
        padding.

    Returns:
      (optax.GradientTransformation, rate function) for packed parameters, together or apart. Gradients float32; so are
      moments, whatever the parameters are. The clip is by the norm over all leaves together; a leaf that is replicated
      or tied is one leaf of the global arrays and counts once. Leaves of its state that belong to layers lie below a
      dict key "layers" with the packed rows as dim 0 (in a list where rows are apart), those of embedding and head
      below "embed" and "head" (tables padded as the parameter, or under adafactor and custom without padding); all
      else is scalars. With master_weights the state is a `MasterState`: `jaxpar.train.precision.apply` applies updates.

    Raises:
      SettingError: unknown name, "custom" without a function, negative clip.
    """
    if config.name != "custom" and config.name not in _CHAINS:
        known = ", ".join((*_CHAINS, "custom"))
        raise SettingError(
            f"optimizer.name={config.name} is not known: there is no such optimizer. Use one of {known}."
        )
    if config.name == "custom" and custom is None:
        raise SettingError(
            "optimizer.name=custom has no function: the config file defines no get_optimizer. Add "
            "`def get_optimizer(rate)` that returns an optax chain to it, or use adamw."
        )
    if config.clip_norm and config.clip_norm < 0:
        raise SettingError(f"optimizer.clip_norm={config.clip_norm} is negative: a norm never is. Use 0 for no clip.")
    rate = rate_schedule(config, num_steps)
    if config.name == "custom":
        tx = _by_block(custom(rate), vocab_size)
    else:
        tx = _CHAINS[config.name](config, rate, vocab_size)
    # One structure of the state with a clip and without: a run may go on with another clip_norm.
    tx = optax.chain(optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(), tx)
    return (master_weights(tx) if config.master_weights else in_float32(tx)), rate


def decay_mask(params):
    """True for the leaves that decay: those of two dims or more, not counting a layer's stacked dim (so norms do not).

    Args:
      params: {"embed", "layers", "head"}, layers stacked or packed along dim 0.
    """
    return {name: _matrices(tree, 1 if name == "layers" else 0) for name, tree in params.items()}


def _matrices(tree, num_stacked=0):
    return jax.tree.map(lambda leaf: leaf.ndim - num_stacked >= 2, tree)


def _by_block(tx, vocab_size):
    return per_layer(tx, real_rows(tx, vocab_size))


def _decay(config, rate, mask):
    """Then subtracts the decay: for optimizers of optax whose own is not scaled by the rate, or missing."""
    return optax.add_decayed_weights(config.weight_decay, mask=mask), optax.scale_by_learning_rate(rate)


def _adam_chain(config, rate, mask):
    return optax.adamw(
        rate, config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=mask, mu_dtype=jnp.float32
    )


def _adamw(config, rate, vocab_size):
    return _adam_chain(config, rate, decay_mask)


def _lion(config, rate, vocab_size):
    return optax.lion(
        rate, config.b1, config.b2, mu_dtype=jnp.float32, weight_decay=config.weight_decay, mask=decay_mask
    )


def _sgd(config, rate, vocab_size):
    momentum = optax.trace(config.momentum, accumulator_dtype=jnp.float32)
    return optax.chain(momentum, *_decay(config, rate, decay_mask))


def _adafactor(config, rate, vocab_size):
    """Rates are shares of each matrix's root mean square, as in the paper; no momentum."""

    def decay(step):
        return rate(step) * config.weight_decay

    return _by_block(optax.adafactor(rate, weight_decay_rate=decay, weight_decay_mask=_matrices), vocab_size)


def _muon(config, rate, vocab_size):
    """Matrices of layers are made orthogonal, each as it is stored (queries, keys and values together)."""
    matrix = optax.contrib.muon(
        rate, beta=config.momentum, weight_decay=config.weight_decay, mu_dtype=jnp.float32, consistent_rms=_MUON_RMS
    )
    adam = _adam_chain(config, rate, _matrices)

    def labels(params):
        return jax.tree.map(lambda matrix: "matrix" if matrix else "other", _matrices(params))

    return per_layer(optax.partition({"matrix": matrix, "other": adam}, labels), adam)


_CHAINS = {"adamw": _adamw, "adafactor": _adafactor, "lion": _lion, "sgd": _sgd, "muon": _muon}
