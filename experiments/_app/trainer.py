"""A training run from its config to its files: check, compile once, train, report."""

import dataclasses
import time

import jax

from experiments._app import loop, terminal
from experiments._app.assemble import assemble, global_params, layers_per_rank
from jaxpar.baselines import ByteModel
from jaxpar.config import fit
from jaxpar.data import batches, split
from jaxpar.figures import loss_png
from jaxpar.metrics import METRICS, MetricsLog, open_workdir, write_json, write_whole
from jaxpar.report import program_report, run_report, stage_costs
from jaxpar.sample import generate, to_text
from jaxpar.schedule.svg import render_svg

FILES = ("config.json", METRICS, "report.json", "loss.png", "schedule.svg")


def run(config, workdir):
    """Trains and reports.

    Everything is checked, down to the traced program, before anything is compiled or written.

    Args:
      config: Config, resolved but not yet fitted to the devices.
      workdir: str, the folder for FILES; what an earlier run left under these names is replaced.

    Returns:
      Whether the user interrupted it.

    Raises:
      SettingError: something cannot work; nothing was written.
    """
    console = terminal.make_console()
    config = fit(config, config.emulate_devices or jax.device_count())
    corpus = split.load(config.data)
    made = assemble(config)
    start = time.perf_counter()
    lowered = made.step.lower(*_abstract_inputs(made), None)
    terminal.show_layout(console, config, made.layout, made.mesh.devices.flat[0].device_kind, layers_per_rank(made))
    console.print(f"text      {corpus.about}")
    svg, bubbles = _simulate(made)
    terminal.show_schedule(console, made.schedule, *bubbles)
    open_workdir(workdir, FILES)
    write_json(f"{workdir}/config.json", dataclasses.asdict(config))
    write_whole(f"{workdir}/schedule.svg", svg)
    compiled = lowered.compile()
    compile_s = time.perf_counter() - start
    report = {"compile_s": compile_s, "layer_bytes_by_rank": [b for _, b in layers_per_rank(made)]}
    report |= program_report(config, made.schedule, made.plan, made.mesh, _abstract_inputs(made)[0], compiled, bubbles)
    terminal.show_program(console, report)
    return _train(made, compiled, corpus, report, console, workdir)


def _abstract_inputs(made):
    """(TrainState, batch) as shapes with shardings."""

    def shaped(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state = jax.tree.map(shaped, jax.eval_shape(made.make_state), made.shardings)
    config = made.config
    rows = jax.ShapeDtypeStruct((config.train.global_batch, config.data.seq_len), "int32", sharding=made.batch_sharding)
    return state, {"inputs": rows, "labels": rows}


def _simulate(made):
    """schedule.svg, and the bubble with ranks running freely and in lockstep ticks."""
    costs = stage_costs(made.layout)
    free, lockstep = (made.schedule.simulate(costs, mode=mode, send="after_I") for mode in ("free", "lockstep"))
    return render_svg(free), (free.bubble, lockstep.bubble)


def _train(made, compiled, corpus, report, console, workdir):
    """Everything from the initial state on; the files are whole however it ends."""
    data, stop = made.config.data, loop.Stop()
    reporter = terminal.Reporter(console, made.config.train.num_steps)
    starts = batches.held_out_starts(corpus.held_out, data.seq_len, data.max_held_out_bytes)
    with MetricsLog(workdir) as log, stop.listening():
        with reporter.running():
            state, history = loop.train(made, compiled, made.make_state(), corpus, log, reporter, stop)
        counts = ByteModel(corpus.train)
        baseline = counts.bits_per_byte([corpus.held_out[at : at + data.seq_len + 1] for at in starts])
        report |= {**run_report(history, baseline), "sample": None}
        write_json(f"{workdir}/report.json", report)  # before the sample: nothing that fails there may lose it
        write_whole(f"{workdir}/loss.png", loss_png(history.losses, history.held_out, baseline, made.schedule.name))
        if made.config.sample.num_bytes and not history.interrupted:
            report["sample"] = _sample(made, state.params)
            write_json(f"{workdir}/report.json", report)
    terminal.show_results(console, report, workdir, FILES)
    return history.interrupted


def _sample(made, params):
    """Text that the trained model writes."""
    sample, window = made.config.sample, made.config.data.seq_len
    prompt = list(sample.prompt.encode()) or [ord("\n")]
    key = jax.random.key(made.config.seed)
    params = global_params(made, params)
    return to_text(generate(made.model, params, prompt, sample.num_bytes, window, sample.temperature, key))
