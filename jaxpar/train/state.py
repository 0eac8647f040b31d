"""The training state: made on the mesh, in its shardings, never whole on one device."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.models.model import init_params
from jaxpar.sharding import TENSOR_RULES, param_shardings


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


def state_shardings(model, optimizer, mesh, rows, vocabulary="ends", rules=TENSOR_RULES, apart=False):
    """`NamedSharding`s of the state: an optimizer's moments lie as their parameters do, counters are replicated.

    Args:
      model: Model.
      optimizer: optax.GradientTransformation.
      mesh: the device mesh.
      rows: int [num_ranks, rows], `Layout.rows`.
      vocabulary: "ends" or "pipe", see `param_shardings`.
      rules: Rules for the model's dims.
      apart: whether each row of layers is a tree of its own, see `init_params`.
    """
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0), rows, apart))
    specs = rules.specs(model.dims)
    if apart:
        specs = {**specs, "layers": [specs["layers"]] * len(params["layers"])}
    shardings = param_shardings(mesh, specs, vocabulary)
    state = jax.eval_shape(lambda p: new_state(p, optimizer), params)
    replicated = NamedSharding(mesh, PartitionSpec())
    opt_state = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        state.opt_state,
        shardings,
        transform_non_params=lambda _: replicated,
    )
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
