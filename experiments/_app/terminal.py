"""What the user sees: a table of the layout, the schedule's drawing, progress, the results. Plain text in a log."""

import contextlib
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from jaxpar.metrics import shown_loss

_LOG_WIDTH = 110  # where the output is no terminal
_MAX_DRAWING_LINES = 24
_LOG_SECONDS = 10  # between progress lines in a log


def make_console(file=None, quiet=False):
    """A console for this output: in a file or pipe without colours and control codes; quiet, it prints nothing."""
    plain = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True, "quiet": quiet}
    console = Console(file=file, **plain)
    return console if console.is_terminal else Console(file=file, width=_LOG_WIDTH, **plain)


def human_bytes(count):
    """1536 -> "1.5 KiB"."""
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return None


def show_layout(console, config, layout, device, per_rank):
    """The mesh, then for each rank its stages, their layers, and the bytes those need on each of its devices."""
    mesh = config.mesh
    console.print(
        f"mesh      data {mesh.data} x pipe {mesh.pipe} x tensor {mesh.tensor} = "
        f"{mesh.data * mesh.pipe * mesh.tensor} devices ({device}{', emulated' if config.emulate_devices else ''})"
    )
    rows = config.train.global_batch // (mesh.data * config.pipeline.num_microbatches)
    console.print(
        f"batch     {config.train.global_batch} rows of {config.data.seq_len} tokens: "
        f"{config.pipeline.num_microbatches} microbatches of {rows} on each data rank\n"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "stage: layers", "parameters", "bytes a device"):
        table.add_column(name, justify="left" if ":" in name else "right")
    for rank, (num_params, num_bytes) in enumerate(per_rank):
        table.add_row(str(rank), _stages(layout, rank), f"{num_params:,}", human_bytes(num_bytes))
    console.print(table)
    if len({num_bytes for _, num_bytes in per_rank}) > 1:
        console.print("(all ranks run one program, so each allocates what the largest needs)")
    console.print()


def show_schedule(console, schedule, bubble, lockstep):
    """The table of ticks as text and the simulated bubble."""
    lines = schedule.render(width=console.width).splitlines()
    if len(lines) > _MAX_DRAWING_LINES:
        lines = [*lines[:_MAX_DRAWING_LINES], "... (the whole of it is in schedule.svg)"]
    console.print(Text("\n".join(["", *lines])))
    console.print(f"bubble    {bubble:.1%} simulated (ranks running freely), {lockstep:.1%} in lockstep ticks\n")


def show_program(console, report):
    """What one device holds and what the compiled step communicates."""
    held = {"param_bytes": "parameters", "optimizer_bytes": "optimizer", "temp_bytes": "temporaries"}
    parts = [f"{human_bytes(report[key])} {what}" for key, what in held.items()]
    console.print(f"a device  {', '.join(parts)}")
    for axes, kinds in report["collectives"].items():
        if axes == "none":  # every device by itself: nothing is sent
            continue
        counts = [f"{kind} {n['loop']} in the loop + {n['once']} outside" for kind, n in kinds.items()]
        console.print(f"over {axes:<12} {'; '.join(counts)}")
    console.print(f"compiled  in {report['compile_s']:.1f} s\n")


class Reporter:
    """Progress of the steps: a bar on a terminal, a line every few seconds in a log."""

    def __init__(self, console, num_steps, first_step=0, bytes_per_token=1.0):
        """For a run of `num_steps` steps of which `first_step` are done."""
        self._console, self._num_steps, self._first_step = console, num_steps, first_step
        self._bytes_per_token = bytes_per_token
        self._last_line, self._start = 0.0, time.monotonic()
        self._bar = None

    @contextlib.contextmanager
    def running(self):
        """Shows the bar while steps run, where there is a terminal."""
        if not self._console.is_terminal:
            yield self
            return
        columns = (
            TextColumn("training"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        with Progress(*columns, console=self._console) as bar:
            self._bar = bar, bar.add_task("training", total=self._num_steps, completed=self._first_step, figures="")
            yield self
        self._bar = None

    def step(self, step, loss, tokens_per_s):
        """One step is done; `loss` in nats a token."""
        figures = f"loss {shown_loss(loss, self._bytes_per_token)}  {tokens_per_s:,.0f} tokens/s"
        if self._bar:
            bar, task = self._bar
            bar.update(task, completed=step, figures=figures)
            return
        now = time.monotonic()
        if now - self._last_line >= _LOG_SECONDS or step == self._num_steps:
            self._last_line = now
            left = (now - self._start) / (step - self._first_step) * (self._num_steps - step)
            self._console.print(f"step {step:>6} / {self._num_steps}  {figures}  {_clock(left)} left")

    def held_out(self, step, loss):
        """A line of its own, above the bar."""
        self._console.print(f"step {step:>6} / {self._num_steps}  held out {shown_loss(loss, self._bytes_per_token)}")


def show_results(console, report, workdir, files, bytes_per_token=1.0):
    """Held-out loss beside the order-2 model's, the sample, the files."""
    if report["interrupted"]:
        console.print(f"\ninterrupted after step {report['step']}", style="bold")
    if report["num_skipped"]:
        console.print(f"skipped   {report['num_skipped']} batches that had no finite gradient or no token to predict")
    if report["held_out_loss"] is not None:
        console.print(f"\nheld out  {shown_loss(report['held_out_loss'], bytes_per_token)}", style="bold")
    if report["order2_bits_per_byte"] is not None:
        console.print(f"order-2   {report['order2_bits_per_byte']:.3f} bits/byte (Witten-Bell, the same split)")
    if report["sample"]:
        console.print("\nsample")
        console.print(Text("\n".join(f"  | {line}" for line in report["sample"].splitlines())))
    if report["saved_step"] is not None:
        console.print(f"\nsaved     step {report['saved_step']} (train.resume=auto goes on from there)")
    console.print("\nfiles")
    for name in files:
        console.print(f"  {workdir}/{name}")


def _stages(layout, rank):
    """A rank's stages with their layers: "1: 2-3, 5: 10-11"."""
    parts = []
    for chunk in range(layout.num_chunks):
        stage = layout.stage_of(rank, chunk)
        first = sum(layout.stage_layers[:stage])
        last = first + layout.stage_layers[stage] - 1
        parts.append(f"{stage}: {first}" if first == last else f"{stage}: {first}-{last}")
    return ", ".join(parts)


def _clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
