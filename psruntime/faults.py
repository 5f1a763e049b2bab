"""Whose fault an error of the user's code is, and what ends with it: one table, by what failed and where.

The kind of an error (`kind_of`):

- MACHINE: this machine's memory, disk, files or network; another worker may not meet it, and it may pass.
- PATH: a path that does not lead to what is wanted, or may not be read.
- CODE: the code or the data of the model, which every worker has.

TensorFlow's errors are known by the names of their classes, and errors of the system within them by their text: it
writes "PATH; TEXT OF ERRNO", and "CLASS: TEXT" of a Python function that raised.

Law: an error of one machine ends the process of that machine alone, with 75.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from enum import Enum

from psruntime.errors import PassingError, PsRuntimeError, UsageError, UserCodeError


class Kind(Enum):
    """Whose error it is."""

    MACHINE = "this machine"
    PATH = "a path"
    CODE = "the model"


class Place(Enum):
    """Where it failed."""

    BUILD = "while the model, its input and its tables are built, before this worker trains"
    INPUT = "in the input of a step"
    STEP = "in an operation of a step"
    HOOK = "in a hook, after the first session"
    RATE = "in a learning-rate function"


_RUNNING: dict[Kind, type[PsRuntimeError]] = {
    Kind.MACHINE: PassingError,
    Kind.PATH: PassingError,
    Kind.CODE: UserCodeError,
}
# UsageError: this process ends with 2.  PassingError: it ends with 75.  UserCodeError: the job ends with 1, saved.
FATES: dict[Place, dict[Kind, type[PsRuntimeError]]] = {
    Place.BUILD: {Kind.MACHINE: PassingError, Kind.PATH: UsageError, Kind.CODE: UsageError},
    **dict.fromkeys((Place.INPUT, Place.STEP, Place.HOOK, Place.RATE), _RUNNING),
}

# Numbers of the system.  Any other, and an OSError without one, is the machine's.
ERRNOS: dict[Kind, tuple[int, ...]] = {
    Kind.PATH: (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    Kind.MACHINE: (
        errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ENOLINK, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
        errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EINTR,
        errno.EPIPE, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
        errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EADDRNOTAVAIL,
    ),
}  # fmt: skip

# TensorFlow's, where no error of the system or of Python is within: of the input and other code of the user's.  What
# they mean of an operation of a step, which may be a ps's or the network's, graph/base/failed_operation.py knows.
CODES: dict[Kind, tuple[str, ...]] = {
    Kind.MACHINE: (
        "CancelledError", "UnknownError", "DeadlineExceededError", "ResourceExhaustedError", "AbortedError",
        "InternalError", "UnavailableError", "UnauthenticatedError",
    ),
    Kind.PATH: ("NotFoundError", "PermissionDeniedError"),
    Kind.CODE: (
        "InvalidArgumentError", "AlreadyExistsError", "FailedPreconditionError", "OutOfRangeError",
        "UnimplementedError", "DataLossError",
    ),
}  # fmt: skip

_OF_PATHS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_OF_PYTHON = {
    Kind.PATH: tuple(kind.__name__ for kind in _OF_PATHS),
    Kind.MACHINE: ("MemoryError", "RpcError"),  # of grpc, which has no errno
}


def kind_of(error: BaseException) -> Kind:
    """Whose error it is."""
    if isinstance(error, OSError):
        return _of_number(error.errno, _OF_PATHS, error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OpError" in names:
        text = str(getattr(error, "message", error))
        return of_system(text) or _found(names, CODES) or Kind.CODE
    return _found(names, _OF_PYTHON) or Kind.CODE


def of_system(text: str) -> Kind | None:
    """The kind of an error of the system, or of Python, that a text of TensorFlow's names; None: it names none."""
    if raised := _RAISED.search(text):
        number = re.match(r"\[Errno (\d+)\]", text[raised.end() :])
        if number and raised[1] not in _OF_PYTHON[Kind.PATH]:
            return _of_number(int(number[1]))
        return _found({raised[1]}, _OF_PYTHON) or (Kind.MACHINE if raised[1] in _OF_SYSTEM else Kind.CODE)
    written = _WRITTEN.search(text)
    return _BY_TEXT[written[1]] if written else None


def fate_of(error: BaseException, place: Place, text: str) -> PsRuntimeError:
    """What this process raises of it, with this text."""
    return FATES[place][kind_of(error)](text)


def first_line(error: BaseException) -> str:
    """The line of an error that says what happened; of TensorFlow's, without where the operation was made and ran."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    heads = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[heads[-1] + 1 :] if heads else lines
    telling = (line for line in lines if line.strip("=") and not _HEADING.search(line))
    return _ROOT.sub("", next(telling, type(error).__name__))


def _of_number(number: int | None, of_paths: tuple[type[OSError], ...] = (), error: OSError | None = None) -> Kind:
    is_path = number in ERRNOS[Kind.PATH] if number else isinstance(error, of_paths)
    return Kind.PATH if is_path else Kind.MACHINE


def _found(names: set[str], table: dict[Kind, tuple[str, ...]]) -> Kind | None:
    return next((kind for kind, known in table.items() if names.intersection(known)), None)


def _family(kind: type[BaseException]) -> Iterator[str]:
    yield kind.__name__
    for descendant in kind.__subclasses__():
        if descendant.__module__ == "builtins":
            yield from _family(descendant)


_HEADING = re.compile(r":$|^\d+ root error\(s\) found\.$")
_ROOT = re.compile(r"^\(\d+\) [A-Z_]+: ")  # of one of several root errors
_OF_SYSTEM = frozenset(_family(OSError))
_RAISED = re.compile(rf"\b({'|'.join(sorted({*_family(Exception), 'RpcError'}))}): ")
_BY_TEXT = {os.strerror(number): kind for kind, numbers in ERRNOS.items() for number in numbers}
_WRITTEN = re.compile(rf"; ({'|'.join(map(re.escape, sorted(_BY_TEXT, key=len, reverse=True)))})(?![\w ])")
