"""Who takes part in a run of several processes: flags, variables, and what SLURM, Open MPI and Kubernetes set."""

import pytest

from jaxpar.distributed import Processes, emulated_share, find, lost_peer
from jaxpar.errors import SettingError

JAX = {"JAX_COORDINATOR_ADDRESS": "node0:9911", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
JOBSET = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JAX_COORDINATOR_ADDRESS": "run-workers-0-0.run:9911",
    "JAX_NUM_PROCESSES": "2",
    "JOB_COMPLETION_INDEX": "1",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OPEN_MPI = {**OPEN_MPI_5, "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def without(variables, name):
    return {key: value for key, value in variables.items() if key != name}


def test_one_process_where_nothing_says_otherwise():
    assert find(environ={}) == Processes(count=1, index=0, coordinator="", local_index=None)


def test_flags():
    assert find("node0:9911", 4, 3, environ={}) == Processes(4, 3, "node0:9911")
    assert find("[fe80::1]:9911", 2, 0, environ={}) == Processes(2, 0, "[fe80::1]:9911")
    assert find("node0:9911", 1, 0, environ={}) == Processes()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (JAX, Processes(4, 3, "node0:9911")),
        (JOBSET, Processes(2, 1, "run-workers-0-0.run:9911")),
        ({**JOBSET, "JAX_PROCESS_ID": "0"}, Processes(2, 0, "run-workers-0-0.run:9911")),
        (OPEN_MPI, Processes(4, 2, "", local_index=0)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, Processes(4, 2, "", local_index=None)),
        ({**OPEN_MPI_5, "JAX_COORDINATOR_ADDRESS": "node0:9911"}, Processes(4, 2, "node0:9911", local_index=0)),
        (SLURM, Processes(2, 1, "")),
        ({**SLURM, "JAX_COORDINATOR_ADDRESS": "node1:9911"}, Processes(2, 1, "node1:9911")),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1"}, Processes(2, 1, "")),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_LOCALID": "1"}, Processes(2, 1, "", local_index=1)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "16"}, Processes(2, 1, "", local_index=0)),
        (without(SLURM, "SLURM_STEP_NODELIST"), Processes()),  # a batch script, outside of srun
        ({"JOB_COMPLETION_INDEX": "5"}, Processes()),  # one of many runs of one process each
        ({"JAX_NUM_PROCESSES": "1"}, Processes()),
        ({**OPEN_MPI_5, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, Processes()),
    ],
)
def test_variables(environ, expected):
    assert find(environ=environ) == expected


def test_flags_come_before_variables_and_these_before_what_a_cluster_sets():
    everything = {**JAX, **OPEN_MPI, **SLURM}
    assert find("other:1", 2, 1, environ=everything) == Processes(2, 1, "other:1")
    assert find(environ=everything) == Processes(4, 3, "node0:9911")
    assert find(environ={**OPEN_MPI, **SLURM}).count == 4, "mpirun inside an allocation of SLURM"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("node0:9911", None, None), "--num_processes=None is missing"),
        ((None, 2, 1), "--coordinator=None is missing"),
        (("node0:9911", 2, None), "--process_id=None is missing"),
        (("node0", 2, 1), "coordinator=node0 names no host and port"),
        ((":9911", 2, 1), "coordinator=:9911 names no host and port"),
        (("node0:99111", 2, 1), "names no host and port"),
        (("", 2, 1), "coordinator= names no host and port"),
        (("node0:9911", 0, 0), "process_id=0 is not one of num_processes=0"),
        (("node0:9911", 2, 2), r"process_id=2 is not one of num_processes=2.*Use 0 .. 1\."),
        (("node0:9911", 2, -1), "process_id=-1 is not one"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, part):
    with pytest.raises(SettingError, match=part):
        find(*flags, environ={})


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        (
            without(JAX, "JAX_PROCESS_ID"),
            r"JAX_NUM_PROCESSES=4 comes without JAX_PROCESS_ID \(or JOB_COMPLETION_INDEX\)",
        ),
        (without(JAX, "JAX_COORDINATOR_ADDRESS"), "JAX_NUM_PROCESSES=4 comes without JAX_COORDINATOR_ADDRESS"),
        (without(JAX, "JAX_NUM_PROCESSES"), "JAX_COORDINATOR_ADDRESS=node0:9911 comes without JAX_NUM_PROCESSES"),
        ({**JAX, "JAX_NUM_PROCESSES": "four"}, "num_processes=four with process_id=3 are not whole numbers"),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "node0"}, "coordinator=node0 names no host and port"),
        (OPEN_MPI_5, "OMPI_COMM_WORLD_SIZE=4 comes without an address.*since version 5.*-x JAX_COORDINATOR_ADDRESS="),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_RANK"), "process_id=None are not whole numbers"),
        ({**SLURM, "SLURM_PROCID": "2"}, "process_id=2 is not one of num_processes=2"),
    ],
)
def test_variables_that_would_leave_each_process_alone_are_refused(environ, part):
    with pytest.raises(SettingError, match=part):
        find(environ=environ)


def test_emulated_devices_are_shared_out():
    assert emulated_share(8, Processes()) == 8
    assert emulated_share(8, Processes(4, 1, "node0:9911")) == 2
    assert emulated_share(0, Processes(4, 1, "node0:9911")) == 0
    with pytest.raises(SettingError, match=r"emulate_devices=8 does not divide by 3 processes.*Use a multiple of 3\."):
        emulated_share(8, Processes(3, 1, "node0:9911"))


def test_a_lost_peer_is_told_from_an_error_of_ones_own():
    import jax

    lost = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    assert lost_peer(lost)
    assert not lost_peer(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not lost_peer(ValueError("gloo"))
    try:
        raise OSError("a checkpoint could not be written") from lost
    except OSError as error:
        assert lost_peer(error)
