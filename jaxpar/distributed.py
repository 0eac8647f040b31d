"""Several processes as one program: who takes part, told by flags, SLURM, Open MPI or Kubernetes.

Import it before JAX: nothing here loads JAX until `start` is called.
"""

import dataclasses
import os
import re
import sys

from jaxpar.errors import SettingError

# A process that dies is noticed by the others after this long; all end within a minute of it.
_HEARTBEAT_S = 25
_START_S = 300
_SHUTDOWN_S = 60
_PORTS = 65_535
LOST_PEER = "another process ended or cannot be reached, and this one with it: see what that one said last"
_LOST = r"gloo|nccl|rccl|coordination service|connection (closed|reset)|heartbeat"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")


@dataclasses.dataclass(frozen=True)
class Processes:
    """Which processes make up the run.

    Attributes:
      count: processes; 1: this one alone.
      index: this one's number.
      coordinator: "host:port" of process 0; empty: JAX finds it by itself (SLURM, Open MPI before 5).
      local_index: where several processes share a machine, this one's number there: it takes the one GPU of that
        number. None: it takes all devices that it sees.
    """

    count: int = 1
    index: int = 0
    coordinator: str = ""
    local_index: int | None = None


def find(coordinator=None, num_processes=None, process_id=None, environ=None):
    """The Processes of this run: from the flags, else from what started it.

    Variables are read in this order: JAX_COORDINATOR_ADDRESS with JAX_NUM_PROCESSES and JAX_PROCESS_ID (or the
    JOB_COMPLETION_INDEX that Kubernetes gives each pod of an indexed job), those of Open MPI's mpirun, those of SLURM's
    srun. To the last two JAX_COORDINATOR_ADDRESS may be added.

    Args:
      coordinator, num_processes, process_id: the flags; None where not given. All of them or none.
      environ: mapping; default `os.environ`.

    Raises:
      SettingError: some of them only, or numbers that make no sense: each process would train alone, into one workdir.
    """
    env = os.environ if environ is None else environ
    flags = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    if any(value is not None for value in flags.values()):
        if missing := [f"--{name}" for name, value in flags.items() if value is None]:
            raise SettingError(
                f"{missing[0]}=None is missing: a process must know all of --coordinator, --num_processes and "
                "--process_id to find the others. Give all three or none."
            )
        return _checked(num_processes, process_id, coordinator)
    if "JAX_NUM_PROCESSES" in env:
        return _from_jax(env)
    if "OMPI_COMM_WORLD_SIZE" in env:
        return _from_open_mpi(env)
    if all(name in env for name in _SLURM):
        return _from_slurm(env)
    if "JAX_COORDINATOR_ADDRESS" in env:
        raise SettingError(
            f"JAX_COORDINATOR_ADDRESS={env['JAX_COORDINATOR_ADDRESS']} comes without JAX_NUM_PROCESSES: a process must "
            "know how many there are. Set JAX_NUM_PROCESSES and JAX_PROCESS_ID too, or none of them."
        )
    return Processes()


def _from_jax(env):
    count, index = env["JAX_NUM_PROCESSES"], env.get("JAX_PROCESS_ID", env.get("JOB_COMPLETION_INDEX"))
    address = env.get("JAX_COORDINATOR_ADDRESS", "")
    if index is None or not address:
        if count == "1":
            return Processes()
        name = "JAX_COORDINATOR_ADDRESS" if index is not None else "JAX_PROCESS_ID (or JOB_COMPLETION_INDEX)"
        raise SettingError(
            f"JAX_NUM_PROCESSES={count} comes without {name}: a process must know all three to find the others. Set "
            f"{name}, or none of them."
        )
    return _checked(count, index, address)


def _from_open_mpi(env):
    """mpirun before version 5 says where it runs itself, and JAX starts from there; later it does not."""
    alone = env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    found = _checked(
        env["OMPI_COMM_WORLD_SIZE"],
        env.get("OMPI_COMM_WORLD_RANK"),
        env.get("JAX_COORDINATOR_ADDRESS"),
        None if alone else env.get("OMPI_COMM_WORLD_LOCAL_RANK"),
    )
    if found.count > 1 and not found.coordinator and "OMPI_MCA_orte_hnp_uri" not in env:
        raise SettingError(
            f"OMPI_COMM_WORLD_SIZE={found.count} comes without an address: Open MPI does not say where process 0 runs "
            "since version 5. Give it, as mpirun -x JAX_COORDINATOR_ADDRESS=node0:9911."
        )
    return found


def _from_slurm(env):
    alone = re.fullmatch(r"1(\(x\d+\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_index = None if alone else env["SLURM_LOCALID"]
    return _checked(env["SLURM_NTASKS"], env["SLURM_PROCID"], env.get("JAX_COORDINATOR_ADDRESS"), local_index)


def _checked(count, index, coordinator, local_index=None):
    try:
        count, index = int(count), int(index)
        local_index = None if local_index is None else int(local_index)
    except (ValueError, TypeError):
        raise SettingError(
            f"num_processes={count} with process_id={index} are not whole numbers: processes are counted. Correct what "
            "started the run."
        ) from None
    if count < 1 or not 0 <= index < count:
        raise SettingError(
            f"process_id={index} is not one of num_processes={count}: they are numbered from 0. "
            f"Use 0 .. {max(count, 1) - 1}."
        )
    host, _, port = (coordinator or "").rpartition(":")
    if coordinator is not None and not (host and port.isdigit() and 0 < int(port) <= _PORTS):
        raise SettingError(
            f"coordinator={coordinator} names no host and port: it is where process 0 listens. Write host:port, as "
            "node0:9911."
        )
    return Processes(count, index, coordinator or "", local_index) if count > 1 else Processes()


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

    # Its handler would swallow a SIGTERM before the first step: the run would go on as if it had not been told to end.
    jax.config.update("jax_enable_preemption_service", False)
    local = None if processes.local_index is None else [processes.local_index]
    own = "JAX_LOCAL_DEVICE_IDS" in os.environ
    # With the address given JAX need not ask the cluster; on Kubernetes it would want a package and an account for it.
    known = {"coordinator_address": processes.coordinator, "cluster_detection_method": "deactivate"}
    jax.distributed.initialize(
        **(known if processes.coordinator else {}),
        num_processes=processes.count,
        process_id=processes.index,
        local_device_ids=None if own else local,
        initialization_timeout=_START_S,
        heartbeat_timeout_seconds=_HEARTBEAT_S,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )
    if not processes.coordinator and local is None and not own:
        # JAX has reduced this process to one GPU, as if it shared its machine.
        for name in ("cuda", "rocm"):
            jax.config.update(
                f"jax_{name}_visible_devices", os.environ.get(f"JAX_{name.upper()}_VISIBLE_DEVICES", "all")
            )


def lost_peer(error):
    """Whether a process fails because another one is gone or out of reach; what that one said is the cause."""
    while error is not None:
        if type(error).__name__ == "JaxRuntimeError" and re.search(_LOST, str(error), re.IGNORECASE):
            return True
        error = error.__cause__
    return False


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
