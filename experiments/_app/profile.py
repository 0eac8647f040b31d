"""A trace of some steps, as XLA's profiler writes it (TensorBoard and Perfetto read it)."""

import jax


class Profile:
    """Traces the steps from `first` up to but not `last` to workdir/profile."""

    def __init__(self, workdir, first=0, last=0):
        self._folder, self._first, self._last = f"{workdir}/profile", first, last
        self._running = False

    def before(self, step):
        """Starts or ends the trace where this step is its border."""
        if step == self._first:
            jax.profiler.start_trace(self._folder)
            self._running = True
        elif step == self._last:
            self._stop()

    def _stop(self):
        if self._running:
            self._running = False
            jax.profiler.stop_trace()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()
