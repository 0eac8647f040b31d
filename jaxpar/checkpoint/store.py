"""Checkpoints below a folder, by Orbax: asynchronous, complete or not there at all, some of them kept.

A checkpoint is named by the batches done. It holds the state's layout-free arrays and a small JSON: the position in
the data, in samples, and the settings that a run going on from it must share.
"""

import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from jaxpar.errors import CheckpointError

FOLDER = "checkpoints"


class Store:
    """The checkpoints of a workdir."""

    def __init__(self, workdir, keep=1, keep_every=0):
        """Opens the folder, which is made with the first save.

        Args:
          workdir: str; all processes see the same.
          keep: the newest checkpoints that stay.
          keep_every: checkpoints at multiples of it stay for good; 0: none.
        """
        self._root = pathlib.Path(workdir, FOLDER).absolute()
        self._keep, self._keep_every = keep, keep_every
        self._opened = None

    @property
    def _manager(self):
        if self._opened is None:
            kept = [checkpoint_managers.LatestN(self._keep)]
            kept += [checkpoint_managers.EveryNSteps(self._keep_every)] if self._keep_every else []
            options = ocp.CheckpointManagerOptions(
                preservation_policy=checkpoint_managers.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=True,
                create=True,
            )
            self._opened = ocp.CheckpointManager(self._root, options=options)
        return self._opened

    def _reading(self, **options):
        """A manager that changes nothing: another run may be saving into the folder."""
        return ocp.CheckpointManager(self._root, options=ocp.CheckpointManagerOptions(read_only=True), **options)

    def latest(self):
        """The newest complete step, or None."""
        return max(saved_steps(self._root.parent), default=None)

    def path(self, step):
        """The folder of a step."""
        return str(self._root / str(step))

    def save(self, step, state, about):
        """Starts to save; the arrays must be the save's own (`FreeForm.release`).

        Args:
          step: int, batches done.
          state: layout-free tree.
          about: dict for the JSON.

        Raises:
          CheckpointError: this save, or the one before, failed.
        """
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
        with self._failures(step):
            self._manager.save(step, args=args, force=True)

    def about(self, step):
        """The JSON of a step."""
        with self._unreadable(step), self._reading() as manager:
            return manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]

    def restore(self, step, like):
        """The arrays of a step.

        Args:
          like: tree of ShapeDtypeStructs with shardings; any tree whose leaves the checkpoint has.

        Raises:
          CheckpointError: it cannot be read, or it holds other arrays.
        """
        with self._unreadable(step), self._reading() as manager:
            found = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like)))
        return found["state"]

    def weights(self, step):
        """The parameters of a step as NumPy arrays: {"embed", "layers", "head"}, layers by global index.

        Raises:
          CheckpointError: it cannot be read.
        """
        with self._unreadable(step):
            handlers = {"state": ocp.PyTreeCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
            with self._reading(item_handlers=handlers) as manager:
                saved = manager.item_metadata(step)["state"].tree["params"]
                like = {"params": jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), saved)}
                as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
                args = ocp.args.PyTreeRestore(like, restore_args=as_numpy, partial_restore=True)
                return manager.restore(step, args=ocp.args.Composite(state=args))["state"]["params"]

    def check(self):
        """Raises CheckpointError where a save in the background has failed."""
        if self._opened is not None:
            with self._failures(None):
                self._opened.check_for_errors()

    def wait(self):
        """Waits for the save in the background; raises CheckpointError where it failed."""
        if self._opened is not None:
            with self._failures(None):
                self._opened.wait_until_finished()

    def close(self):
        """Ends the background threads."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _failures(self, step):
        what = "a checkpoint" if step is None else f"the checkpoint of step {step}, or the one before it,"
        return _Turned(lambda error: f"{what} could not be written below {self._root}: {error}. {self._usable()}")

    def _unreadable(self, step):
        return _Turned(
            lambda error: (
                f"{self.path(step)} cannot be read: {error}. Its model or optimizer has other arrays than this run's: "
                "set them as they were. Or it is damaged: delete that folder to go on from an earlier step."
            )
        )

    def _usable(self):
        last = self.latest()
        return "No step is saved." if last is None else f"The last complete step is {last} ({self.path(last)})."


class _Turned:
    """Turns what goes wrong inside into a CheckpointError."""

    def __init__(self, message):
        self._message = message

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if isinstance(error, Exception):
            text = " ".join(str(error).split()) or kind.__name__
            raise CheckpointError(self._message(text[:500])) from error


def saved_steps(workdir):
    """The complete steps below a workdir, ascending. What a killed save left behind is not among them."""
    root = pathlib.Path(workdir, FOLDER)
    names = [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())
