"""Where a run's figures go: files of process 0, event files, Weights & Biases."""

import contextlib
import importlib.util
import shutil

from jaxpar.errors import SettingError
from jaxpar.metrics import METRICS, LineLog

SAMPLES = "samples.jsonl"
EVENTS = "tensorboard"


def check_packages(train):
    """Refuses what needs a package that is not installed."""
    if train.wandb and importlib.util.find_spec("wandb") is None:
        raise SettingError(
            f"train.wandb={train.wandb} cannot be written: the package wandb is not installed. pip install wandb, or "
            "leave it empty."
        )


class WriteError(RuntimeError):
    """A figure that could not be written, on a full disk say."""


class Outputs:
    """The figures of a run. On any process but the first it writes nothing."""

    def __init__(self, workdir, config, first_process=True, after=0):
        """Opens them all.

        Args:
          workdir: the folder, which exists.
          config: Config.
          first_process: whether this is process 0.
          after: the step a run goes on from: what was written for later ones is dropped.
        """
        self.workdir = workdir
        self._lines = self._samples = self._events = self._wandb = None
        if not first_process:
            return
        self._lines = LineLog(workdir, METRICS, after)
        if config.data.log_ids:
            self._samples = LineLog(workdir, SAMPLES, after)
        if config.train.tensorboard:
            from experiments._app.events import EventLog  # slow to load

            if not after:
                shutil.rmtree(f"{workdir}/{EVENTS}", ignore_errors=True)
            self._events = EventLog(f"{workdir}/{EVENTS}", after)
        if config.train.wandb:
            import wandb

            self._wandb = wandb.init(project=config.train.wandb, dir=workdir, resume="allow")

    def metrics(self, step, **fields):
        """One logged step; raises WriteError."""
        if self._lines is None:
            return
        numbers = {name: value for name, value in fields.items() if value is not None}
        with self._writing():
            self._lines.write(step=step, **fields)
            if self._events is not None:
                self._events.write(step, **numbers)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def samples(self, step, ids):
        """Which rows of the data a step took; raises WriteError."""
        if self._samples is not None:
            with self._writing():
                self._samples.write(step=step, ids=ids)

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            raise WriteError(f"workdir={self.workdir} cannot be written: {error.strerror or error}.") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for log in (self._lines, self._samples, self._events):
            if log is not None:
                with contextlib.suppress(OSError):  # every line was written and flushed by itself, or it was said
                    log.close()
        if self._wandb is not None:
            self._wandb.finish()
