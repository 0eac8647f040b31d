"""Several processes as one program: who takes part, told by flags, SLURM, Open MPI or Kubernetes.

Import it before JAX: nothing here loads JAX until `start` is called.
"""

import dataclasses
import os
import sys

from jaxpar.errors import SettingError

# A process that dies is noticed by the others after this long; all end within a minute of it.
_HEARTBEAT_S = 25
_START_S = 300


@dataclasses.dataclass(frozen=True)
class Processes:
    """Which processes make up the run.

    Attributes:
      count: processes; 1: this one alone.
      index: this one's number.
      coordinator: "host:port" of process 0; empty: JAX finds it by itself (SLURM, Open MPI).
    """

    count: int = 1
    index: int = 0
    coordinator: str = ""


def find(coordinator=None, num_processes=None, process_id=None, environ=None):
    """The Processes of this run: from the flags, else from what started it.

    Variables are read in this order: JAX_COORDINATOR_ADDRESS with JAX_NUM_PROCESSES and JAX_PROCESS_ID (or the
    JOB_COMPLETION_INDEX that Kubernetes gives each pod of an indexed job), those of Open MPI's mpirun, those of SLURM's
    srun.

    Args:
      coordinator, num_processes, process_id: the flags; None where not given. All of them or none.
      environ: mapping; default `os.environ`.

    Raises:
      SettingError: some of them only, or numbers that make no sense.
    """
    env = os.environ if environ is None else environ
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    if all(value is None for value in given.values()):
        given = _from_jax(env)
    elif missing := [f"--{name}" for name, value in given.items() if value is None]:
        raise SettingError(
            f"{missing[0]}=None is missing: a process must know all of --coordinator, --num_processes and "
            "--process_id to find the others. Give all three or none."
        )
    if given:
        return _checked(given["num_processes"], given["process_id"], given["coordinator"])
    if "OMPI_MCA_orte_hnp_uri" in env and "OMPI_COMM_WORLD_SIZE" in env:
        return _checked(env["OMPI_COMM_WORLD_SIZE"], env["OMPI_COMM_WORLD_RANK"], "")
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    if all(name in env for name in names):
        return _checked(env["SLURM_NTASKS"], env["SLURM_PROCID"], "")
    return Processes()


def _from_jax(env):
    address, count = env.get("JAX_COORDINATOR_ADDRESS"), env.get("JAX_NUM_PROCESSES")
    index = env.get("JAX_PROCESS_ID", env.get("JOB_COMPLETION_INDEX"))
    if address is None or count is None or index is None:
        return None
    return {"coordinator": address, "num_processes": count, "process_id": index}


def _checked(count, index, coordinator):
    try:
        count, index = int(count), int(index)
    except ValueError:
        raise SettingError(
            f"num_processes={count} with process_id={index} are not whole numbers: processes are counted. Correct what "
            "started the run."
        ) from None
    if count < 1 or not 0 <= index < count:
        raise SettingError(
            f"process_id={index} is not one of num_processes={count}: they are numbered from 0. "
            f"Use 0 .. {max(count, 1) - 1}."
        )
    if coordinator and not coordinator.rpartition(":")[2].isdigit():
        raise SettingError(
            f"coordinator={coordinator} names no port: it is where process 0 listens. Write host:port, as node0:9911."
        )
    return Processes(count, index, coordinator) if count > 1 else Processes()


def emulated_share(num_devices, processes):
    """How many of the run's emulated devices this process shows; `num_devices` counts those of all.

    Raises:
      SettingError: they do not divide.
    """
    if num_devices % processes.count:
        raise SettingError(
            f"emulate_devices={num_devices} does not divide by {processes.count} processes: each shows an equal "
            f"share. Use a multiple of {processes.count}."
        )
    return num_devices // processes.count


def start(processes):
    """Joins the other processes; after it `jax.devices()` are those of all. Does nothing for one process alone."""
    if processes.count == 1:
        return
    import jax

    more = {"coordinator_address": processes.coordinator} if processes.coordinator else {}
    more |= {"num_processes": processes.count, "process_id": processes.index} if processes.coordinator else {}
    jax.distributed.initialize(
        **more, initialization_timeout=_START_S, heartbeat_timeout_seconds=_HEARTBEAT_S, shutdown_timeout_seconds=60
    )


def leave(status):
    """Ends this process with a status other than 0 at once: not waiting for the others, which may wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def any_process(flag):
    """Whether the flag is set in any process, the same answer in all; every process must call it."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return bool(flag)
    from jax.experimental import multihost_utils

    return bool(np.max(multihost_utils.process_allgather(np.int32(flag))))
