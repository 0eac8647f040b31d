"""The rules a configuration must obey. Each refusal names the setting, the rule, the reason and what would do."""

import difflib
import math
import os

from jaxpar.errors import SettingError
from jaxpar.mesh import divisors, resolve_shape
from jaxpar.schedule.recompute import saved_names

# setting: (what it may be, what it says)
_CHOICES = {
    "pipeline.layers": (("loop", "unroll"), "it says how a stage runs its layers"),
    "pipeline.search_mode": (("free", "lockstep"), "it says how time is counted"),
    "pipeline.vocabulary": (("ends", "pipe"), "it says which ranks hold embedding and head"),
    "model.dtype": (("float32", "bfloat16"), "it says what the model computes in"),
    "model.param_dtype": (("float32", "bfloat16"), "it says what parameters are kept in"),
    "data.kind": (("python_docs", "text", "tokens", "synthetic"), "it says where the tokens come from"),
    "optimizer.name": (("adamw", "adafactor", "lion", "sgd", "muon", "custom"), "there is no other optimizer"),
    "optimizer.schedule": (("cosine", "linear", "wsd", "constant"), "it says how the rate falls"),
    "train.resume": (("never", "auto"), "it says whether to go on from a checkpoint"),
}

# setting: (test, the rule it fails, why, a remedy)
_RANGES = {
    "emulate_devices": (lambda x: x >= 0, "is negative", "it is a number of devices", "Use 8, or 0 for real devices"),
    "seed": (lambda x: 0 <= x < 2**32, "is not in 0 .. 2**32 - 1", "keys are made from 32 bits", "Use 0"),
    "pipeline.max_live": (
        lambda x: x == 0 or x >= 1,
        "is under 1",
        "when a microbatch reaches the loss, every rank holds the activations of all its chunks, whatever the schedule",
        "Use 1 or more, or 0 for no cap",
    ),
    "model.dropout": (lambda x: 0 <= x < 1, "is not in 0 .. 1", "it is the share that is dropped", "Use 0 for none"),
    "train.eval_every": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 to evaluate at the end only"),
    "train.stop_after": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 to run all steps"),
    "train.max_skips": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 to never stop"),
    "checkpoint.every": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 to save none on the way"),
    "checkpoint.keep_every": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 to keep none for good"),
    "optimizer.peak_rate": (lambda x: x > 0, "is not positive", "nothing would be learned", "Use 0.003"),
    "optimizer.warmup_steps": (lambda x: x >= 0, "is negative", "it counts steps", "Use 0 for no warm-up"),
    "optimizer.final_rate_ratio": (lambda x: 0 <= x <= 1, "is not in 0 .. 1", "it is a share of the peak", "Use 0.1"),
    "optimizer.weight_decay": (lambda x: x >= 0, "is negative", "weights would grow", "Use 0 for none"),
    "optimizer.clip_norm": (lambda x: x >= 0, "is negative", "a norm never is", "Use 1.0, or 0 for no clip"),
    "optimizer.b1": (lambda x: 0 <= x < 1, "is not in 0 .. 1", "it weighs a running mean", "Use 0.9"),
    "optimizer.b2": (lambda x: 0 <= x < 1, "is not in 0 .. 1", "it weighs a running mean", "Use 0.95"),
    "optimizer.eps": (lambda x: x > 0, "is not positive", "it keeps a division finite", "Use 1e-8"),
    "optimizer.momentum": (lambda x: 0 <= x < 1, "is not in 0 .. 1", "it weighs a running mean", "Use 0.95"),
    "optimizer.decay_steps": (lambda x: x >= 0, "is negative", "it counts steps", "Use a tenth of train.num_steps"),
    "data.prefetch": (lambda x: x >= 0, "is negative", "it counts batches", "Use 2, or 0 to read none ahead"),
    "data.end_token": (lambda x: x >= -1, "is under -1", "it is a token, or -1 for none", "Use -1"),
    "data.held_out_fraction": (lambda x: 0 < x < 1, "is not between 0 and 1", "both parts need text", "Use 0.1"),
    "sample.num_bytes": (lambda x: x >= 0, "is negative", "it is a length", "Use 0 for no sample"),
    "sample.temperature": (lambda x: x >= 0, "is negative", "it divides logits", "Use 0 for the likeliest"),
}

_POSITIVE = (
    *(f"pipeline.{name}" for name in ("num_microbatches", "num_chunks")),
    *(f"model.{name}" for name in ("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width", "vocab_size")),
    *(f"data.{name}" for name in ("seq_len", "max_bytes", "max_held_out_bytes")),
    *(f"train.{name}" for name in ("global_batch", "num_steps", "log_every")),
    "checkpoint.keep",
)

# setting: (the most it may be, why); far beyond any real run, so that a slip is refused before it hangs or overflows
_LIMITS = {
    "emulate_devices": (1024, "this machine runs every emulated device in threads of its own"),
    "pipeline.num_microbatches": (2**16, "the schedule lists every microbatch on every rank"),
    "pipeline.num_chunks": (10_000, "every chunk needs a layer"),
    "model.num_layers": (10_000, "every layer has parameters of its own"),
    **{f"model.{name}": (2**20, "matrices grow with it") for name in ("width", "mlp_width")},
    **{f"model.{name}": (2**20, "heads share the width") for name in ("num_heads", "num_kv_heads")},
    "model.vocab_size": (2**24, "every token has a row of the embedding"),
    "data.seq_len": (2**20, "attention compares all tokens of a row"),
    **{f"data.{name}": (2**40, "the text is held in memory") for name in ("max_bytes", "max_held_out_bytes")},
    "train.global_batch": (2**24, "a batch is held in memory"),
    **{
        f"train.{name}": (2**31 - 1, "steps are counted in 32 bits")
        for name in ("num_steps", "eval_every", "log_every", "stop_after", "max_skips")
    },
    **{f"checkpoint.{name}": (2**31 - 1, "steps are counted in 32 bits") for name in ("every", "keep", "keep_every")},
    **{f"optimizer.{name}": (2**31 - 1, "steps are counted in 32 bits") for name in ("warmup_steps", "decay_steps")},
    "data.end_token": (2**24, "every token has a row of the embedding"),
    "data.prefetch": (1024, "every batch that is read ahead is held in memory"),
    "sample.num_bytes": (2**16, "every byte of the sample runs the whole model"),
}

# setting: (the kinds of data that read it, what is so with the others)
_DATA_OF_KINDS = {
    "data.path": (("text", "tokens"), "brings its own text or tokens"),
    "data.held_out_path": (("text", "tokens"), "brings its own text or tokens"),
    "data.tokenizer": (("text", "python_docs"), "has token ids already"),
    "data.end_token": (("text", "tokens", "python_docs"), "makes its own documents"),
}


def refuse(setting, value, rule, reason, remedy):
    """Raises a SettingError in the project's form."""
    raise SettingError(f"{setting}={value} {rule}: {reason}. {remedy}.")


def refuse_choice(setting, value, known, reason):
    """Refuses a name that is not among the known ones, naming the nearest."""
    nearest = difflib.get_close_matches(value, known, 1, 0.4)
    remedy = f"Did you mean {nearest[0]}? " if nearest else ""
    names = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
    raise SettingError(f"{setting}={value} is not known: {reason}. {remedy}Use {names}.")


def get(config, setting):
    """The value of a setting by its full name."""
    for part in setting.split("."):
        config = getattr(config, part)
    return config


def check_values(config):
    """Refuses every value that is wrong whatever the others are, and the few pairs that need no devices."""
    for setting, (known, reason) in _CHOICES.items():
        if get(config, setting) not in known:
            refuse_choice(setting, get(config, setting), known, reason)
    for setting in _POSITIVE:
        if get(config, setting) < 1:
            refuse(setting, get(config, setting), "is not positive", "it is a count", "Use 1 or more")
    for setting, (test, rule, reason, remedy) in _RANGES.items():
        value = get(config, setting)
        if isinstance(value, float) and not math.isfinite(value):
            refuse(setting, value, "is not a finite number", "nothing can be computed with it", remedy)
        if not test(value):
            refuse(setting, value, rule, reason, remedy)
    for setting, (most, reason) in _LIMITS.items():
        if get(config, setting) > most:
            refuse(setting, get(config, setting), f"is over {most}", reason, f"Use {most} or less")
    saved_names(config.pipeline.remat)  # raises where it is no policy
    _check_prompt(config.sample.prompt)
    profile_range(config.train.profile_steps)
    _check_pairs(config)
    _check_optimizer(config)


def profile_range(text):
    """(a, b) of train.profile_steps="a:b"; (0, 0), which no step is, where it is empty."""
    if not text:
        return 0, 0
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) < int(last)):
        reason = "it names the first step of a trace, counted from 1, and the one after its last"
        refuse("train.profile_steps", text, "is not a range a:b", reason, "Use 10:13")
    return int(first), int(last)


def _check_prompt(prompt):
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        reason = f"the model reads bytes, and character {error.start} stands for none"
        refuse("sample.prompt", ascii(prompt), "is not UTF-8 text", reason, "Give text in UTF-8")


def _check_pairs(config):
    data, vocab_size = config.data, config.model.vocab_size
    for setting, (kinds, reason) in _DATA_OF_KINDS.items():
        value = get(config, setting)
        if value not in ("", -1) and data.kind not in kinds:
            reason = f"data.kind={data.kind} {reason}"
            refuse(setting, value, "would not be read", reason, f"Set data.kind={' or '.join(kinds)}, or leave it out")
    reads = {"text": "a text file or a folder of them", "tokens": "a .bin file of token ids"}
    if data.kind in reads and not data.path:
        refuse("data.path", "''", "names no file", f"data.kind={data.kind} reads {reads[data.kind]}", "Give one")
    if data.kind in ("python_docs", "text") and not data.tokenizer and vocab_size < 256:
        refuse("model.vocab_size", vocab_size, "is under 256", f"data.kind={data.kind} has bytes as tokens", "Use 256")
    if data.end_token >= vocab_size:
        remedy = f"Use model.vocab_size={data.end_token + 1} or more, or another token"
        refuse("data.end_token", data.end_token, f"is not under model.vocab_size={vocab_size}", "it is an id", remedy)


def _check_optimizer(config):
    """What is read only beside another setting, and a rate's parts that overlap."""
    optimizer, num_steps = config.optimizer, config.train.num_steps
    warmup, decay = optimizer.warmup_steps, optimizer.decay_steps
    if optimizer.schedule != "wsd" and decay:
        reason = f"optimizer.schedule={optimizer.schedule} falls from the warm-up on, or never"
        refuse("optimizer.decay_steps", decay, "would not be read", reason, "Set optimizer.schedule=wsd, or 0")
    if optimizer.schedule == "wsd" and not decay:
        remedy = f"Use {max(num_steps // 10, 1)}, or optimizer.schedule=constant"
        refuse("optimizer.decay_steps", 0, "gives wsd no end", "its rate falls in the last decay_steps", remedy)
    if optimizer.schedule == "wsd" and warmup + decay > num_steps:
        rule = f"and optimizer.warmup_steps={warmup} are more than train.num_steps={num_steps}"
        reason = "the rate would fall before it has risen"
        remedy = f"Use optimizer.decay_steps={num_steps - warmup} or less" if warmup < num_steps else "Warm up for less"
        refuse("optimizer.decay_steps", decay, rule, reason, remedy)
    if optimizer.master_weights and config.model.param_dtype == "float32":
        reason = "the parameters are float32 themselves"
        refuse("optimizer.master_weights", True, "keeps a copy for nothing", reason, "Set model.param_dtype=bfloat16")


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
