"""Trains a decoder over data x pipe x tensor parallel devices, real or emulated, in one process or several.

python -m experiments.train --config=configs/quickstart.py [--config.a.b=value ...] [--workdir=DIR]

The workdir gets config.json, metrics.jsonl, report.json, loss.png, schedule.svg, event files for TensorBoard and
checkpoints. Exit status: 0 done, or interrupted and saved; 1 the run cannot go on (a message says why, and which
checkpoint is good); 2 a setting that cannot work (one message, nothing written); 130 interrupted for the second time.
"""

import sys
import traceback

from experiments._app import flags
from jaxpar import distributed
from jaxpar.emulate import emulate_devices
from jaxpar.errors import CheckpointError, SettingError, TrainingError

INTERRUPTED = 130  # the shell's status for Ctrl-C


def main(argv):
    """Runs the program; returns its exit status."""
    several = False
    try:
        command = flags.parse(argv, __doc__)
        several = command.processes.count > 1
        emulate_devices(distributed.emulated_share(command.config.emulate_devices, command.processes))
        distributed.start(command.processes)
        from experiments._app import trainer  # loads JAX: here, where the devices are settled

        trainer.run(command.config, command.workdir, command.get_optimizer)
        return 0
    except SettingError as error:
        return _failed(several, 2, error)
    except (CheckpointError, TrainingError) as error:
        return _failed(several, 1, _with_cause(error, error))
    except KeyboardInterrupt:
        return _failed(several, INTERRUPTED, "interrupted")
    except Exception as error:
        if not several:
            raise
        return _failed(several, 1, _with_cause(error, traceback.format_exc().rstrip()))


def _with_cause(error, message):
    """The message, with what it means where another process is to blame."""
    return f"{distributed.LOST_PEER}\n{message}" if distributed.lost_peer(error) else message


def _failed(several, status, message):
    """One of several processes must not wait for the others, which may wait for it."""
    print(message, file=sys.stderr, flush=True)
    if several:
        distributed.leave(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
