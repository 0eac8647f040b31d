"""JAX itself finds the processes in what Open MPI and SLURM set, and ours start from it."""

import json

import pytest
from many import Started, free_port

# What a process sees, without training: all devices, one answer for all, the GPUs that it may take.
LOOK = """
import json
from jaxpar import distributed
from jaxpar.emulate import emulate_devices
found = distributed.find()
emulate_devices(distributed.emulated_share(4, found))
distributed.start(found)
import jax
from jaxpar.mesh import make_mesh
mesh = make_mesh(1, 2, 2)
gpus = jax.config.values["jax_cuda_visible_devices"]
print(json.dumps({
    "processes": jax.process_count(), "index": jax.process_index(), "devices": jax.device_count(),
    "any": [distributed.any_process(jax.process_index() == 1), distributed.any_process(False)],
    "pipe": [[device.process_index for device in group] for group in mesh.devices[0]], "gpus": gpus,
}))
"""


def open_mpi(index, port, local_size):
    return {
        "OMPI_MCA_orte_hnp_uri": f"{(port - 61440) * 4096}.0;tcp://127.0.0.1:34911",  # JAX makes the port of the job
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index % local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
    }


def slurm(index, port, local_size):
    return {
        "SLURM_JOB_ID": str(port - 61440),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index % local_size),
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)" if local_size == 1 else "2",
    }


def jobset(index, port, local_size):
    return {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JOB_COMPLETION_INDEX": str(index),
    }


@pytest.mark.parametrize(
    ("variables", "local_size", "gpus"),
    [
        (open_mpi, 2, ["0", "1"]),
        (slurm, 1, ["all", "all"]),
        (open_mpi, 1, ["all", "all"]),
        (slurm, 2, ["0", "1"]),
        (jobset, 1, ["all", "all"]),
    ],
)
def test_two_processes_meet(tmp_path, variables, local_size, gpus):
    port = free_port(61440, 65535)
    environs = [variables(index, port, local_size) for index in (0, 1)]
    with Started([["-c", LOOK]] * 2, tmp_path, environs) as started:
        assert started.wait(200) == [0, 0], started.everything()
        seen = [json.loads(started.out(index).splitlines()[-1]) for index in (0, 1)]
        assert "kubernetes" not in started.everything()
    assert [found.pop("index") for found in seen] == [0, 1]
    assert [found.pop("gpus") for found in seen] == gpus
    expected = {"processes": 2, "devices": 4, "any": [True, False], "pipe": [[0, 0], [1, 1]]}
    assert seen == [expected, expected]
