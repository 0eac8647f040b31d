"""The loop over steps: batches in, metrics out, and an end in good order when the user interrupts."""

import contextlib
import dataclasses
import signal
import time

import jax

from jaxpar.accounting.flops import model_flops_utilization, train_flops_per_token
from jaxpar.data.batches import held_out_batches, train_batch
from jaxpar.train.evaluate import evaluate


@dataclasses.dataclass
class History:
    """What happened, for the report and the curve.

    Attributes:
      losses, held_out: (step, nats a token); steps count from 1.
      step_times: seconds.
      skipped: batches that changed nothing.
      interrupted: whether the user ended the run.
    """

    losses: list = dataclasses.field(default_factory=list)
    held_out: list = dataclasses.field(default_factory=list)
    step_times: list = dataclasses.field(default_factory=list)
    skipped: int = 0
    interrupted: bool = False


class Stop:
    """Set by the first Ctrl-C (or SIGTERM); the second one interrupts as usual."""

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
            raise KeyboardInterrupt
        self.asked = True


def train(run, compiled_step, state, corpus, log, reporter, stop):
    """Runs the steps.

    Args:
      run: Run; compiled_step: its compiled training step; state: TrainState, donated.
      corpus: Corpus; log: MetricsLog; reporter: Reporter; stop: Stop.

    Returns:
      (state, History).
    """
    config, history = run.config, History()
    total = config.train.num_steps
    batch_size, seq_len = config.train.global_batch, config.data.seq_len
    tokens = 0
    for step in range(1, total + 1):
        batch = run.put(train_batch(corpus.train, seq_len, config.seed, (step - 1) * batch_size, batch_size))
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(compiled_step(state, batch, None))
        seconds = time.perf_counter() - start
        metrics = jax.device_get(metrics)
        loss, counted = float(metrics["loss"]), int(metrics["num_tokens"])
        tokens += counted
        history.losses.append((step, loss))
        history.step_times.append(seconds)
        history.skipped += int(metrics["skipped"])
        reporter.step(step, loss, counted / seconds)
        evaluated = (_is_due(step, config.train.eval_every) or step == total) and not stop.asked
        if evaluated:
            history.held_out.append((step, held_out_loss(run, state.params, corpus)))
            reporter.held_out(step, history.held_out[-1][1])
        if _is_due(step, config.train.log_every) or step == total or stop.asked:
            held_out = {"held_out_loss": history.held_out[-1][1]} if evaluated else {}
            log.write(
                step=step, loss=loss, tokens=tokens, **_speed_and_rates(run, metrics, counted, seconds), **held_out
            )
        if stop.asked:
            history.interrupted = True
            break
    return state, history


def _speed_and_rates(run, metrics, counted, seconds):
    """The fields of a metrics line that only this step has; mfu is None for a device whose peak is not known."""
    flops = train_flops_per_token(run.config.model, run.config.data.seq_len) * counted / seconds
    return {
        "grad_norm": float(metrics["grad_norm"]),
        "learning_rate": float(metrics["learning_rate"]),
        "step_time_s": seconds,
        "tokens_per_s": counted / seconds,
        "mfu": model_flops_utilization(flops, run.mesh.devices.flat[0].device_kind, run.mesh.size),
    }


def held_out_loss(run, params, corpus):
    """Mean nats a token over the held-out rows."""
    data = run.config.data
    batches = held_out_batches(corpus.held_out, data.seq_len, data.max_held_out_bytes, run.config.train.global_batch)
    return evaluate(run.loss_fn, params, (run.put(batch) for batch in batches))[0]


def _is_due(step, every):
    return every > 0 and step % every == 0
