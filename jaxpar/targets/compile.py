"""A step of the pipeline, compiled for devices that need not exist: shapes in, program and its parts out."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.compat import overlap_options
from jaxpar.models.model import init_params
from jaxpar.pipeline import Layout
from jaxpar.sharding import TENSOR_RULES, param_shardings
from jaxpar.train.grads import make_grad_fn

# Measuring kernels needs the GPU: take the compiler's first choice of each.
_GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A compiled step, loss and gradients, and what it was made from.

    Attributes:
      compiled: the program (`as_text`, `memory_analysis`, `cost_analysis`).
      pipeline: jaxpar.pipeline.Pipeline, with its plan and layout.
      model: Model.
      mesh: the device mesh.
      params, batch: ShapeDtypeStructs with shardings; layers packed, and apart where stages are unrolled.
      param_specs: as `value_and_grad` takes them.
      remat, layers: as given.
      compile_s: seconds the compiler took.
    """

    compiled: Any
    pipeline: Any
    model: Any
    mesh: Any
    params: Any
    batch: Any
    param_specs: Any
    remat: str
    layers: str
    compile_s: float

    @property
    def microbatch_rows(self):
        """Rows of a microbatch on one data rank."""
        rows = self.batch["inputs"].shape[0]
        return rows // self.mesh.shape["data"] // self.pipeline.plan.num_microbatches


def compile_step(
    model,
    schedule,
    mesh,
    *,
    global_batch,
    seq_len,
    rules=TENSOR_RULES,
    layout=None,
    remat="none",
    layers="loop",
    vocabulary="ends",
):
    """Compiles loss and gradients of a model for the mesh's devices.

    Args:
      model: Model; its DecoderConfig says what is computed in (bfloat16, say).
      schedule: jaxpar.schedule.Schedule.
      mesh: `jaxpar.mesh.make_mesh` of `jaxpar.targets.devices`, or of devices that are here.
      global_batch: rows of a step; data x num_microbatches divides it.
      seq_len: tokens of a row.
      rules: Rules for the model's dims.
      layout, remat, layers, vocabulary: as `value_and_grad` takes them.

    Returns:
      Step.

    Raises:
      SettingError: the settings do not fit together.
      jax.errors.JaxRuntimeError: the compiler refuses, because the program does not fit into memory for one.
    """
    layout = layout or Layout.of(schedule, model.num_layers)
    specs = rules.specs(model.dims)
    options = {"remat": remat, "layers": layers, "vocabulary": vocabulary}
    pipeline = make_grad_fn(model, schedule, mesh, rules=rules, layout=layout, **options)
    params = _params(model, mesh, specs, layout, vocabulary, apart=layers == "unroll")
    tokens = jax.ShapeDtypeStruct((global_batch, seq_len), jnp.int32, sharding=NamedSharding(mesh, P("data")))
    batch = {"inputs": tokens, "labels": tokens}
    whole = NamedSharding(mesh, P())
    tables = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype, sharding=whole), pipeline.tables()
    )
    lowered = pipeline.run.lower(params, batch, None, tables)
    start = time.perf_counter()
    compiled = compile_for(mesh, lowered)
    return Step(compiled, pipeline, model, mesh, params, batch, specs, remat, layers, time.perf_counter() - start)


def _params(model, mesh, specs, layout, vocabulary, apart):
    """Packed, as the trainer keeps them: apart where stages are unrolled."""
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0), layout.rows, apart))
    if apart:
        specs = {**specs, "layers": [specs["layers"]] * len(params["layers"])}
    return placed(params, param_shardings(mesh, specs, vocabulary))


def compile_for(mesh, lowered):
    """`lowered.compile()` with the options that a target which is not here needs."""
    options = overlap_options(mesh)  # None but for GPUs
    return lowered.compile(compiler_options=options and {**options, **_GPU_OPTIONS})


def placed(tree, where):
    """ShapeDtypeStructs of a tree, with shardings: a tree like it, or one for all."""
    if isinstance(where, jax.sharding.Sharding):
        where = jax.tree.map(lambda _: where, tree)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, where)
