"""What each setting may be, whatever the devices are. A refusal names setting, value, rule, reason and remedy."""

import difflib
import math

from jaxpar.errors import SettingError
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
