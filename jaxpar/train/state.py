"""The training state: made on the mesh, in its shardings, never whole on one device."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.models.model import init_params
from jaxpar.sharding import TENSOR_RULES
from jaxpar.train.shards import make_shardings, opt_state_shardings


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a step changes.

    Attributes:
      step: int32 scalar, updates made; it positions the learning rate.
      skipped: int32 scalar, batches that changed nothing (no counted token, or a gradient that is not finite).
      params: packed parameters.
      opt_state: the optimizer's.
    """

    step: Any
    skipped: Any
    params: Any
    opt_state: Any


def new_state(params, optimizer):
    """The state before the first step, for these parameters."""
    step, skipped = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)  # two arrays: each buffer is donated once
    return TrainState(step=step, skipped=skipped, params=params, opt_state=optimizer.init(params))


def state_shardings(model, optimizer, mesh, rows, vocabulary="ends", rules=TENSOR_RULES, apart=False, shards=None):
    """`NamedSharding`s of the state: an optimizer's moments lie as parameters are updated, counters are replicated.

    Args:
      model: Model.
      optimizer: optax.GradientTransformation, from `make_optimizer`.
      mesh: the device mesh.
      rows: int [num_ranks, rows], `Layout.rows`.
      vocabulary: "ends" or "pipe", see `param_shardings`.
      rules: Rules for the model's dims.
      apart: whether each row of layers is a tree of its own, see `init_params`.
      shards: from `update_shardings`, to split the optimizer's state over all devices (ZeRO-1). None: it lies as the
        parameters do.
    """
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0), rows, apart))
    shardings = make_shardings(model, mesh, rows, vocabulary, rules, apart)
    opt_state = opt_state_shardings(
        jax.eval_shape(optimizer.init, params), params, shards or shardings, split=shards is not None
    )
    replicated = NamedSharding(mesh, PartitionSpec())
    return TrainState(step=replicated, skipped=replicated, params=shardings, opt_state=opt_state)


def init_state(model, optimizer, key, rows, shardings):
    """The initial state, every array made in its place: each device computes its own part.

    Args:
      model: Model.
      optimizer: optax.GradientTransformation.
      key: PRNG key of the seed.
      rows: int [num_ranks, rows], `Layout.rows`.
      shardings: from `state_shardings`, which also tell whether rows are apart.
    """
    apart = isinstance(shardings.params["layers"], list)
    make = jax.jit(lambda key: new_state(init_params(model, key, rows, apart), optimizer), out_shardings=shardings)
    return make(key)
