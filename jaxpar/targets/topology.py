"""Devices of accelerators that are not here: enough for a mesh, for lowering and for compiling, not for running.

The compilers come as wheels (the extra ``jaxpar[targets]``): libtpu holds the TPU's, the CUDA plugin the GPU's. Both
compile from a description of the hardware, on any Linux machine with an x86-64 processor.
"""

import importlib.resources
import importlib.util
import os
import re

from jaxpar.errors import SettingError

TPU_KINDS = ("v5e", "v5p", "v6e")
GPU_CONFIGS = {"h100": "h100.txtpb"}
EXAMPLES = ("v5p:2x2x2", "v5e:2x4", "v6e:2x4", "h100:8", "h100:2x8")

# libtpu asks the cloud's metadata server, and other hosts, what machine this is, unless the environment says so. Any
# answer will do: the topology that is compiled for has a name of its own. The lock on its device would let only one
# process at a time compile, though none of them touches a device.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The plugin checks for the libraries that programs run with (cuDNN and others); compiling needs none of them.
_GPU_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_GPU_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")


def devices(name):
    """Devices of a topology by name, for `jaxpar.mesh.make_mesh`; none of them need exist.

    Call it before JAX has started: it keeps JAX's own arrays on the CPU and sets what the compilers read from the
    environment (values already there are the user's own, and stay).

    Args:
      name: ``<kind>:<shape>``. A TPU's kind and the shape of its slice in chips, ``v5p:2x2x2``, ``v6e:2x4``; or
        ``h100:<GPUs>`` of one machine, ``h100:<machines>x<GPUs of each>``.

    Returns:
      List of devices, compile-only.

    Raises:
      SettingError: the name is unknown, the slice has a shape that does not exist, or the compiler is not installed.
    """
    kind, shape = _parse(name)
    _set_environment(_TPU_ENVIRONMENT if kind in TPU_KINDS else _GPU_ENVIRONMENT)
    return _tpu_devices(name) if kind in TPU_KINDS else _gpu_devices(name, kind, shape)


def _parse(name):
    match = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
    kind, shape = (match[1], [int(size) for size in match[2].split("x")]) if match else (None, [])
    known = kind in TPU_KINDS or (kind in GPU_CONFIGS and len(shape) <= 2)
    if not known or min(shape) < 1:
        kinds = ", ".join((*TPU_KINDS, *GPU_CONFIGS))
        raise SettingError(
            f"target={name!r} names no topology: it must be <kind>:<shape>, kind one of {kinds}. "
            f"Use for example {', '.join(EXAMPLES)}."
        )
    return kind, shape


def _set_environment(values):
    for key, value in values.items():
        os.environ.setdefault(key, value)
    import jax

    if not jax.config.jax_platforms:  # else JAX would look for the accelerator that its plugin promises
        jax.config.update("jax_platforms", "cpu")


def _tpu_devices(name):
    from jax.experimental import topologies

    if not _is_installed("libtpu"):
        raise _not_installed(name, "libtpu")
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except Exception as error:  # the class is XLA's, and has moved between versions
        raise _refused(name, error) from error


def _gpu_devices(name, kind, shape):
    from jax.experimental import topologies

    if not any(map(_is_installed, _GPU_PLUGINS)):
        raise _not_installed(name, "the CUDA plugin of JAX")
    config = importlib.resources.files("jaxpar.targets").joinpath(GPU_CONFIGS[kind]).read_text()
    machines, gpus = shape if len(shape) == 2 else (1, shape[0])
    topology = f"1x{machines}x{gpus}"  # slices x machines x GPUs of each
    try:
        found = topologies.get_topology_desc(platform="cuda", topology_name="", topology=topology, target_config=config)
    except Exception as error:
        raise _refused(name, error) from error
    return list(found.devices)


def _is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the parent package
        return False


def _not_installed(name, what):
    return SettingError(
        f"target={name!r} cannot be compiled for: {what} is not installed, and with it the compiler. "
        "Use pip install 'jaxpar[targets]' (Linux, x86-64)."
    )


def _refused(name, error):
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return SettingError(f"target={name!r} is refused by its compiler: {reason}. Use for example {', '.join(EXAMPLES)}.")
