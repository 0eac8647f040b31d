"""Every test sees eight emulated CPU devices; a collective that waits in vain ends the process instead of hanging."""

import os

_TIMEOUTS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
    "--xla_cpu_collective_call_terminate_timeout_seconds=180",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_TIMEOUTS]).strip()

from jaxpar.emulate import emulate_devices  # noqa: E402  (the flags above must be set before JAX loads)

emulate_devices(8)
