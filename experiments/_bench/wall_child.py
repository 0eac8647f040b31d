"""One measurement of the wall clock, in a process of its own: python -m experiments._bench.wall_child JSON.

JSON has "what" ("actions" or "steps"), "cores", "size", "layers", "turns", and "depths" with "remat" or "schedules".
The answer is JSON too, the last line of the output: {"refused": message} where settings cannot work. The number of
threads comes from the environment (NPROC).
"""

import dataclasses
import json
import os
import sys

from experiments._bench.sizes import Size
from jaxpar.emulate import emulate_devices
from jaxpar.errors import SettingError

KINDS = "EFHRIWG"  # actions that are timed; without recomputation R has no work


def main(argv):
    """Answers the question in argv[1]."""
    ask = json.loads(argv[1])
    if hasattr(os, "sched_setaffinity"):  # threads made from here on inherit it
        os.sched_setaffinity(0, ask["cores"])
    try:
        answer = _answer(ask)
    except SettingError as error:  # some settings only the traced model can tell
        answer = {"refused": str(error)}
    print(json.dumps(answer))


def _answer(ask):
    size = Size(**{**ask["size"], "num_microbatches": tuple(ask["size"]["num_microbatches"])})
    if ask["what"] == "actions":
        emulate_devices(1)
        options = ask["layers"], ask["turns"], ask["remat"]
        return {str(depth): action_times(size, depth, *options) for depth in ask["depths"]}
    emulate_devices(size.num_ranks)
    return steps(size, ask["schedules"], ask["layers"], ask["turns"])


def action_times(size, depth, layers, turns, remat="none"):
    """Seconds of each kind of action on a stage of `depth` layers, timed in the executor itself.

    A plan for one rank is run with all actions but one kind struck out of its table; what a step without any action
    takes is taken off.

    Returns:
      {"action_s": kind -> seconds of one action, "step_s": of the whole step, "idle_s": of one without actions,
      "explained": (idle_s + all actions) / step_s, near 1 where the parts make the whole}.
    """
    from experiments._bench import measure, programs

    num_microbatches = size.num_microbatches[0]
    stage = dataclasses.replace(size, num_ranks=1, layers_per_rank=depth)
    case = programs.make_case(stage, num_microbatches)
    pipeline, (*args, tables) = programs.jaxpar_step(case, "1f1b", layers=layers, remat=remat)
    compiled = pipeline.run.lower(*args, tables).compile()

    def step(kinds):
        struck = {**tables, "table": programs.put_whole(only(pipeline.plan, kinds), tables["table"])}
        return lambda: programs.finish(compiled(*args, struck))

    times = measure.take_turns([step(kinds) for kinds in (KINDS, "", *KINDS)], turns)
    whole, idle, *each = (t["wall_s"] for t in times)
    seconds = {kind: max(0.0, t - idle) / num_microbatches for kind, t in zip(KINDS, each, strict=True)}
    explained = (idle + num_microbatches * sum(seconds.values())) / whole
    return {"action_s": seconds, "step_s": whole, "idle_s": idle, "explained": explained}


def only(plan, kinds):
    """The plan's table with no actions but of these kinds."""
    table = plan.table.copy()
    for name, column in plan.columns.items():
        kind, field = name.split(".", 1)
        if field == "run" and kind not in kinds:
            table[..., column] = 0
    return table


def steps(size, schedules, layers, turns):
    """Rows of measured steps, one a schedule."""
    from experiments._bench import measure, programs

    case = programs.make_case(size, size.num_microbatches[0])
    rows = measure.measure([programs.make_jaxpar(case, schedule, layers=layers) for schedule in schedules], turns)
    return [{**row, "threads": int(os.environ["NPROC"])} for row in rows]


if __name__ == "__main__":
    main(sys.argv)
