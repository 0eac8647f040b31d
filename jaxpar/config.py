"""Every setting of a run, as frozen dataclasses; config_values.py and config_checks.py say what they may be. No JAX.

A config file is Python: its `get_config()` starts from `base_config()`, changes what it wants and returns it. The flags
`--config.a.b=value` change it again. `resolve` turns the result into a `Config` and refuses every key and value that
makes no sense by itself; `fit` then refuses what does not fit the devices and each other, before JAX compiles anything.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping

from jaxpar import config_checks as checks
from jaxpar import config_search
from jaxpar import schedule as schedules
from jaxpar.config_values import check_values, refuse, refuse_choice
from jaxpar.errors import SettingError

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    tuple[int, ...]: "a list of whole numbers",
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; -1 infers one of them from the number of devices."""

    data: int = 1
    pipe: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class PipelineConfig:
    """How layers and microbatches are laid over the ranks.

    Attributes:
      schedule: a name in `jaxpar.schedule.names()`, "auto" (searched for), or the path of a .csv as `Schedule.to_csv`
        or PyTorch's pipelining writes it, whose sizes the other settings then have to state.
      num_microbatches: microbatches a step, on each data rank.
      num_chunks: stages a rank holds (virtual stages), V.
      layers: "loop" keeps the program small; "unroll" pays for a few layers a stage.
      vocabulary: "ends" keeps embedding and head on the first and last rank; "pipe" splits both over all ranks.
      remat: what a layer's backward recomputes: "none", "dots" (all but its matrix products), "full", or "names:a,b"
        (all but what the layer marks by these names; the decoder has qkv, attended, gate_up).
      stage_layers: layers of each stage in stage order; empty: as even as possible.
      max_live: the most microbatches of a whole rank's activations that a rank may hold; 0: no cap. What exceeds it is
        refused, and "auto" keeps it.
      costs: path of a costs file (see `jaxpar.schedule.Costs`) for "auto"; empty: F, I and W cost the same.
      search_mode: "free" or "lockstep", how "auto" counts time (see `Schedule.simulate`).
    """

    schedule: str = "1f1b"
    num_microbatches: int = 4
    num_chunks: int = 1
    layers: str = "loop"
    vocabulary: str = "ends"
    remat: str = "none"
    stage_layers: tuple[int, ...] = ()
    max_live: float = 0.0
    costs: str = ""
    search_mode: str = "free"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The decoder's sizes.

    Attributes:
      tie_embeddings: the head uses the embedding's table.
      dtype: "float32" or "bfloat16", what the model computes in.
      param_dtype: "float32" or "bfloat16", what parameters are kept in; gradients, losses and norms are float32.
      dropout: share of each branch's output that a training step drops.
    """

    num_layers: int = 4
    width: int = 128
    num_heads: int = 4
    num_kv_heads: int = 4
    mlp_width: int = 384
    vocab_size: int = 256
    tie_embeddings: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"
    dropout: float = 0.0


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which tokens, and how they come.

    Attributes:
      kind: "python_docs" (the language reference and standard library that come with Python), "text" (path),
        "tokens" (path, a file of token ids) or "synthetic" (made from the seed; for trials of speed).
      seq_len: tokens a row.
      path: for "text": a text file, or a folder of them; every file is a document. For "tokens": a .bin file as nanoGPT
        writes it, or one with its .idx beside it as Megatron does.
      held_out_path: the same, held out. Empty: whole documents are held out, or the end of a lone one.
      held_out_fraction: share of the documents that is held out.
      tokenizer: for "text" and "python_docs": a file of the tokenizers library. Empty: tokens are bytes.
      end_token: token that ends a document; -1: none. Text gets it after every document; in a .bin file without .idx it
        tells where documents end.
      max_bytes: for "text" and "python_docs": training text stops here, so that start-up stays quick.
      max_held_out_bytes: an evaluation reads so many held-out tokens, evenly spread, so that it stays quick.
      prefetch: batches read ahead of the step; 0 reads each when it is needed.
      log_ids: writes which rows of the data each step took, to samples.jsonl.
    """

    kind: str = "python_docs"
    seq_len: int = 128
    path: str = ""
    held_out_path: str = ""
    held_out_fraction: float = 0.1
    tokenizer: str = ""
    end_token: int = -1
    max_bytes: int = 4_000_000
    max_held_out_bytes: int = 131_072
    prefetch: int = 2
    log_ids: bool = False


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length of the run, and what happens beside its steps.

    Attributes:
      global_batch: rows a step, over all data ranks and microbatches.
      num_steps: steps of the whole run; learning rates follow it.
      stop_after: steps after which this start saves and ends; 0: none.
      resume: "auto" goes on from the last complete checkpoint in the workdir, if there is one; "never" starts anew, and
        refuses a workdir that holds checkpoints.
      eval_every: steps between evaluations; 0: at the end only.
      log_every: steps between lines of the metrics; 1: every step.
      max_skips: this many steps in a row without a finite gradient end the run; 0: never.
      tensorboard: whether the metrics also go to event files.
      wandb: project of Weights & Biases that gets the metrics too; empty: none.
      profile_steps: "a:b" traces the steps from a up to but not b; empty: none.
    """

    global_batch: int = 32
    num_steps: int = 100
    stop_after: int = 0
    resume: str = "never"
    eval_every: int = 0
    log_every: int = 1
    max_skips: int = 10
    tensorboard: bool = True
    wandb: str = ""
    profile_steps: str = ""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, below the workdir.

    Attributes:
      every: steps between saves; 0: none, but for `train.stop_after` and a run that is interrupted.
      keep: the newest checkpoints that stay.
      keep_every: checkpoints at multiples of it stay for good; 0: none.
    """

    every: int = 0
    keep: int = 2
    keep_every: int = 0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, and its learning rate over the run.

    Attributes:
      name: "adamw", "adafactor", "lion", "sgd" or "muon" (the layers' matrices; adamw the rest); "custom" takes the
        config file's get_optimizer(rate), an optax chain that sees one layer, the embedding or the head at a time.
      schedule: of the rate after the warm-up: "cosine", "linear" or "wsd" (constant, then linear) down to
        final_rate_ratio x peak_rate; or "constant".
      peak_rate: the highest rate; muon's matrices move about as far by it as adamw's, adafactor takes it as a share of
        each array's root mean square.
      warmup_steps: steps of a straight line up to it.
      decay_steps: for "wsd": steps of the last part.
      final_rate_ratio: share of the peak that is left at the end.
      weight_decay: of matrices; none for norms.
      clip_norm: the most that the gradient's global norm may be; 0: no clip.
      b1, b2, eps: of adamw; lion has b1 and b2.
      momentum: of sgd and muon.
      shard_state: splits the optimizer's state over the data ranks too (ZeRO-1; Rajbhandari et al. 2020,
        arXiv:1910.02054).
      master_weights: keeps a float32 copy of bfloat16 parameters, which the optimizer updates.
    """

    name: str = "adamw"
    schedule: str = "cosine"
    peak_rate: float = 3e-3
    warmup_steps: int = 10
    decay_steps: int = 0
    final_rate_ratio: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.95
    shard_state: bool = True
    master_weights: bool = False


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """The text generated at the end: num_bytes=0 generates none."""

    prompt: str = "def "
    num_bytes: int = 240
    temperature: float = 0.7


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole run. emulate_devices=0 uses the real devices, N emulates N on the CPU, shared among the processes."""

    mesh: MeshConfig = MeshConfig()
    emulate_devices: int = 0
    pipeline: PipelineConfig = PipelineConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sample: SampleConfig = SampleConfig()
    seed: int = 0

    @property
    def num_stages(self):
        """Stages of the whole model: mesh.pipe x pipeline.num_chunks."""
        return self.mesh.pipe * self.pipeline.num_chunks


def base_config():
    """All settings at their defaults, as the `ml_collections.ConfigDict` that config files change.

    It takes any key and any type: `resolve` refuses what is wrong by its full name, with the nearest that is right.
    """
    from ml_collections import ConfigDict

    return ConfigDict(dataclasses.asdict(Config()), type_safe=False)


def setting_names():
    """Every setting's full name ("model.width"), sections first named alone ("model")."""
    names = []
    for field in dataclasses.fields(Config):
        names.append(field.name)
        if dataclasses.is_dataclass(field.type):
            names += [f"{field.name}.{inner.name}" for inner in dataclasses.fields(field.type)]
    return names


def resolve(tree):
    """Turns a config file's result into a Config whose every value makes sense by itself.

    Args:
      tree: nested mapping (ConfigDict or dict); what it leaves out keeps its default.

    Returns:
      Config; mesh axes may still be -1 (see `fit`).

    Raises:
      SettingError: an unknown key (the message names the nearest), a wrong type, a value out of range.
    """
    config = _section(Config, tree, "")
    check_values(config)
    return config


def fit(config, num_devices):
    """Fits a Config to a number of devices: infers the mesh axis that is -1 and makes every cross-check.

    Raises:
      SettingError: the mesh, layers, heads, batch or schedule do not fit the devices or each other.
    """
    config = dataclasses.replace(config, mesh=checks.fit_mesh(config.mesh, num_devices))
    checks.check_model(config)
    from_file = config.pipeline.schedule.endswith(".csv")
    if from_file:
        build_schedule(config)  # before the checks of the sizes, which the file settles
    checks.check_batch(config)
    checks.check_stages(config)
    if not from_file:
        build_schedule(config)  # after them, which bound the sizes
    return config


def build_schedule(config):
    """The run's Schedule, checked: with R where something is recomputed, with vocabulary actions where a file has them.

    Raises:
      SettingError: unknown name, a combination that the schedule refuses, a file that is not such a schedule or costs,
        or a cap that is exceeded.
    """
    config_search.check_unused(config.pipeline)
    schedule = _schedule_of(config, config.pipeline.schedule)
    config_search.check_cap(config.pipeline, schedule)
    return schedule if config.pipeline.remat == "none" else schedule.with_recompute()


def _schedule_of(config, name):
    if name.endswith(".csv"):
        checks.check_schedule_path(name)
        schedule = schedules.from_csv(name)
        checks.check_schedule_file(config, schedule)
        return schedule
    if name == "auto":
        return config_search.searched(config)
    if name not in schedules.names():
        checks.check_schedule_suffix(name)
        refuse_choice("pipeline.schedule", name, (*schedules.names(), "auto"), "no schedule has that name")
    pipeline = config.pipeline
    return schedules.build(name, config.mesh.pipe, pipeline.num_microbatches, num_chunks=pipeline.num_chunks)


def _section(cls, tree, prefix):
    if not isinstance(tree, Mapping) and not hasattr(tree, "to_dict"):
        refuse(prefix or "config", tree, "is not a section", "it holds settings of its own", "Set those instead")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for key, value in tree.items():
        if key not in fields:
            raise unknown_setting(f"{prefix}.{key}" if prefix else str(key))
        name, kind = f"{prefix}.{key}" if prefix else key, fields[key].type
        values[key] = _section(kind, value, name) if dataclasses.is_dataclass(kind) else _value(kind, value, name)
    return cls(**values)


def unknown_setting(name):
    """The SettingError for a key that does not exist, naming the nearest that does."""
    same_leaf = [known for known in setting_names() if known.split(".")[-1] == name.split(".")[-1]]
    near = same_leaf[0] if same_leaf else nearest(name, setting_names())
    remedy = f"Did you mean {near}?" if near else "See jaxpar/config.py for all settings."
    return SettingError(f"{name} is not a setting: nothing would read it. {remedy}")


def check_type(name, value):
    """Refuses a value of the wrong type for the setting with this full name."""
    kind = _type_of(name)
    _section(kind, value, name) if dataclasses.is_dataclass(kind) else _value(kind, value, name)


def kind_of(name):
    """What the setting with this full name takes, in words: "a whole number"."""
    return _KINDS[_type_of(name)]


def _type_of(name):
    kind = Config
    for part in name.split("."):
        kind = next(field.type for field in dataclasses.fields(kind) if field.name == part)
    return kind


def nearest(name, known):
    """The known name most like this one, or None where none is like it."""
    return next(iter(difflib.get_close_matches(name, known, 1, 0.4)), None)


def _value(kind, value, name):
    """`value` as `kind`; whole numbers serve as floats, lists as tuples, and nothing else is converted."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else math.copysign(math.inf, 1 if value > 0 else -1)
    if kind == tuple[int, ...]:
        if isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        refuse(name, value, "is not a list of whole numbers", "each is a count", "Write (3, 2, 2, 1)")
    if type(value) is not kind:
        what = _KINDS[kind]
        refuse(name, repr(value), f"is not {what}", f"its type is {type(value).__name__}", f"Give {what}")
    return value
