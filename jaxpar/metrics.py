"""What a run writes: metrics line by line, and files that are whole or not there."""

import json
import math
import os
import pathlib

from jaxpar.errors import SettingError

METRICS = "metrics.jsonl"


def bits_per_byte(nats, bytes_per_token=1.0):
    """Bits a byte, from nats a token; None where either is None (tokens that stand for no text)."""
    return None if nats is None or bytes_per_token is None else nats / math.log(2) / bytes_per_token


def shown_loss(nats, bytes_per_token=1.0):
    """A loss as text, "2.139 bits/byte", or in nats a token where tokens stand for no text."""
    bits = bits_per_byte(nats, bytes_per_token)
    return f"{nats:.3f} nats/token" if bits is None else f"{bits:.3f} bits/byte"


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


class LineLog:
    """Appends one JSON object a line; each line is written at once, so an interruption leaves whole lines."""

    def __init__(self, workdir, name=METRICS, after=0):
        """Opens the log.

        Args:
          workdir: the folder.
          name: the file.
          after: lines of a later step are dropped (0: all are), so that a run that goes on writes them anew.
        """
        path = pathlib.Path(workdir, name)
        kept = [line for line in read_lines(path) if line["step"] <= after]
        write_whole(path, "".join(_line(line) for line in kept))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the run)

    def write(self, **fields):
        """Appends one line."""
        self._file.write(_line(fields).encode())

    def close(self):
        """Closes the file."""
        self._file.close()


def read_lines(path):
    """The whole lines of such a log, as dicts; what was cut short or damaged is left out; none where it is missing."""
    try:
        text = pathlib.Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.split("\n")[:-1]:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict) and "step" in fields:
            found.append(fields)
    return found


def _line(fields):
    return json.dumps(finite(fields), allow_nan=False) + "\n"


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
