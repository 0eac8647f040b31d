"""A training run from its config to its files: check, compile once, train, report."""

import dataclasses
import pathlib
import time

import jax

from experiments._app import loop, terminal
from experiments._app.assemble import assemble, global_params, layers_per_rank
from experiments._app.outputs import SAMPLES, Outputs, WriteError, check_packages
from experiments._app.saving import Saver, find_start
from jaxpar.baselines import baseline_bits_per_byte
from jaxpar.config import fit
from jaxpar.data.corpus import load
from jaxpar.errors import TrainingError
from jaxpar.figures import loss_png
from jaxpar.metrics import METRICS, open_workdir, read_lines, write_json, write_whole
from jaxpar.report import program_report, run_report, stage_costs
from jaxpar.sample import generate, printable
from jaxpar.schedule.svg import render_svg

FILES = ("config.json", METRICS, "report.json", "loss.png", "schedule.svg")


def run(config, workdir, get_optimizer=None):
    """Trains and reports. In a run of several processes each calls it; the first one prints and writes the files.

    Everything is checked, down to the traced program, before anything is compiled or written.

    Args:
      config: Config, resolved but not yet fitted to the devices.
      workdir: str, the folder for FILES and checkpoints; what an earlier run left under these names is replaced, unless
        this one goes on from its checkpoint.
      get_optimizer: for optimizer.name=custom.

    Raises:
      SettingError: something cannot work; nothing was written.
      CheckpointError, TrainingError: the run cannot go on; the files cover the steps that were done.
    """
    first_process = jax.process_index() == 0
    console = terminal.make_console(quiet=not first_process)
    config = fit(config, jax.device_count())
    check_packages(config.train)
    corpus = load(config)
    progress = find_start(config, corpus, workdir)
    made = assemble(config, get_optimizer)
    start = time.perf_counter()
    lowered = made.step.lower(made.form.packed, _abstract_batch(made), made.rng)
    terminal.show_layout(console, config, made.layout, made.mesh.devices.flat[0].device_kind, layers_per_rank(made))
    console.print(f"text      {corpus.about}")
    svg, bubbles = _simulate(made)
    terminal.show_schedule(console, made.schedule, *bubbles)
    if first_process:
        open_workdir(workdir, {*FILES, SAMPLES} - ({METRICS, SAMPLES} if progress.step else set()))
        write_json(f"{workdir}/config.json", dataclasses.asdict(config))
        write_whole(f"{workdir}/schedule.svg", svg)
    compiled = lowered.compile()
    compile_s = time.perf_counter() - start
    report = {"compile_s": compile_s, "layer_bytes_by_rank": [b for _, b in layers_per_rank(made)]}
    report |= program_report(
        config, made.schedule, made.plan, made.mesh, made.form.packed, compiled, bubbles, made.layout.rows
    )
    terminal.show_program(console, report)
    _train(made, compiled, corpus, progress, report, console, workdir)


def _abstract_batch(made):
    """A batch as shapes with shardings."""
    size = made.config.train.global_batch, made.config.data.seq_len
    rows = jax.ShapeDtypeStruct(size, "int32", sharding=made.batch_sharding)
    return {"inputs": rows, "labels": rows, "side": {"segment_ids": rows, "positions": rows}}


def _simulate(made):
    """schedule.svg, and the bubble with ranks running freely and in lockstep ticks."""
    costs = stage_costs(made.layout)
    free, lockstep = (made.schedule.simulate(costs, mode=mode, send="after_I") for mode in ("free", "lockstep"))
    return render_svg(free), (free.bubble, lockstep.bubble)


def _train(made, compiled, corpus, progress, report, console, workdir):
    """Everything from the state to start from; the files are whole however it ends."""
    config, first_process = made.config, jax.process_index() == 0
    stop, begun = loop.Stop(), progress.step
    history = loop.History.from_lines(
        [line for line in read_lines(pathlib.Path(workdir, METRICS)) if line["step"] <= begun] if begun else []
    )
    saver = Saver(made, corpus, workdir)
    try:
        state = saver.restore(begun) if begun else made.make_state()
        if begun:
            console.print(f"goes on   from step {begun}\n")
        reporter = terminal.Reporter(console, config.train.num_steps, begun, corpus.bytes_per_token)
        with stop.listening():  # to the end: a signal must not lose a save that is under way
            with Outputs(workdir, config, first_process, begun) as outputs, reporter.running():
                around = loop.Around(outputs, reporter, saver, stop)
                state = loop.train(made, compiled, state, corpus, progress, history, around)
            report |= {"saved_step": saver.finish()}
            _finish(made, state, corpus, progress, history, report, console, workdir)
    except WriteError as error:
        remedy = "Make room, and go on with train.resume=auto."
        raise TrainingError(f"{error} {saver.last_good()} {remedy}") from error
    except BaseException:
        if jax.process_count() > 1:  # closing would wait for the others, which may have failed too: end and be seen
            raise
        saver.close()
        raise
    saver.close()


def _finish(made, state, corpus, progress, history, report, console, workdir):
    """The report, the curve, the sample."""
    config, first_process = made.config, jax.process_index() == 0
    baseline = baseline_bits_per_byte(corpus, config) if first_process else None
    report |= {**run_report(history, progress.step, baseline, corpus.bytes_per_token), "sample": None}
    if first_process:  # before the sample: nothing that fails there may lose it
        write_json(f"{workdir}/report.json", report)
        picture = loss_png(history.losses, history.held_out, baseline, made.schedule.name, corpus.bytes_per_token)
        write_whole(f"{workdir}/loss.png", picture)
    if config.sample.num_bytes and history.finished and corpus.encode is not None:
        params = global_params(made, state.params)  # on every process: they move their parts together
        if first_process:
            report["sample"] = _sample(made, params, corpus)
            write_json(f"{workdir}/report.json", report)
    terminal.show_results(console, report, workdir, FILES, corpus.bytes_per_token)


def _sample(made, params, corpus):
    """Text that the trained model writes."""
    sample, window = made.config.sample, made.config.data.seq_len
    prompt = corpus.encode(sample.prompt) or corpus.encode("\n")
    count = max(1, round(sample.num_bytes / (corpus.bytes_per_token or 1)))
    key = jax.random.key(made.config.seed)
    tokens = generate(made.model, params, prompt, count, window, sample.temperature, key)
    return printable(corpus.decode(tokens))
