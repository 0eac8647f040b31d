"""Measuring by turns: what is compared runs in one process, one step of each after the other, again and again.

So a machine that gets slower or busier does so for all of them alike.
"""

import gc
import statistics
import time

LOSS_TOLERANCE = 1e-4  # relative; sums in another order differ by less


def take_turns(functions, num_turns, cpu_clock=time.process_time, wall_clock=time.perf_counter):
    """Median seconds of each function, after one call each to warm up.

    Args:
      functions: sequence of functions without arguments that return when their work is done.
      num_turns: int, calls of each that count.
      cpu_clock, wall_clock: seconds; the CPU's are of all threads, in user and system mode.

    Returns:
      List of {"cpu_s", "wall_s"}, one a function.
    """
    for function in functions:
        function()
    samples = [([], []) for _ in functions]
    gc.collect()
    for _ in range(num_turns):
        for function, (cpu, wall) in zip(functions, samples, strict=True):
            wall_start, cpu_start = wall_clock(), cpu_clock()
            function()
            cpu.append(cpu_clock() - cpu_start)
            wall.append(wall_clock() - wall_start)
    return [{"cpu_s": statistics.median(cpu), "wall_s": statistics.median(wall)} for cpu, wall in samples]


def measure(programs, num_turns):
    """Rows of the results: what each Program's row says, its loss, its medians, and ratios to the baselines.

    Raises:
      RuntimeError: the programs' losses differ, so that they cannot be compared.
    """
    losses = [program.run() for program in programs]
    for program, loss in zip(programs, losses, strict=True):
        if not abs(loss - losses[0]) <= LOSS_TOLERANCE * abs(losses[0]):
            raise RuntimeError(f"{program.row} computes the loss {loss}, not {losses[0]}")
    times = take_turns([program.run for program in programs], num_turns)
    rows = [{**p.row, "loss": loss, **t} for p, loss, t in zip(programs, losses, times, strict=True)]
    return [{**row, **_ratios(row, rows)} for row in rows]


def _ratios(row, rows):
    """For CPU seconds, wall seconds and temporary bytes: row / baseline's row, None where there is none."""
    ratios = {}
    for baseline in ("single", "single_accumulated", "autodiff"):
        base = next((other for other in rows if other["name"] == baseline), None)
        for key, short in (("cpu_s", "cpu"), ("wall_s", "wall"), ("temp_bytes", "temp")):
            known = base is not None and base[key] and row[key] is not None
            ratios[f"{short}_vs_{baseline}"] = row[key] / base[key] if known else None
    return ratios
