"""Events of TensorBoard in a folder, from any thread; a failure to write is told once, and ends the writing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.errors import first_line


class SummaryWriter:
    """Writes scalars to the newest file of events in `folder`, which is opened when there is something to write.

    is_failed: whether writing failed, and nothing is written any more.
    """

    def __init__(self, folder: str, log: Callable[..., None]) -> None:
        self.is_failed = False
        self._folder = folder
        self._log = log
        self._lock = threading.Lock()
        self._file: Any = None
        self._opened = 0

    def write(
        self, global_step: int, values: Mapping[str, float], serialized: bytes | None = None, starts: bool = False
    ) -> bool:
        """Adds the values by their tags, and a serialized tf.Summary; returns whether they are in the file.

        starts: whether what is there of this global step and later ones was undone: TensorBoard forgets it then.
        """
        scalars = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        with self._lock:
            if self.is_failed:
                return False
            try:
                if self._file is None:
                    with tf1.Graph().as_default():  # it refuses where operations run at once
                        self._opened += 1  # its name has but the second, and two of one name would be one file
                        suffix = f".{os.getpid()}.{self._opened}"
                        self._file = tf1.summary.FileWriter(self._folder, filename_suffix=suffix)
                if starts:
                    self._file.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), global_step)
                if serialized:
                    self._file.add_summary(serialized, global_step)
                self._file.add_summary(tf1.Summary(value=scalars), global_step)
                self._file.flush()
            except (tf1.errors.OpError, OSError) as error:
                self.is_failed = True
                self._log("summaries_failed", reason=first_line(error))
        return not self.is_failed

    def close(self) -> None:
        """Ends the file; what is written later begins another one."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
