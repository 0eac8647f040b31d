"""Weights alone, out of a checkpoint, for other programs."""

import numpy as np

from jaxpar.errors import SettingError


def named_weights(params):
    """Parameters as a flat dict: {"embed.table": ..., "layers.0.attention.qkv.kernel": ..., ...}.

    Args:
      params: layout-free {"embed", "layers", "head"}, layers stacked by global index; NumPy or JAX arrays.

    Returns:
      name -> NumPy array; each layer's arrays by themselves. A tied table is there once, under "embed".
    """
    named = {name: np.asarray(array) for part in ("embed", "head") for name, array in _flat(part, params[part])}
    for name, stacked in _flat("", params["layers"]):
        named |= {f"layers.{index}{name}": np.ascontiguousarray(array) for index, array in enumerate(stacked)}
    return named


def _flat(prefix, tree):
    """(name, array) of each leaf of nested dicts."""
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _flat(f"{prefix}.{key}", value)


def write_safetensors(path, weights, about=None):
    """Writes named arrays as a .safetensors file.

    Args:
      path: the file.
      weights: name -> NumPy array.
      about: dict of text, the file's metadata.

    Raises:
      SettingError: the package safetensors is not installed.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise SettingError(
            "to=safetensors cannot be written: the package safetensors is not installed. pip install 'jaxpar[export]'."
        ) from error
    save_file(weights, path, metadata=about or {})
