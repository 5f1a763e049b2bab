"""Paths with `[ ] * ?` or backslashes: TensorFlow reads a checkpoint by a pattern, which these belong to.

`tf.train.load_checkpoint`, `tf.train.Saver`, the operation RestoreV2 and the loader of SavedModels match the prefix of
a checkpoint against the files first, and open it literally then.  So neither the path nor an escaped one is read where
it has such a character.  Another path to the same folder has none: `/proc/self/fd/N`, a descriptor that this process
keeps open.  It leaves nothing behind and is of this process alone, so a ps cannot be given it.

Writers use every path literally: SaveV2, MergeV2Checkpoints, the writer of events.
"""

from __future__ import annotations

import os
import threading

_OF_PATTERNS = frozenset("*?[\\")
_lock = threading.Lock()
_descriptors: dict[str, int] = {}  # by folder


def is_pattern(path: str) -> bool:
    """Whether TensorFlow reads the path as a pattern."""
    return not _OF_PATTERNS.isdisjoint(path)


def escaped(path: str) -> str:
    """The pattern that matches this path alone, as `tf.gfile.Glob` reads patterns."""
    return "".join(f"\\{each}" if each in _OF_PATTERNS else each for each in path)


def readable(path: str) -> str:
    """The path by which TensorFlow reads a checkpoint or SavedModel in this process; itself if it is no pattern.

    path: of a folder, or the prefix of a checkpoint's files.

    Raises:
        OSError: the folder cannot be opened.
    """
    if not is_pattern(path) or "://" in path:
        return path
    if os.path.isdir(path):
        return _descriptor_of(path)
    folder, name = os.path.split(path)
    return os.path.join(_descriptor_of(folder) if is_pattern(folder) else folder, name)


def _descriptor_of(folder: str) -> str:
    with _lock:
        number = _descriptors.get(folder)
        if number is None or not os.path.samestat(os.fstat(number), os.stat(folder)):  # removed, and made again
            if number is not None:
                os.close(number)
            _descriptors[folder] = number = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{number}"
