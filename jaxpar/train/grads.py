"""Loss and gradients of a Model over a mesh: `jaxpar.pipeline.value_and_grad` with what the Model says of itself."""

from jaxpar.pipeline import Layout, value_and_grad
from jaxpar.sharding import TENSOR_RULES
from jaxpar.train.shards import manual_specs


def make_grad_fn(model, schedule, mesh, *, rules=TENSOR_RULES, layout=None, shards=None, **options):
    """The Pipeline of a Model, for packed parameters.

    Args:
      model: Model.
      schedule: Schedule, or a Plan that has a vocabulary.
      mesh: the device mesh.
      rules: Rules for the model's dims.
      layout: Layout; default as even as can be.
      shards: from `update_shardings`: where the gradients come to lie. None: as the parameters do.
      **options: remat, layers, vocabulary and train, as `value_and_grad` takes them.

    Returns:
      Pipeline: (params, batch, rng=None) -> (Output, grads).

    Raises:
      SettingError: the settings do not fit together.
    """
    return value_and_grad(
        model.layer,
        model.loss,
        schedule,
        mesh,
        embed=model.embed,
        param_specs=rules.specs(model.dims),
        tied=model.tied,
        layout=layout or Layout.of(schedule, model.num_layers),
        packed=True,
        grad_specs=None if shards is None else manual_specs(shards),
        **options,
    )
