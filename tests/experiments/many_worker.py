"""A process that trains several configs one after the other and writes what it saw itself, beside what a run writes.

many_worker.py CONFIG WORKDIR RUNS [--coordinator=... --num_processes=... --process_id=...]

RUNS is JSON: {name: {setting: value}}; each runs in WORKDIR/NAME, and process I writes WORKDIR/NAME.processI.json.
With DIE_AT=save or DIE_AT=wait in its environment it kills itself as it begins to save, or to wait for what it saves.
"""

import json
import os
import signal
import sys
import traceback

from experiments._app import flags
from jaxpar import distributed
from jaxpar.emulate import emulate_devices


def main(argv):
    """Joins the others, then runs them all."""
    program, config_file, workdir, runs, *rest = argv
    commands = {}
    for name, settings in json.loads(runs).items():
        given = [f"--config.{setting}={value}" for setting, value in settings.items()]
        commands[name] = flags.parse([program, f"--config={config_file}", f"--workdir={workdir}/{name}", *given, *rest])
    first = next(iter(commands.values()))
    emulate_devices(distributed.emulated_share(first.config.emulate_devices, first.processes))
    distributed.start(first.processes)
    from experiments._app import loop, trainer
    from jaxpar.checkpoint import Store

    train, seen = loop.train, {}

    def watched(made, compiled, state, corpus, progress, history, around):
        state = train(made, compiled, state, corpus, progress, history, around)
        seen.update(losses=history.losses, held_out=history.held_out, rows=made.rows.tolist())
        seen.update(mesh=[[[device.process_index for device in t] for t in p] for p in made.mesh.devices])
        return state

    loop.train = watched
    if moment := os.environ.get("DIE_AT"):
        setattr(Store, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    try:
        for name, command in commands.items():
            trainer.run(command.config, command.workdir)
            with open(f"{workdir}/{name}.process{first.processes.index}.json", "w") as file:
                json.dump(seen, file)
    except Exception:
        traceback.print_exc()
        distributed.leave(1)


if __name__ == "__main__":
    main(sys.argv)
