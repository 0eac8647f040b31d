"""Where a run's figures go: files of process 0, event files, Weights & Biases."""

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
            from tensorboardX import SummaryWriter  # slow to load

            if not after:
                shutil.rmtree(f"{workdir}/{EVENTS}", ignore_errors=True)
            self._events = SummaryWriter(f"{workdir}/{EVENTS}", purge_step=after + 1 if after else None)
        if config.train.wandb:
            import wandb

            self._wandb = wandb.init(project=config.train.wandb, dir=workdir, resume="allow")

    def metrics(self, step, **fields):
        """One logged step."""
        if self._lines is None:
            return
        self._lines.write(step=step, **fields)
        numbers = {name: value for name, value in fields.items() if value is not None}
        if self._events is not None:
            for name, value in numbers.items():
                self._events.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def samples(self, step, ids):
        """Which rows of the data a step took."""
        if self._samples is not None:
            self._samples.write(step=step, ids=ids)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for log in (self._lines, self._samples, self._events):
            if log is not None:
                log.close()
        if self._wandb is not None:
            self._wandb.finish()
