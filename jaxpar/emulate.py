"""Emulated devices: many CPU devices in one process, with threads enough to run them side by side.

A program for eight accelerators runs, and is tested, on a laptop: XLA's CPU backend shows as many devices as it is
asked for. The number is fixed when the backend starts, that is at the first JAX operation, so ask before.
"""

import os

from jaxpar.errors import SettingError

# A device that waits in a collective holds a thread of XLA's CPU pool, and XLA makes no more threads than the machine
# has cores. With as many waiting devices as threads, those that could compute take turns instead.
THREADS_PER_DEVICE = 4

# A device waits for its peers as long as they compute, and emulated ones take turns on few cores: XLA's 40 seconds
# before it ends the process are too few for a large model or a busy machine.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 1200,
}


def emulate_devices(num_devices, threads_per_device=THREADS_PER_DEVICE):
    """Shows `num_devices` CPU devices to JAX and makes the CPU the only platform.

    Calling again with the same number is harmless. XLA reads the size of its thread pool from the environment variable
    `NPROC` when the backend starts, and from `XLA_FLAGS` how long a device waits in a collective; what is already in
    the environment is the user's own, and stays.

    Args:
      num_devices: int; 0 leaves the real devices alone and does nothing.
      threads_per_device: int; threads in XLA's CPU pool for each device.

    Raises:
      SettingError: `num_devices` is no count, or JAX has already started with other devices.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 0:
        raise SettingError(
            f"emulate_devices={num_devices!r} is not a count of devices: it must be a whole number, 0 for the real "
            "devices. Use 8, or 0."
        )
    if num_devices == 0:
        return
    import jax  # here, so that a program may set more of XLA's environment before JAX loads

    flags = os.environ.get("XLA_FLAGS", "")
    more = [f"--{name}={seconds}" for name, seconds in _PATIENCE.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *more]).strip()
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, threads_per_device * num_devices)))
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        _check_started(jax, num_devices, error)
        return
    jax.config.update("jax_platforms", "cpu")


def _check_started(jax, num_devices, error):
    """The backend has started: that is fine only where it already shows what was asked for."""
    devices = jax.devices()
    if len(devices) == num_devices and devices[0].platform == "cpu":
        return
    raise SettingError(
        f"emulate_devices={num_devices} comes too late: JAX has already started with {len(devices)} "
        f"{devices[0].platform} device(s), and their number is fixed from then on. Call emulate_devices before the "
        "first JAX operation, or start a new process."
    ) from error
