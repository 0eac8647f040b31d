"""Writes a checkpoint's weights, without the optimizer's state, for other programs.

python -m experiments.export --workdir=DIR --to=safetensors [--step=N] [--out=FILE]

Each layer's arrays get names of their own, "layers.3.mlp.out.kernel" (matrices are [in, out]); the file's metadata has
the model's settings. Default: the last complete step, to DIR/weights-N.safetensors. Needs pip install 'jaxpar[export]'.
Exit status: 0 done, 1 the checkpoint cannot be read, 2 a flag that cannot work.
"""

import json
import pathlib
import sys

from absl import flags

from experiments._app.flags import read
from jaxpar.emulate import emulate_devices
from jaxpar.errors import CheckpointError, SettingError

FORMATS = ("safetensors",)


def main(argv):
    """Runs the program; returns its exit status."""
    try:
        values = _parse(argv)
        step = _step(values.workdir, values.step)
        out = values.out or str(pathlib.Path(values.workdir, f"weights-{step}.{values.to}"))
        emulate_devices(1)
        _export(values.workdir, step, out)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    print(out)
    return 0


def _parse(argv):
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "Folder of the run.", values)
    flags.DEFINE_string("to", "safetensors", f"Format: {', '.join(FORMATS)}.", values)
    flags.DEFINE_integer("step", None, "Which checkpoint; default the last complete one.", flag_values=values)
    flags.DEFINE_string("out", None, "File to write.", values)
    read(values, argv, __doc__)
    if values.workdir is None:
        raise SettingError("workdir=None names no run: it says whose weights to write. Give --workdir=runs/NAME.")
    if values.to not in FORMATS:
        raise SettingError(f"to={values.to} is not a format that can be written: use one of {', '.join(FORMATS)}.")
    return values


def _step(workdir, wanted):
    from jaxpar.checkpoint import saved_steps

    steps = saved_steps(workdir)
    if not steps:
        raise SettingError(
            f"workdir={workdir} holds no checkpoint: only what was saved can be written. Train with checkpoint.every=N."
        )
    if wanted is not None and wanted not in steps:
        raise SettingError(
            f"step={wanted} is not saved: {workdir} holds {', '.join(map(str, steps))}. Use one of them."
        )
    return steps[-1] if wanted is None else wanted


def _export(workdir, step, out):
    from jaxpar.checkpoint import Store
    from jaxpar.checkpoint.export import named_weights, write_safetensors

    store = Store(workdir)
    try:
        params, about = store.weights(step), store.about(step)
    finally:
        store.close()
    settings = {name: json.dumps(value) for name, value in about["settings"].items()}
    write_safetensors(out, named_weights(params), {"step": str(step), **settings})


if __name__ == "__main__":
    sys.exit(main(sys.argv))
