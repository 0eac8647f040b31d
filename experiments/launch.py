"""Starts one run as several processes on this machine, for trials and tests; a cluster's own launcher does it at scale.

python -m experiments.launch --processes=N -- --config=FILE [more arguments of experiments.train]

Each process is `python -m experiments.train` with the same arguments and a coordinator on a free port; the first one's
output is shown, and what any of them says on standard error, marked with its number. Where one fails, the others are
ended, its last words are repeated unless all say the same, and the status is its own. Ctrl-C reaches all of them: they
save and end.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque

_GRACE_S = 15  # from a failure to the end of those that do not notice it
_LAST_WORDS = 30  # lines


def main(argv):
    """Runs the processes; returns the exit status of the first that failed, 0 where none did."""
    try:
        count, arguments = _parse(argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return _watch(_start(count, arguments))


def _parse(args):
    """(number of processes, arguments of the program)."""
    own, rest = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
    if own in (["--help"], ["-h"]):
        print(__doc__.strip())
        raise SystemExit(0)
    if len(own) != 1 or not own[0].startswith("--processes="):
        raise ValueError(
            f"{' '.join(own) or 'no argument'} does not say how many processes: everything after -- goes to each. "
            "Write --processes=2 -- --config=FILE."
        )
    value = own[0].partition("=")[2]
    if not value.isdigit() or not 1 <= int(value) <= 1024:
        raise ValueError(f"processes={value} is not a number of processes: it is a count. Use 1 .. 1024.")
    if not rest:
        raise ValueError("-- is followed by nothing: each process needs a config. Write -- --config=FILE.")
    return int(value), rest


class _Child:
    """A process, what it says, and when it ended."""

    def __init__(self, index, command):
        self.index = index
        stdout = None if index == 0 else subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace")
        self.last_words = deque(maxlen=_LAST_WORDS)
        self.ended = math.inf
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.last_words.append(line)
            print(f"[{self.index}] {line}", end="", file=sys.stderr, flush=True)
        self.ended = time.monotonic()  # a process closes this first of all, before its peers can miss it

    def drain(self):
        """Waits for what it still has to say."""
        self._reader.join(timeout=5)


def _start(count, arguments):
    address = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "experiments.train", *arguments]
    more = [f"--coordinator={address}", f"--num_processes={count}"]
    return [
        _Child(index, [*command, *more, f"--process_id={index}"] if count > 1 else command) for index in range(count)
    ]


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _watch(children):
    """Waits for all; the first failure ends the rest."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: _forward(children, number))
    while True:
        statuses = [child.process.poll() for child in children]
        failed = [child for child, status in zip(children, statuses, strict=True) if status]
        if failed:
            return _fail(_first(failed), children)
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(0.1)


def _first(failed):
    """Of those that failed within one look the one that ended first: the others may have lost their peer to it."""
    for child in failed:
        child.drain()
    return min(failed, key=lambda child: child.ended)


def _fail(child, children):
    limit = time.monotonic() + _GRACE_S
    for other in children:
        if other is not child and other.process.poll() is None:
            other.process.terminate()
    for other in children:
        try:
            other.process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.process.kill()
            other.process.wait()
        other.drain()
    status = child.process.returncode
    what = f"status {status}" if status > 0 else signal.Signals(-status).name
    print(f"process {child.index} ended first, with {what}; the others were ended", file=sys.stderr)
    if child.last_words and any(other.last_words != child.last_words for other in children):
        print("".join(["its last words:\n", *child.last_words]), end="", file=sys.stderr, flush=True)
    return status if status > 0 else 128 - status


def _forward(children, number):
    """Ctrl-C reaches the processes of this group by itself; a signal to this one alone is passed on."""
    if number == signal.SIGINT and os.isatty(0):
        return
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
