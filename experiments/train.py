"""Trains a byte-level decoder over data x pipe x tensor parallel devices, real or emulated.

python -m experiments.train --config=configs/quickstart.py [--config.a.b=value ...] [--workdir=DIR]

The workdir gets config.json, metrics.jsonl, report.json, loss.png and schedule.svg. Exit status: 0 done, 2 a setting
that cannot work (one message, nothing written), 130 interrupted (the files cover the steps that were done).
"""

import sys

from experiments._app import flags
from jaxpar.emulate import emulate_devices
from jaxpar.errors import SettingError

INTERRUPTED = 130  # the shell's status for Ctrl-C


def main(argv):
    """Runs the program; returns its exit status."""
    try:
        config, workdir = flags.parse(argv, __doc__)
        emulate_devices(config.emulate_devices)
        from experiments._app import trainer  # loads JAX: here, where the devices are settled

        return INTERRUPTED if trainer.run(config, workdir) else 0
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
