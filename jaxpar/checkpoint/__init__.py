"""Runs saved and restored: layout-free arrays (free.py), Orbax below a folder (store.py), weights alone (export.py)."""

from jaxpar.checkpoint.free import FreeForm
from jaxpar.checkpoint.store import Store, saved_steps

__all__ = ["FreeForm", "Store", "saved_steps"]
