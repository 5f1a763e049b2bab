"""Events of TensorBoard in a folder, from any thread.

A file of events is one of TensorFlow's records, each an Event.  `tf.summary.FileWriter` writes it in a thread of its
own, which ends with a traceback on standard error when the disk is full; here the writer itself logs what failed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.faults import first_line
from psruntime.graph.base.types import Proto

VERSION = "brain.Event:2"  # of the first event of a file


class SummaryWriter:
    """Writes scalars to the newest file of events in `folder`, which is opened when there is something to write.

    What cannot be written is lost, and nothing raises.  `log` has a line at the first loss, and one with the count at
    the next success or when the writer is closed.  A new file is tried after 1, 2, 4 ... losses, so that a disk on
    which each try leaves an empty file gets few of them.
    """

    def __init__(self, folder: str, log: Callable[..., None]) -> None:
        self._folder = folder
        self._log = log
        self._lock = threading.Lock()
        self._file: Any = None
        self._numbers = count(1)  # of files: their names have but the second, and two of one name would be one file
        self._lost = 0  # since something was written
        self._again_at = 0  # losses at which a new file is tried

    def write(
        self, global_step: int, values: Mapping[str, float], serialized: bytes | None = None, starts: bool = False
    ) -> bool:
        """Adds the values by their tags, and a serialized tf.Summary; returns whether they are in the file.

        starts: whether values of this global step and later ones were undone: TensorBoard forgets them then.
        """
        summary = tf1.Summary.FromString(serialized or b"")
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        with self._lock:
            if self._lost < self._again_at:
                self._lost += 1
                return False
            try:
                self._add(global_step, summary, starts)
            except (tf1.errors.OpError, OSError) as error:
                if not self._lost:
                    self._log("summaries_failed", path=self._folder, reason=first_line(error))
                self._lost += 1
                self._again_at = 2 * self._lost
                self._end_file()
                return False
            if self._lost:
                self._log("summaries_resumed", path=self._folder, summaries_lost=self._lost)
            self._lost = self._again_at = 0
        return True

    def close(self) -> None:
        """Closes the file; a later write opens another one."""
        with self._lock:
            self._end_file()
            if self._lost:
                self._log("summaries_failed", path=self._folder, summaries_lost=self._lost)
            self._lost = self._again_at = 0

    def _add(self, global_step: int, summary: Proto, starts: bool) -> None:
        if self._file is None:
            tf1.gfile.MakeDirs(self._folder)
            name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers)}"
            self._file = tf1.io.TFRecordWriter(os.path.join(self._folder, f"events.out.tfevents.{name}"))
            self._write(file_version=VERSION)
        if starts:
            self._write(step=global_step, session_log=tf1.SessionLog(status=tf1.SessionLog.START))
        self._write(step=global_step, summary=summary)
        self._file.flush()

    def _write(self, **event: Any) -> None:
        self._file.write(tf1.Event(wall_time=time.time(), **event).SerializeToString())

    def _end_file(self) -> None:
        if self._file is not None:
            with suppress(tf1.errors.OpError):  # of what could not be written, which is counted
                self._file.close()
            self._file = None
