"""Event files for TensorBoard, written at once.

The writer with a queue and a thread of its own would wait for ever once the thread has died, as it does on a full disk.
"""

import os
import time

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar


class EventLog:
    """Appends scalars to an event file of its own."""

    def __init__(self, folder, after=0):
        """Starts a file in the folder.

        Args:
          folder: made if need be.
          after: readers forget what earlier files have for later steps; 0: there are none.
        """
        os.makedirs(folder, exist_ok=True)
        self._writer = EventsWriter(os.path.join(folder, "events"), f".{after}")
        if after:
            self._writer.write_event(Event(step=after + 1, file_version="brain.Event:2"))
            self._writer.write_event(Event(step=after + 1, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()

    def write(self, step, **numbers):
        """The scalars of a step."""
        for name, value in numbers.items():
            self._writer.write_event(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        self._writer.flush()

    def close(self):
        """Closes the file."""
        self._writer.close()
