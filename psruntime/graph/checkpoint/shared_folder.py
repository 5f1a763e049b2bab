"""Whether every ps sees a folder of the chief, so that each can write and read its own part of a checkpoint there.

The chief writes a file of random content; each ps reads it, and then writes a copy, which the chief reads.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.types import Op, Session, Tensor


class SharedFolder:
    """The operations for these ps, in the current graph."""

    def __init__(self, every_ps: Iterable[int]) -> None:
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}  # ps -> (path, content)
        self._copied: dict[int, tuple[Tensor, Op]] = {}  # ps -> (content, writing)
        for ps in every_ps:
            with tf1.device(ps_device(ps)):
                path = tf1.placeholder(tf1.string, [], name=f"probe_{ps}")
                content = tf1.placeholder(tf1.string, [], name=f"content_{ps}")
                self._seen[ps] = (path, tf1.io.read_file(path))
                self._copied[ps] = (content, tf1.raw_ops.WriteFile(filename=path + f"-{ps}", contents=content))

    def obstacle(self, session: Session, folder: str) -> str:
        """Why the ps cannot use the folder, which the chief can; empty if all of them can."""
        probe, content = os.path.join(folder, "probe"), secrets.token_hex(16).encode()
        with open(probe, "wb") as file:
            file.write(content)
        for ps, (path, seen) in self._seen.items():
            try:
                # Read first: WriteFile makes the folders that it lacks, which a ps elsewhere must not.
                if session.run(seen, {path: probe}) != content:
                    return f"ps {ps} reads another file there"
                given, writing = self._copied[ps]
                session.run(writing, {path: probe, given: content})
            except LOST_SESSION:
                raise
            except tf1.errors.NotFoundError:
                return f"ps {ps} does not see the folder"
            except tf1.errors.OpError as error:
                return f"ps {ps}: {first_line(error)}"
            if not _holds(f"{probe}-{ps}", content):
                return f"ps {ps} writes elsewhere"
        return ""


def _holds(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False
