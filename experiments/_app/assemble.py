"""From a Config to everything a run needs: mesh, model, schedule, state, programs. Nothing is compiled here."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.config import build_schedule
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.pipeline import Layout
from jaxpar.train.evaluate import make_loss_fn
from jaxpar.train.grads import make_grad_fn
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.state import init_state, state_shardings
from jaxpar.train.step import make_train_step


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """The parts of a run, made from its Config.

    Attributes:
      config: Config, fitted to the devices.
      mesh: the device mesh.
      schedule: Schedule without vocabulary actions; plan: the lowered Plan that runs, with them.
      layout: Layout, which layer is where.
      model: Model.
      shardings: NamedShardings of the TrainState.
      step: jitted (state, batch) -> (state, metrics); loss_fn: jitted (params, batch) -> (nats, tokens).
      make_state: () -> the initial TrainState.
    """

    config: Any
    mesh: Any
    schedule: Any
    plan: Any
    layout: Any
    model: Any
    shardings: Any
    step: Any
    loss_fn: Any
    make_state: Any

    @property
    def batch_sharding(self):
        """Rows split over `data`."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    def put(self, batch):
        """A batch of NumPy arrays on the devices."""
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), self.batch_sharding), batch)


def assemble(config):
    """The Run of a fitted Config.

    Raises:
      SettingError: what only the parts themselves can tell.
    """
    pipeline, sizes = config.pipeline, config.mesh
    mesh = make_mesh(sizes.data, sizes.pipe, sizes.tensor)
    schedule = build_schedule(config)
    layout = Layout.of(schedule, config.model.num_layers, pipeline.stage_layers or None)
    split_ways = sizes.tensor * (sizes.pipe if pipeline.vocabulary == "pipe" else 1)
    model = decoder(_decoder_config(config.model), vocab_multiple=split_ways)
    grad_fn = make_grad_fn(
        model,
        schedule,
        mesh,
        layout=layout,
        remat=pipeline.remat,
        layers=pipeline.layers,
        vocabulary=pipeline.vocabulary,
    )
    optimizer, rate_fn = make_optimizer(config.optimizer, config.train.num_steps)
    shardings = state_shardings(
        model, optimizer, mesh, layout.rows, pipeline.vocabulary, apart=pipeline.layers == "unroll"
    )
    return Run(
        config=config,
        mesh=mesh,
        schedule=schedule,
        plan=grad_fn.plan,
        layout=layout,
        model=model,
        shardings=shardings,
        step=make_train_step(grad_fn, optimizer, rate_fn, shardings),
        loss_fn=make_loss_fn(model, mesh, layout.rows),
        make_state=lambda: init_state(model, optimizer, jax.random.key(config.seed), layout.rows, shardings),
    )


def global_params(run, params):
    """Parameters with layers by global index, as arrays of one device."""
    host = jax.device_get(params)
    return jax.tree.map(jax.numpy.asarray, {**host, "layers": run.layout.unpack(host["layers"])})


def layers_per_rank(run):
    """For each rank (number of parameters, bytes on each of its devices) of its own layers; vocabulary apart."""
    layers = jax.eval_shape(run.make_state).params["layers"]
    rows, held = run.layout.rows, 0
    for leaf, sharding in zip(jax.tree.leaves(layers), jax.tree.leaves(run.shardings.params["layers"]), strict=True):
        held += math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize // rows.shape[1]
    size = sum(leaf.size for leaf in jax.tree.leaves(layers)) // rows.size
    return [(count * size, count * held) for count in (rows >= 0).sum(axis=1).tolist()]


def _decoder_config(model):
    """The settings of the model that the decoder has."""
    known = {field.name for field in dataclasses.fields(DecoderConfig)}
    return DecoderConfig(**{name: value for name, value in dataclasses.asdict(model).items() if name in known})
