"""The room as a whole: no JAX, quick enough for large sizes, the names that others use."""

import subprocess
import sys
import time

import pytest

import jaxpar.schedule
from jaxpar.schedule import build, chunk_counts, names


def test_importing_does_not_import_jax():
    code = "import sys, jaxpar.schedule; sys.exit('jax' in sys.modules or 'jaxlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", names())
def test_large_sizes_are_quick(name):
    num_chunks = max(chunk_counts(name))

    def seconds(function, *arguments, **options):
        start = time.process_time()
        result = function(*arguments, **options)
        return time.process_time() - start, result

    first, schedule = seconds(build, name, 64, 512, num_chunks)
    assert min(first, seconds(build, name, 64, 512, num_chunks)[0]) < 1
    assert seconds(schedule.check)[0] < 5
    if name == "naive":
        return  # one rank at a time: 65,536 ticks of 64 ranks are a table of a gigabyte
    lowering, plan = seconds(schedule.lower)
    assert lowering < 5
    assert plan.table.nbytes < 50e6


def test_public_names_exist():
    for name in jaxpar.schedule.__all__:
        assert getattr(jaxpar.schedule, name).__doc__ or name == "KINDS"
