"""What must fit together: devices, mesh, model, batch, stages, schedule. Each refusal says what would do."""

import os

from jaxpar.config_values import get, refuse
from jaxpar.errors import SettingError
from jaxpar.mesh import divisors, resolve_shape


def fit_mesh(mesh, num_devices):
    """The mesh with its -1 inferred.

    Raises:
      SettingError: a size that is none, more than one -1, or a product that is not the number of devices.
    """
    return type(mesh)(*resolve_shape(num_devices, mesh.data, mesh.pipe, mesh.tensor))


def check_model(config):
    """Heads and widths must divide one another and split over the mesh axis tensor."""
    model, tensor = config.model, config.mesh.tensor
    if model.width % model.num_heads:
        rule = f"is not a multiple of model.num_heads={model.num_heads}"
        remedy = _proposals(
            ("model.width", _around(model.width, 2 * model.num_heads)), ("model.num_heads", _heads(config))
        )
        refuse("model.width", model.width, rule, "each head has an equal share", remedy)
    head = model.width // model.num_heads
    if head % 2:
        remedy = _proposals(("model.width", str(model.num_heads * (head + 1))), ("model.num_heads", _heads(config)))
        reason = f"rotary positions turn pairs, and a head has {head}"
        refuse("model.width", model.width, f"gives model.num_heads={model.num_heads} heads of odd size", reason, remedy)
    if model.num_heads % model.num_kv_heads:
        rule = f"is not a multiple of model.num_kv_heads={model.num_kv_heads}"
        remedy = _proposals(("model.num_heads", _heads(config)), ("model.num_kv_heads", _kv_heads(config)))
        refuse("model.num_heads", model.num_heads, rule, "groups share a kv head", remedy)
    whole = "a tensor rank holds whole heads"
    for setting, size, fits, reason in (
        ("model.num_heads", model.num_heads, _heads, whole),
        ("model.num_kv_heads", model.num_kv_heads, _kv_heads, whole),
        ("model.mlp_width", model.mlp_width, _mlp_widths, "each tensor rank holds an equal slice"),
    ):
        if size % tensor:
            sizes = ", ".join(map(str, divisors(size)))
            remedy = _proposals((setting, fits(config)), ("mesh.tensor", sizes))
            refuse(setting, size, f"is not a multiple of mesh.tensor={tensor}", reason, remedy)


def _proposals(*pairs):
    """A remedy from (setting, values that would do as text, empty where none would)."""
    return "Use " + ", or ".join(f"{setting}={values}" for setting, values in pairs if values)


def _heads(config):
    """The numbers of heads nearest to the one asked for that the rest of the config allows, as text."""
    model, tensor = config.model, config.mesh.tensor
    heads = [n for n in divisors(model.width // 2) if n % model.num_kv_heads == 0 and n % tensor == 0]
    return _nearest(model.num_heads, heads) if model.width % 2 == 0 else ""


def _kv_heads(config):
    model, tensor = config.model, config.mesh.tensor
    whole = [n for n in divisors(model.num_heads) if n % tensor == 0]
    return _nearest(model.num_kv_heads, whole or divisors(model.num_heads))


def _mlp_widths(config):
    return _around(config.model.mlp_width, config.mesh.tensor)


def _nearest(size, fits):
    """The largest of `fits` (ascending) under `size` and the smallest over it, as text."""
    return " or ".join(map(str, [n for n in fits if n < size][-1:] + [n for n in fits if n > size][:1]))


def _around(size, factor):
    """The positive multiples of `factor` just under and over `size`, as text."""
    low = size // factor * factor
    return " or ".join(str(n) for n in (low, low + factor) if n > 0)


def check_batch(config):
    """The global batch must split over the data ranks and their microbatches."""
    batch, data, count = config.train.global_batch, config.mesh.data, config.pipeline.num_microbatches
    if batch % (data * count) == 0:
        return
    remedy = f"Use train.global_batch={_around(batch, data * count)}"
    if batch % data == 0:
        remedy += f", or pipeline.num_microbatches of {', '.join(map(str, divisors(batch // data)))}"
    rule = f"is not a multiple of mesh.data={data} x pipeline.num_microbatches={count}"
    refuse("train.global_batch", batch, rule, "every microbatch has equally many rows", remedy)


def check_stages(config):
    """Every stage has a layer, and a user's own split gives every layer one stage."""
    split, stages, layers = config.pipeline.stage_layers, config.num_stages, config.model.num_layers
    names = f"mesh.pipe={config.mesh.pipe} x pipeline.num_chunks={config.pipeline.num_chunks}"
    if layers < stages:
        remedy = f"Use {stages} layers or more, or fewer ranks or chunks"
        refuse("model.num_layers", layers, f"is less than {names}", "every stage needs a layer", remedy)
    if not split:
        return
    even = tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
    remedy = f"Use {even}, or leave it empty"
    if len(split) != stages:
        rule = f"has {len(split)} stages, not {names}"
        refuse("pipeline.stage_layers", split, rule, "it gives each stage its number of layers", remedy)
    if min(split) < 1:
        refuse("pipeline.stage_layers", split, "has a stage without a layer", "every stage needs one", remedy)
    if sum(split) != layers:
        rule = f"adds up to {sum(split)}, not to model.num_layers={layers}"
        refuse("pipeline.stage_layers", split, rule, "every layer has exactly one stage", remedy)


def check_schedule_path(path):
    """A schedule's path names a file; relative ones start at the working directory."""
    if not os.path.isfile(path):
        reason = "a name in .csv is read" + (
            "" if os.path.isabs(path) else f" from the working directory {os.getcwd()}"
        )
        refuse("pipeline.schedule", path, "is not a file", reason, "Give the path of a file")


def check_schedule_suffix(name):
    """Refuses a file that would be read if it was called .csv."""
    if os.path.isfile(name):
        reason = "a schedule's file is told from a schedule's name by its end"
        refuse("pipeline.schedule", name, "is a file without the end .csv", reason, f"Rename it to {name}.csv")


def check_schedule_file(config, schedule):
    """The sizes that a schedule was written for are the config's; all that differ are named at once.

    With one rank the two vocabularies are the same table, and a file cannot tell which it was.
    """
    path = config.pipeline.schedule
    sizes = {
        "mesh.pipe": schedule.num_ranks,
        "pipeline.num_microbatches": schedule.num_microbatches,
        "pipeline.num_chunks": schedule.num_chunks,
    }
    if schedule.vocabulary and schedule.num_ranks > 1:
        sizes["pipeline.vocabulary"] = schedule.vocabulary
    wrong = [setting for setting, size in sizes.items() if get(config, setting) != size]
    if wrong:
        *others, last = (f"{setting}={get(config, setting)}" for setting in wrong)
        asked = " and ".join([", ".join(others), last] if others else [last])
        remedy = ", ".join(f"{setting}={sizes[setting]}" for setting in wrong)
        written_for = ", ".join(f"{setting}={size}" for setting, size in sizes.items())
        rule = "are not the schedule's" if others else "is not the schedule's"
        raise SettingError(f"{asked} {rule}: {path} was written for {written_for}. Set {remedy}.")
