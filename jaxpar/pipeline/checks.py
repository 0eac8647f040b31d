"""Everything ``value_and_grad`` refuses, before anything is traced or compiled."""

import dataclasses

import jax

from jaxpar.errors import SettingError
from jaxpar.mesh import AXES
from jaxpar.pipeline.vocabulary import VocabularyEmbedding, VocabularyLoss
from jaxpar.schedule.plan import Plan
from jaxpar.schedule.recompute import saved_names


def check_arguments(schedule, mesh, remat, layers, vocabulary, embed, loss, tied, layout, packed, grad_specs=None):
    """The schedule with the vocabulary's actions in it; raises SettingError where arguments do not fit together."""
    if packed and layout is None:
        raise SettingError(
            "packed=True without layout: packed rows do not tell which layer is where. Give Layout.of(schedule, ...)."
        )
    if grad_specs is not None and not packed:
        raise SettingError(
            "grad_specs without packed=True: layers by global index are rearranged after the step, which would gather "
            "what was split. Pack the parameters, or leave grad_specs out."
        )
    if set(mesh.axis_names) != set(AXES):
        raise SettingError(
            f"mesh.axis_names={mesh.axis_names} are not {AXES}: the pipeline splits over these. "
            "Make the mesh with jaxpar.mesh.make_mesh; an axis of size 1 costs nothing."
        )
    if schedule.num_ranks != mesh.shape["pipe"]:
        raise SettingError(
            f"schedule.num_ranks={schedule.num_ranks} is not mesh.pipe={mesh.shape['pipe']}: a rank is a position on "
            f"that axis. Build the schedule for {mesh.shape['pipe']} ranks."
        )
    for name, value, allowed in (
        ("layers", layers, ("loop", "unroll")),
        ("vocabulary", vocabulary, ("ends", "pipe")),
    ):
        if value not in allowed:
            raise SettingError(f"pipeline.{name}={value!r} is unknown: there is no such way. Use one of {allowed}.")
    saved_names(remat)
    if vocabulary == "pipe" and not (isinstance(embed, VocabularyEmbedding) and isinstance(loss, VocabularyLoss)):
        raise SettingError(
            "pipeline.vocabulary='pipe' needs embed as a VocabularyEmbedding and loss as a VocabularyLoss: the tables "
            "are split over the ranks, so the pipeline must see them. Wrap yours, or use 'ends'."
        )
    if tied and embed is None:
        raise SettingError(f"tied={tuple(tied)} without embed: there is no table to tie. Give embed, or drop tied.")
    if layout is not None and (layout.num_ranks, layout.num_chunks, layout.placement) != (
        schedule.num_ranks,
        schedule.num_chunks,
        schedule.placement,
    ):
        raise SettingError(
            f"layout={layout.num_ranks} ranks x {layout.num_chunks} chunks ({layout.placement}) is not the schedule's "
            f"{schedule.num_ranks} x {schedule.num_chunks} ({schedule.placement}): stages would not be where the "
            "schedule looks for them. Use Layout.of(schedule, ...)."
        )
    return _with_vocabulary(schedule, vocabulary)


def _with_vocabulary(schedule, vocabulary):
    if schedule.vocabulary is None and not isinstance(schedule, Plan):
        return schedule.with_vocabulary(vocabulary)
    if schedule.num_ranks == 1 and schedule.vocabulary is not None:
        return dataclasses.replace(schedule, vocabulary=vocabulary)  # one rank's table is the same for both
    if schedule.vocabulary != vocabulary:
        raise SettingError(
            f"pipeline.vocabulary={vocabulary!r} is not the schedule's {schedule.vocabulary!r}: its E, H and G actions "
            "are placed for that. Make them agree, or give a schedule without vocabulary."
        )
    return schedule


def count_layers(params):
    """Layers stacked in params["layers"]."""
    leaves = jax.tree.leaves(params.get("layers", ()))
    if not leaves:
        raise SettingError(
            "params['layers'] has no array: how many layers there are is read off the stacked parameters. "
            "Give layout=Layout.of(schedule, num_layers)."
        )
    return leaves[0].shape[0] if leaves[0].ndim else 0


def check_tables(params, embed_table, head_table, tied, num_ranks):
    """Tables that are split over the ranks divide."""
    tables = {"embed": embed_table} | ({} if head_table in tied else {"head": head_table})
    for part, name in tables.items():
        if name not in params[part]:
            raise SettingError(
                f"params[{part!r}] has no {name!r}: pipeline.vocabulary='pipe' splits that table over the ranks. "
                f"Name one of {sorted(params[part])} in VocabularyEmbedding or VocabularyLoss, or tie it."
            )
        rows = params[part][name].shape[0]
        if rows % num_ranks:
            raise SettingError(
                f"params[{part!r}][{name!r}] has {rows} rows, no multiple of mesh.pipe={num_ranks}: each rank holds an "
                f"equal slice. Pad it to {-(-rows // num_ranks) * num_ranks} rows and set "
                "VocabularyLoss(vocab_size=...), so that padding has no probability."
            )


def check_params(params, layout, packed, unroll, tied):
    """Every stacked leaf has a row for each layer, and tied entries exist."""
    unknown = sorted(set(params) - {"embed", "layers", "head"})
    if unknown or "layers" not in params:
        raise SettingError(
            f"params has {sorted(params)}: the pipeline knows 'embed', 'layers' and 'head' by where they run. "
            f"Put {', '.join(map(repr, unknown)) if unknown else 'the stacked layers'} into one of them."
        )
    apart = isinstance(params["layers"], list)
    if apart and not (packed and unroll):
        raise SettingError(
            "params['layers'] is a list, which is how packed rows of unrolled stages come: else layers are stacked "
            "along the first dimension of each array. Stack them (a tuple or dict may hold the arrays), or use "
            "pipeline.layers='unroll' with packed=True."
        )
    ranks, num_rows = layout.rows.shape
    stacks, rows = (params["layers"],), layout.rows.size if packed else layout.num_layers
    if apart:
        stacks, rows = params["layers"], ranks
    if len(stacks) != (num_rows if apart else 1):
        raise SettingError(
            f"params['layers'] is a list of {len(stacks)}, but the layout has {num_rows} rows a rank: each row is a "
            "tree of its own. Use Layout.apart."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(stacks):
        if leaf.ndim == 0 or leaf.shape[0] != rows:
            raise SettingError(
                f"params['layers']{jax.tree_util.keystr(path[1:])} has shape {leaf.shape}, but the layout has {rows} "
                f"{'ranks' if apart else 'packed rows' if packed else 'layers'}: layers are stacked along the first "
                "dimension, each owned exactly once. Stack all of them, or make the layout for as many."
            )
    for name in tied:
        if name not in params["embed"]:
            raise SettingError(
                f"tied={name!r} is no entry of params['embed'], which has {sorted(params['embed'])}: a tied weight is "
                "the embedding's, lent to the loss. Name one of those."
            )


def check_batch(batch, num_data, num_microbatches):
    """Nothing is missing, rows agree over the batch, and divide by data ranks x microbatches."""
    missing = [name for name in ("inputs", "labels") if name not in batch]
    unknown = sorted(set(batch) - {"inputs", "labels", "side"})
    if missing or unknown:
        raise SettingError(
            f"batch has {sorted(batch)}: it needs 'inputs' and 'labels', and has what the layers read besides in "
            f"'side'. {f'Add {missing[0]!r}' if missing else f'Move {unknown[0]!r} into side'}."
        )
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(batch)}
    if len(sizes) != 1 or None in sizes:
        raise SettingError(
            f"batch has leading dimensions {sorted(map(str, sizes))}: inputs, labels and side all have the global "
            "batch's rows first. Make them agree."
        )
    (rows,), parts = sizes, num_data * num_microbatches
    if rows % parts:
        raise SettingError(
            f"train.global_batch={rows} is not a multiple of mesh.data={num_data} x "
            f"pipeline.num_microbatches={num_microbatches}: every microbatch has the same number of rows. "
            f"Use {max(rows // parts, 1) * parts} or {(rows // parts + 1) * parts}."
        )
