"""When a run is saved, and from what it goes on."""

import dataclasses

from experiments._app.loop import Progress
from jaxpar.checkpoint import Store, saved_steps
from jaxpar.data.rows import num_rows
from jaxpar.errors import SettingError

# What two starts of one run must share. The mesh, the schedule, the batch and the length may all change.
_SHARED = (
    *(f"model.{name}" for name in ("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width", "vocab_size")),
    *("model.tie_embeddings", "model.param_dtype"),
    *("data.kind", "data.seq_len", "data.tokenizer", "data.end_token"),
    *("optimizer.name", "optimizer.master_weights", "seed"),
)


class Saver:
    """Saves a run when it is due."""

    def __init__(self, run, corpus, workdir):
        checkpoint = run.config.checkpoint
        self._run, self._corpus = run, corpus
        self._store = Store(workdir, checkpoint.keep, checkpoint.keep_every)
        self._saved = None

    def after_step(self, state, progress, ends):
        """Saves where it is due, and raises CheckpointError where an earlier save has failed.

        Args:
          state: TrainState.
          progress: Progress.
          ends: whether this start ends here though steps are left: it saves whatever `checkpoint.every` is.
        """
        every = self._run.config.checkpoint.every
        done = progress.step == self._run.config.train.num_steps
        if ends or (every and (progress.step % every == 0 or done)):
            self._store.save(progress.step, self._run.form.release(state), self._about(progress))
            self._saved = progress.step
        self._store.check()

    def finish(self):
        """Waits until what was begun is on disk; returns the step that was saved last, or None."""
        self._store.wait()
        return self._saved

    def close(self):
        """Ends the background threads."""
        self._store.close()

    def last_good(self):
        """A sentence on the last complete checkpoint."""
        self._store.wait()
        step = self._store.latest()
        return "No checkpoint was saved." if step is None else f"The last good checkpoint is {self._store.path(step)}."

    def restore(self, step):
        """The TrainState of a step, laid out for this run."""
        return self._run.form.adopt(self._store.restore(step, self._run.form.free))

    def _about(self, progress):
        return {
            **dataclasses.asdict(progress),
            "num_rows": num_rows(self._corpus.train, self._run.config.data.seq_len),
            "settings": shared_settings(self._run.config),
        }


def shared_settings(config):
    """setting -> value, of those that two starts of a run must share."""
    values = {}
    for name in _SHARED:
        section, _, leaf = name.rpartition(".")
        values[name] = getattr(getattr(config, section) if section else config, leaf)
    return values


def find_start(config, corpus, workdir):
    """The Progress from which a run starts: of the last complete checkpoint where it goes on, else of nothing done.

    Raises:
      SettingError: the workdir holds checkpoints that a new run would mix with its own, or of a run that this one
        cannot go on from.
    """
    steps = saved_steps(workdir)
    if not steps:
        return Progress()
    if config.train.resume == "never":
        raise SettingError(
            f"workdir={workdir} holds checkpoints up to step {steps[-1]}: a new run would mix with them. Set "
            "train.resume=auto to go on from there, or give another --workdir."
        )
    store = Store(workdir)
    try:
        about = store.about(steps[-1])
    finally:
        store.close()
    _check_same_run(config, corpus, about, store.path(steps[-1]))
    if about["step"] > config.train.num_steps:
        raise SettingError(
            f"train.num_steps={config.train.num_steps} is less than the steps that are done: "
            f"{store.path(steps[-1])} is of step {about['step']}. Use {about['step']} or more, or another --workdir."
        )
    return Progress(about["step"], about["position"], about["tokens"])


def _check_same_run(config, corpus, about, path):
    for name, value in shared_settings(config).items():
        if value != about["settings"][name]:
            raise SettingError(
                f"{name}={value} is not the checkpoint's: {path} was written with {about['settings'][name]}, and a run "
                f"goes on as what it was. Set {name}={about['settings'][name]}, or give another --workdir."
            )
    found = num_rows(corpus.train, config.data.seq_len)
    if found != about["num_rows"]:
        raise SettingError(
            f"data.path={config.data.path or repr('')} has {found} rows, but the data of {path} had "
            f"{about['num_rows']}: its position would mean other samples. Give the same data, or another --workdir."
        )
