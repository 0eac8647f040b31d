"""What a run writes: metrics line by line, and files that are whole or not there."""

import json
import math
import os
import pathlib

from jaxpar.errors import SettingError

METRICS = "metrics.jsonl"


def bits_per_byte(nats):
    """Bits, from nats a token where a token is a byte; None stays None."""
    return None if nats is None else nats / math.log(2)


def write_whole(path, content):
    """Writes text or bytes beside `path` and renames, so that a reader never sees half a file."""
    path = pathlib.Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path, tree):
    """Writes a tree as JSON that any reader takes: what is not finite becomes null."""
    write_whole(path, json.dumps(finite(tree), indent=2, allow_nan=False) + "\n")


def finite(tree):
    """The tree with NaN and infinities, which JSON does not have, as None."""
    if isinstance(tree, dict):
        return {str(key): finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


class MetricsLog:
    """Appends one JSON object a line; each line is written at once, so an interruption leaves whole lines."""

    def __init__(self, workdir):
        """Starts an empty log in the folder."""
        self._file = open(pathlib.Path(workdir, METRICS), "wb", buffering=0)  # noqa: SIM115 (lives as long as the run)

    def write(self, **fields):
        """Appends one line."""
        self._file.write((json.dumps(finite(fields), allow_nan=False) + "\n").encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def open_workdir(path, old_files):
    """Makes the folder if need be and removes what an earlier run left under these names.

    Raises:
      SettingError: it cannot be made or written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        for name in old_files:
            pathlib.Path(path, name).unlink(missing_ok=True)
    except OSError as error:
        raise SettingError(f"workdir={path} cannot be written: {error.strerror}. Give another --workdir.") from error
