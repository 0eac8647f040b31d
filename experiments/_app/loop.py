"""The loop over steps: batches in, metrics out, checkpoints on the way, and an end in good order."""

import contextlib
import dataclasses
import os
import signal
import time

import jax

from experiments._app.profile import Profile
from jaxpar.accounting.flops import model_flops_utilization, train_flops_per_token
from jaxpar.config_values import profile_range
from jaxpar.data.rows import held_out_batches
from jaxpar.data.stream import sample_ids, stream
from jaxpar.distributed import any_process
from jaxpar.errors import TrainingError
from jaxpar.train.evaluate import evaluate

_KILLED = 130  # the shell's status for Ctrl-C


@dataclasses.dataclass
class Progress:
    """How far a run is: what a checkpoint says beside its arrays.

    Attributes:
      step: batches done.
      position: samples read, whatever the batch size was.
      tokens: counted tokens.
    """

    step: int = 0
    position: int = 0
    tokens: int = 0


@dataclasses.dataclass
class History:
    """What happened, for the report and the curve.

    Attributes:
      losses, held_out: (step, nats a token), of the whole run; steps count from 1.
      step_times, waits: seconds of each step of this start, and seconds it waited for its batch before.
      skipped: batches of this start that changed nothing.
      interrupted: whether the user ended the run; finished: whether all steps are done.
    """

    losses: list = dataclasses.field(default_factory=list)
    held_out: list = dataclasses.field(default_factory=list)
    step_times: list = dataclasses.field(default_factory=list)
    waits: list = dataclasses.field(default_factory=list)
    skipped: int = 0
    interrupted: bool = False
    finished: bool = False

    @classmethod
    def from_lines(cls, lines):
        """The history that an earlier start wrote to its metrics."""
        held_out = [(line["step"], line["held_out_loss"]) for line in lines if line.get("held_out_loss") is not None]
        return cls([(line["step"], line["loss"]) for line in lines if line["loss"] is not None], held_out)


class Stop:
    """Set by the first Ctrl-C (or SIGTERM); the second one ends the process at once."""

    def __init__(self):
        self.asked = False

    @contextlib.contextmanager
    def listening(self):
        """Within it, a signal asks the loop to end after its step instead of tearing a collective apart."""
        old = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _handle(self, number, frame):
        if self.asked:
            os._exit(_KILLED)
        self.asked = True


@dataclasses.dataclass
class Around:
    """What the loop reports to.

    Attributes:
      outputs: Outputs; reporter: Reporter; saver: Saver; stop: Stop.
    """

    outputs: object
    reporter: object
    saver: object
    stop: Stop


def train(run, compiled_step, state, corpus, progress, history, around):
    """Runs the steps that are left, or as many as this start may do.

    Args:
      run: Run; compiled_step: its compiled training step; state: TrainState, donated.
      corpus: Corpus; progress: Progress, brought forward; history: History, added to; around: Around.

    Returns:
      TrainState.

    Raises:
      TrainingError: too many steps in a row had a gradient that is not finite.
      CheckpointError: a save failed.
    """
    config, settings = run.config, run.config.train
    last = min(settings.num_steps, progress.step + (settings.stop_after or settings.num_steps))
    batches = _batches(run, corpus, progress)
    in_a_row = 0
    with Profile(around.outputs.workdir, *profile_range(settings.profile_steps)) as profile:
        for step in range(progress.step + 1, last + 1):
            profile.before(step)
            start = time.perf_counter()
            batch = run.put(next(batches))
            ready = time.perf_counter()
            state, metrics = jax.block_until_ready(compiled_step(state, batch, run.rng))
            history.waits.append(ready - start)
            history.step_times.append(time.perf_counter() - ready)
            metrics = {name: value.item() for name, value in jax.device_get(metrics).items()}
            _log_ids(run, corpus, progress, around.outputs)
            _advance(progress, history, step, config.train.global_batch, metrics)
            around.reporter.step(step, metrics["loss"], metrics["num_tokens"] / history.step_times[-1])
            history.interrupted = any_process(around.stop.asked)
            if step == settings.num_steps or (_is_due(step, settings.eval_every) and not history.interrupted):
                history.held_out.append((step, held_out_loss(run, state.params, corpus)))
                around.reporter.held_out(*history.held_out[-1])
            if _is_due(step, settings.log_every) or step == last or history.interrupted:
                around.outputs.metrics(**_line(run, progress, history, metrics))
            in_a_row = in_a_row + 1 if metrics["nonfinite"] else 0
            if settings.max_skips and in_a_row >= settings.max_skips:
                raise TrainingError(_diverged(step, in_a_row, around.saver))
            ends = history.interrupted or step == last < settings.num_steps
            if ends or not in_a_row:  # parameters after which gradients are not finite are not worth keeping
                around.saver.after_step(state, progress, ends)
            if history.interrupted:
                break
    history.finished = progress.step == settings.num_steps
    return state


def _batches(run, corpus, progress):
    config = run.config
    return stream(
        corpus.train,
        seq_len=config.data.seq_len,
        seed=config.seed,
        global_batch=config.train.global_batch,
        position=progress.position,
        rows=run.rows,
        prefetch=config.data.prefetch,
    )


def _log_ids(run, corpus, progress, outputs):
    """The rows of the data that this step took, where they are asked for."""
    config = run.config
    if config.data.log_ids:
        count, place = config.train.global_batch, progress.position
        ids = sample_ids(corpus.train, seq_len=config.data.seq_len, seed=config.seed, position=place, count=count)
        outputs.samples(progress.step + 1, ids.tolist())


def _advance(progress, history, step, num_samples, metrics):
    progress.step = step
    progress.position += num_samples
    progress.tokens += metrics["num_tokens"]
    history.losses.append((step, metrics["loss"]))
    history.skipped += metrics["skipped"]


def _line(run, progress, history, metrics):
    """A line of the metrics; mfu is None for a device whose peak is not known."""
    seconds, counted = history.step_times[-1], metrics["num_tokens"]
    flops = train_flops_per_token(run.config.model, run.config.data.seq_len) * counted / seconds
    line = {
        "step": progress.step,
        "loss": metrics["loss"],
        "tokens": progress.tokens,
        "grad_norm": metrics["grad_norm"],
        "learning_rate": metrics["learning_rate"],
        "skipped": metrics["skipped"],
        "step_time_s": seconds,
        "input_wait_s": history.waits[-1],
        "tokens_per_s": counted / seconds,
        "mfu": model_flops_utilization(flops, run.mesh.devices.flat[0].device_kind, run.mesh.size),
    }
    if history.held_out and history.held_out[-1][0] == progress.step:
        line["held_out_loss"] = history.held_out[-1][1]
    return line


def _diverged(step, in_a_row, saver):
    return (
        f"train.max_skips={in_a_row} steps in a row up to step {step} had a gradient that is not finite: they changed "
        f"nothing, and nothing would change. {saver.last_good()} Lower optimizer.peak_rate, or look at the data."
    )


def held_out_loss(run, params, corpus):
    """Mean nats a token over the held-out rows."""
    data = run.config.data
    batches = held_out_batches(corpus.held_out, data.seq_len, data.max_held_out_bytes, run.config.train.global_batch)
    return evaluate(run.loss_fn, params, (run.put_whole(batch) for batch in batches))[0]


def _is_due(step, every):
    return every > 0 and step % every == 0
