"""Emulated devices: the right number, or a clear refusal; and threads enough for them."""

import subprocess
import sys

import jax
import pytest

from jaxpar.emulate import emulate_devices
from jaxpar.errors import SettingError

_COUNT_THREADS = """
import os
os.environ.pop("XLA_FLAGS", None)
{before}
from jaxpar.emulate import emulate_devices
emulate_devices(4)
import jax
(jax.numpy.ones(8) + 1).block_until_ready()
assert len(jax.devices()) == 4 and jax.devices()[0].platform == "cpu"
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("Threads")))
"""


def _run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_this_process_has_eight_devices():
    assert len(jax.devices()) == 8


def test_asking_again_for_the_same_number_is_harmless():
    emulate_devices(8)
    emulate_devices(0)
    assert len(jax.devices()) == 8


def test_asking_too_late_is_refused():
    with pytest.raises(SettingError, match=r"emulate_devices=4 comes too late.*already started with 8 cpu device"):
        emulate_devices(4)


def test_asking_too_late_is_refused_in_a_fresh_process_that_saw_one_device():
    done = _run(
        "import os; os.environ.pop('XLA_FLAGS', None); import jax; jax.devices()\n"
        "from jaxpar.emulate import emulate_devices; emulate_devices(8)"
    )
    assert done.returncode != 0
    assert "emulate_devices=8 comes too late: JAX has already started with 1" in done.stderr


@pytest.mark.parametrize("count", [-1, 2.0, "8", True])
def test_what_is_no_count_is_refused(count):
    with pytest.raises(SettingError, match="is not a count of devices"):
        emulate_devices(count)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_thread_pool_has_room_for_waiting_devices_and_the_users_own_number_stays():
    roomy = _run(_COUNT_THREADS.format(before="os.environ.pop('NPROC', None)"))
    own = _run(_COUNT_THREADS.format(before="os.environ['NPROC'] = '2'"))
    assert roomy.returncode == own.returncode == 0, roomy.stderr + own.stderr
    assert int(roomy.stdout) >= int(own.stdout) + 4 * 4 - 2
