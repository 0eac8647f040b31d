"""From a Config to everything a run needs: mesh, model, schedule, state, programs. Nothing is compiled here."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.checkpoint import FreeForm
from jaxpar.config import build_schedule
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout
from jaxpar.train.evaluate import make_loss_fn
from jaxpar.train.grads import make_grad_fn
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.shards import update_shardings
from jaxpar.train.state import init_state, new_state, state_shardings
from jaxpar.train.step import make_train_step

_DROPOUT = 1  # folded into the seed's key; initial parameters use the key itself


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
      step: jitted (state, batch, rng) -> (state, metrics); loss_fn: jitted (params, batch) -> (nats, tokens).
      make_state: () -> the initial TrainState.
      form: FreeForm of the TrainState, for checkpoints and samples.
      rng: the key of all steps' dropout, None without dropout.
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
    form: Any
    rng: Any

    @property
    def batch_sharding(self):
        """Rows split over `data`."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    @functools.cached_property
    def rows(self):
        """int64 [n]: the rows of a global batch that this process's devices take, ascending."""
        places = self.batch_sharding.addressable_devices_indices_map((self.config.train.global_batch,))
        return np.unique(np.concatenate([np.arange(self.config.train.global_batch)[i] for i in places.values()]))

    def put(self, batch):
        """The arrays of a global batch on the devices, from those of its `rows`."""
        return jax.tree.map(functools.partial(self._place, self.rows), batch)

    def put_whole(self, batch):
        """The same from all rows."""
        return jax.tree.map(functools.partial(self._place, np.arange(self.config.train.global_batch)), batch)

    def _place(self, rows, leaf):
        """Each device gets its own rows."""
        shape = (self.config.train.global_batch, *leaf.shape[1:])

        def part(index):
            first, last, _ = index[0].indices(shape[0])
            start = np.searchsorted(rows, first)
            return leaf[start : start + last - first]

        return jax.make_array_from_callback(shape, self.batch_sharding, part)


def assemble(config, get_optimizer=None):
    """The Run of a fitted Config.

    Args:
      config: Config.
      get_optimizer: for optimizer.name=custom: the config file's function.

    Raises:
      SettingError: what only the parts themselves can tell.
    """
    pipeline, sizes = config.pipeline, config.mesh
    mesh = make_mesh(sizes.data, sizes.pipe, sizes.tensor)
    schedule = build_schedule(config)
    layout = Layout.of(schedule, config.model.num_layers, pipeline.stage_layers or None)
    split_ways = sizes.tensor * (sizes.pipe if pipeline.vocabulary == "pipe" else 1)
    model = decoder(_decoder_config(config.model), vocab_multiple=split_ways)
    where = {"vocabulary": pipeline.vocabulary, "apart": pipeline.layers == "unroll"}
    shards = update_shardings(model, mesh, layout.rows, **where) if config.optimizer.shard_state else None
    grad_fn = make_grad_fn(
        model,
        schedule,
        mesh,
        layout=layout,
        shards=shards,
        remat=pipeline.remat,
        layers=pipeline.layers,
        vocabulary=pipeline.vocabulary,
    )
    optimizer, rate_fn = make_optimizer(
        config.optimizer, config.train.num_steps, custom=get_optimizer, vocab_size=config.model.vocab_size
    )
    shardings = state_shardings(model, optimizer, mesh, layout.rows, shards=shards, **where)

    def make_state():
        return init_state(model, optimizer, jax.random.key(config.seed), layout.rows, shardings)

    return Run(
        config=config,
        mesh=mesh,
        schedule=schedule,
        plan=grad_fn.plan,
        layout=layout,
        model=model,
        shardings=shardings,
        step=make_train_step(grad_fn, optimizer, rate_fn, shardings, shards),
        loss_fn=make_loss_fn(model, mesh, layout.rows),
        make_state=make_state,
        form=FreeForm.of(layout, _abstract(make_state, shardings), _free_shapes(config, optimizer)),
        rng=_step_key(config, mesh),
    )


def _abstract(make_state, shardings):
    """The TrainState as shapes with shardings."""

    def shaped(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(shaped, jax.eval_shape(make_state), shardings)


def _free_shapes(config, optimizer):
    """The TrainState's shapes with layers by global index and no padding."""
    model = decoder(_decoder_config(config.model))
    return jax.eval_shape(lambda: new_state(init_params(model, jax.random.key(0)), optimizer))


def _step_key(config, mesh):
    """The key that steps fold their number into, on every device; None where nothing is random."""
    if not config.model.dropout:
        return None
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda: jax.random.fold_in(jax.random.key(config.seed), _DROPOUT), out_shardings=replicated)()


def global_params(run, params):
    """Parameters with layers by global index, without padding, as arrays of one device."""
    replicated = NamedSharding(run.mesh, PartitionSpec())
    whole = run.form.pick(lambda state: state.params).release(params, replicated)
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf.addressable_data(0)), whole)


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
