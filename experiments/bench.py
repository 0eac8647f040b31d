"""Compares the pipeline with one device and with GPipe by autodiff: time, memory, size of the program.

python -m experiments.bench [--quick] [--out=bench.json] [--workdir=DIR] [--turns=5] [--layers=unroll|loop]
    [--num_microbatches=8,32]
python -m experiments.bench --wall ...
python -m experiments.bench --costs [--num_chunks=2] [--remat=none] [--out=costs.json]

All compute the loss and the gradients of one batch with the same decoder (8 layers, width 512, tied vocabulary of
8,192, 128 tokens a microbatch, float32) on 4 emulated CPU devices, and take turns in one process:

  single              one device, the whole batch in one go; single_accumulated: microbatch by microbatch
  autodiff            GPipe by differentiating through a loop over ticks; autodiff_remat: with recomputation
  jaxpar              ours, for every schedule; two chunks a rank where it takes them

Reports medians: CPU seconds (of all threads), wall seconds, temporary bytes of one device, bytes of the compiled text;
of ours the simulated bubble at unit costs and the peak of live activations, in microbatches.
On two cores wall seconds of 4 ranks say little; --wall instead runs 2 ranks, one a core, and compares their wall clock
with the makespan simulated from action times that it measures on one core.

--costs measures those action times for a stage of the comparison's size (its layers a rank / num_chunks) and writes
them as a costs file, which the search takes: --config.pipeline.schedule=auto --config.pipeline.costs=costs.json. A hop
between emulated devices is no link: it counts as 0 there, set it by hand.

--quick takes tiny sizes, to see that everything runs; its figures mean nothing. Takes about 15 minutes on two cores
(--quick: one or two). Exit status: 0 done, 2 a setting that cannot work, 130 interrupted.
"""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import sys

from absl import flags

from experiments._app.flags import read
from experiments._app.terminal import make_console
from experiments._bench import sizes, wall
from experiments._bench.table import actions_line, results_table
from jaxpar.emulate import emulate_devices
from jaxpar.errors import SettingError
from jaxpar.metrics import open_workdir, write_json
from jaxpar.schedule import names
from jaxpar.schedule.recompute import saved_names

MIN_TURNS = 5
INTERRUPTED = 130  # the shell's status for Ctrl-C


def main(argv):
    """Runs the program; returns its exit status."""
    console = make_console()
    try:
        options = parse(argv)
        out = pathlib.Path(options.workdir, options.out or ("costs.json" if options.costs else "bench.json"))
        open_workdir(out.parent, ())
        if options.costs:
            return _costs(options, out, console)
        result = _wall(options, console) if options.wall else _compare(options, console)
        write_json(out, {**result, "machine": machine(), "turns": options.turns, "quick": options.quick})
        console.print(f"\nresults in {out}")
        return 0
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def parse(argv):
    """The command line's FlagValues.

    Raises:
      SettingError: an unknown flag or a value that cannot be.
      SystemExit: `--help` was asked for (status 0).
    """
    values = flags.FlagValues()
    flags.DEFINE_bool("quick", False, "Tiny sizes.", values)
    flags.DEFINE_bool("wall", False, "Wall clock of 2 ranks against the simulation, instead of the comparison.", values)
    flags.DEFINE_bool("costs", False, "Write action times as a costs file, instead of the comparison.", values)
    flags.DEFINE_integer("num_chunks", 1, "With --costs: chunks a rank.", flag_values=values)
    flags.DEFINE_string("remat", "none", "With --costs: what is recomputed.", values)
    flags.DEFINE_string("out", None, "File for the results, in the workdir. bench.json, or costs.json.", values)
    flags.DEFINE_string("workdir", ".", "Folder of the results.", values)
    flags.DEFINE_integer("turns", MIN_TURNS, "Steps of each program that count.", flag_values=values)
    flags.DEFINE_string("layers", "unroll", "How ours runs the layers of a stage: unroll or loop.", values)
    flags.DEFINE_list("num_microbatches", None, "Numbers of microbatches, by commas. Default: the size's.", values)
    read(values, argv, __doc__)
    return _checked(values)


def _checked(values):
    if values.turns < MIN_TURNS:
        raise SettingError(f"turns={values.turns} is too few: a median needs {MIN_TURNS}. Use {MIN_TURNS} or more.")
    if values.layers not in ("unroll", "loop"):
        raise SettingError(f"layers={values.layers} is unknown: there is no such way. Use unroll or loop.")
    saved_names(values.remat)  # raises where it is no policy
    depth = sizes.FULL.layers_per_rank
    if values.num_chunks < 1 or depth % values.num_chunks:
        raise SettingError(
            f"num_chunks={values.num_chunks} does not divide the {depth} layers a rank: a stage has whole layers. "
            "Use 1 or 2."
        )
    if values.costs and values.wall:
        raise SettingError("costs and wall together: each is a run of its own. Leave out --costs or --wall.")
    if not values.costs and (values.num_chunks != 1 or values.remat != "none"):
        raise SettingError("num_chunks and remat without --costs: the comparison sets its own. Add --costs.")
    for count in values.num_microbatches or ():
        if not count.isdigit() or int(count) < 1:
            raise SettingError(
                f"num_microbatches={count} is not a positive integer: it counts. Write --num_microbatches=8,32."
            )
    return values


def _size(options):
    size = sizes.QUICK if options.quick else sizes.FULL
    counts = tuple(map(int, options.num_microbatches or ())) or size.num_microbatches
    return dataclasses.replace(size, num_microbatches=counts)


def _compare(options, console):
    size = _size(options)
    emulate_devices(size.num_ranks)
    from experiments._bench import measure, programs  # load JAX: here, where the devices are settled

    rows = []
    for num_microbatches in size.num_microbatches:
        case = programs.make_case(size, num_microbatches)
        made = []
        for make in _makers(programs, options.layers):
            made.append(make(case))
            what = " ".join(filter(None, (made[-1].row[key] for key in ("name", "schedule", "vocabulary"))))
            console.print(f"compiled  {what} in {made[-1].row['compile_s']:.1f} s", style="dim")
        found = measure.measure(made, options.turns)
        title = f"\n{size.num_ranks} ranks, {num_microbatches} microbatches of {size.seq_len} tokens"
        console.print(results_table(found, title))
        rows += found
    return {"rows": rows, "size": dataclasses.asdict(size)}


def _makers(programs, layers):
    """Functions Case -> Program, in the order of the table."""
    yield programs.make_single
    yield lambda case: programs.make_single(case, accumulated=True)
    yield programs.make_autodiff
    yield lambda case: programs.make_autodiff(case, remat=True)
    for schedule in names():
        for vocabulary in ("ends", "pipe") if schedule == "1f1b" else ("ends",):
            yield lambda case, s=schedule, v=vocabulary: programs.make_jaxpar(case, s, v, layers)


def _wall(options, console):
    return wall.compare(sizes.two_ranks(_size(options)), names(), options.layers, options.turns, console)


def _costs(options, out, console):
    console.print("measuring action times on one core", style="dim")
    costs, times = wall.action_costs(_size(options), options.num_chunks, options.layers, options.remat, options.turns)
    costs.to_json(out, note=f"seconds of one action on a stage of emulated CPU: experiments.bench --costs, {machine()}")
    console.print(actions_line(times, _size(options).layers_per_rank // options.num_chunks))
    console.print(f"\ncosts in {out}")
    return 0


def machine():
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("NPROC"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv))
