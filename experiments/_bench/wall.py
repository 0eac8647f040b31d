"""Wall clock of two ranks on two cores against the simulator's makespan from action times of one core.

Each measurement is a process of its own (`wall_child`), since cores, devices and threads are settled at its start.
Action times are measured before and after the steps, and averaged: a machine that changes in between shows.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys

from experiments._bench.sizes import num_chunks_of
from experiments._bench.table import actions_line, wall_table
from jaxpar.errors import SettingError
from jaxpar.schedule import Costs, build

CHILD_SECONDS = 1800  # a child that takes longer hangs


def compare(size, schedules, layers, turns, console):
    """Measures, simulates and shows.

    Args:
      size: Size of two ranks; the first number of microbatches counts.
      schedules: names.
      layers: "unroll" or "loop".
      turns: int, steps that count.
      console: rich's.

    Returns:
      dict of JSON: "rows" as the comparison's, with "threads" (of XLA's pool), "simulated_s" (lockstep, gradients sent
      after I), "ratio" (measured / simulated), "bubble" (simulated); and "actions": by layers of a stage, seconds of
      each kind of action on one core, of a whole step of one rank and of one without actions.

    Raises:
      SettingError: fewer cores than ranks.
    """
    cores = usable_cores()
    if len(cores) < size.num_ranks:
        raise SettingError(
            f"wall=True with {len(cores)} core(s) is not possible: each of the {size.num_ranks} ranks needs a core of "
            "its own. Run it on a larger machine."
        )
    ask = {"size": dataclasses.asdict(size), "layers": layers, "turns": turns}
    depths = sorted({_depth(size, s) for s in schedules})
    one_core = {**ask, "what": "actions", "cores": cores[:1], "depths": depths, "remat": "none"}
    steps = {**ask, "what": "steps", "cores": cores[: size.num_ranks]}
    console.print("measuring action times on one core", style="dim")
    before = _child(one_core, threads=1)
    console.print("measuring steps of two ranks", style="dim")
    measured = _child({**steps, "schedules": list(schedules)})
    cramped = _child({**steps, "schedules": ["1f1b"]}, threads=size.num_ranks)
    console.print("measuring action times again", style="dim")
    actions = _average(before, _child(one_core, threads=1))
    rows = [_row(size, row, actions) for row in [*measured, *cramped]]
    console.print()
    for depth, times in actions.items():
        console.print(actions_line(times, depth))
    title = f"\n{size.num_ranks} ranks, {size.num_microbatches[0]} microbatches of {size.seq_len} tokens, a core each"
    console.print(wall_table(rows, title))
    console.print("threads: of XLA's CPU pool; with one a device, a rank that waits keeps the other from computing")
    return {"rows": rows, "actions": actions, "size": dataclasses.asdict(size)}


def action_costs(size, num_chunks, layers, remat, turns):
    """(Costs in seconds of one action on a stage, what `wall_child.action_times` says), measured on one core.

    Raises:
      SettingError: `remat` keeps names that the layer does not mark.
    """
    depth = size.layers_per_rank // num_chunks
    ask = {"size": dataclasses.asdict(size), "layers": layers, "turns": turns, "remat": remat}
    times = _child({**ask, "what": "actions", "cores": usable_cores()[:1], "depths": [depth]}, threads=1)[str(depth)]
    return Costs(**times["action_s"]), times


def usable_cores():
    """Numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def simulated(size, schedule, action_s):
    """The lockstep Timeline of a schedule by name, with costs in seconds: kind -> seconds, a stage's."""
    costs = Costs(**action_s)
    table = build(schedule, size.num_ranks, size.num_microbatches[0], num_chunks_of(schedule))
    return table.with_vocabulary("ends").simulate(costs, mode="lockstep", send="after_I")


def _depth(size, schedule):
    """Layers of a stage."""
    return size.layers_per_rank // num_chunks_of(schedule)


def _row(size, row, actions):
    timeline = simulated(size, row["schedule"], actions[str(_depth(size, row["schedule"]))]["action_s"])
    ratio = row["wall_s"] / timeline.makespan if timeline.makespan else None  # tiny actions may come out as nothing
    return {**row, "simulated_s": timeline.makespan, "ratio": ratio, "bubble": timeline.bubble}


def _average(first, second):
    """Of two trees of numbers alike."""
    if isinstance(first, dict):
        return {key: _average(first[key], second[key]) for key in first}
    return statistics.fmean((first, second))


def _child(ask, threads=None):
    """What wall_child answers, run with so many threads in XLA's pool (None: what emulate_devices gives)."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    if threads is not None:
        environment["NPROC"] = str(threads)
    command = [sys.executable, "-m", "experiments._bench.wall_child", json.dumps(ask)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "refused" in answer:
        raise SettingError(answer["refused"])
    return answer
