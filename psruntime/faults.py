"""The fault of an error, the process or job that ends with it, by kind and place in one table, and the line to blame.

The kind of an error (`kind_of`):

- MACHINE: this machine's memory, disk, files or network; another worker may not have it, and it may pass.
- PATH: a path that does not exist, is of another kind, or may not be read.
- CODE: the code or the data of the model, which every worker has.  A damaged file is data.

TensorFlow's errors are recognised by the names of their classes, and errors of the system within them by their text: it
writes "PATH; TEXT OF ERRNO", and "CLASS: TEXT" of a Python function that raised.  An error of the user's own code is
reported in one line, which names the failure and the line of the user's file (`blame`), with the traceback behind it.

Law: an error of one machine ends the process of that machine alone, with 75.
"""

from __future__ import annotations

import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from psruntime.errors import CheckpointError, JobFailedError, PassingError, PsRuntimeError, UsageError, UserCodeError


class FaultKind(Enum):
    """The fault of an error."""

    MACHINE = "this machine"
    PATH = "a path"
    CODE = "the model"


class Place(Enum):
    """What failed.  The value is its name in docs/troubleshooting.md."""

    BUILD = "the model and its input are built, before this worker trains"
    INITIAL = "an initial value, or a warm start, of the chief"
    INPUT = "the input of a step"
    STEP = "an operation of a step"
    HOOK = "a hook, after the first session"
    HOOK_END = "`end` of a hook"
    RATE = "a learning-rate function"
    EVALUATION = "the evaluation at the end"
    BEST = "an evaluation for `--keep-best`"
    EVALUATOR = "a model in `psruntime evaluator`, `evaluate`, `export` or `replay`"
    FOLDER = "the folder of the checkpoints, when the job begins"
    SAVE = "a checkpoint while the job trains"
    LAST_SAVE = "the last checkpoint"
    OUT = "the folder that `psruntime export` writes"
    WARM_START = "the checkpoint of `--warm-start`, before this worker joins"
    RESTORE = "a checkpoint from which the variables are restored"
    OPENING = "`--record` or `--rounds-log`, when it is opened"
    OBSERVING = "the summaries, `--record` or `--rounds-log`, while the job trains"


_RUNNING: dict[FaultKind, type[PsRuntimeError] | None] = {
    FaultKind.MACHINE: PassingError,
    FaultKind.PATH: PassingError,
    FaultKind.CODE: UserCodeError,
}
_BEFORE: dict[FaultKind, type[PsRuntimeError] | None] = {
    FaultKind.MACHINE: PassingError,
    FaultKind.PATH: UsageError,
    FaultKind.CODE: UsageError,
}
_OF_FILES = (FaultKind.MACHINE, FaultKind.PATH)
# UsageError: this process ends with 2.  PassingError: it ends with 75.  UserCodeError: the job ends with 1, in a step
# when it is saved; an evaluator or a command ends alone.  JobFailedError: the job is done, and the process that
# evaluated it ends with 1.  CheckpointError: the job ends with 1.  None: it is logged and skipped.
FATES: dict[Place, dict[FaultKind, type[PsRuntimeError] | None]] = {
    **dict.fromkeys((Place.BUILD, Place.OUT, Place.WARM_START), _BEFORE),
    **dict.fromkeys((Place.INITIAL, Place.INPUT, Place.STEP, Place.HOOK, Place.RATE, Place.EVALUATOR), _RUNNING),
    **dict.fromkeys((Place.HOOK_END, Place.BEST), dict.fromkeys(FaultKind)),
    Place.EVALUATION: dict.fromkeys(FaultKind, JobFailedError),
    **dict.fromkeys((Place.FOLDER, Place.LAST_SAVE), dict.fromkeys(_OF_FILES, CheckpointError)),
    **dict.fromkeys((Place.SAVE, Place.OBSERVING), dict.fromkeys(_OF_FILES)),
    Place.RESTORE: {FaultKind.MACHINE: CheckpointError, FaultKind.PATH: None, FaultKind.CODE: None},
    Place.OPENING: {FaultKind.MACHINE: None, FaultKind.PATH: UsageError},
}

# Numbers of the system.  Any other, and an OSError without one that is not in _OF_PYTHON, is the machine's.
ERRNOS: dict[FaultKind, tuple[int, ...]] = {
    FaultKind.PATH: (
        errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG,
        errno.EEXIST, errno.ENOTEMPTY,
    ),
    FaultKind.MACHINE: (
        errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ENOLINK, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
        errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EINTR,
        errno.EPIPE, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
        errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EADDRNOTAVAIL,
    ),
}  # fmt: skip

# TensorFlow's, where no error of the system or of Python is within: of the input and other code of the user's.  For an
# operation of a step, whose error may be a ps's or the network's, see graph/base/errors.py.
CODES: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.MACHINE: (
        "CancelledError", "UnknownError", "DeadlineExceededError", "ResourceExhaustedError", "AbortedError",
        "InternalError", "UnavailableError", "UnauthenticatedError",
    ),
    FaultKind.PATH: ("NotFoundError", "PermissionDeniedError"),
    FaultKind.CODE: (
        "InvalidArgumentError", "AlreadyExistsError", "FailedPreconditionError", "OutOfRangeError",
        "UnimplementedError", "DataLossError",
    ),
}  # fmt: skip

_OF_PATHS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_OF_PYTHON = {
    FaultKind.PATH: tuple(kind.__name__ for kind in _OF_PATHS),
    FaultKind.MACHINE: ("MemoryError", "RpcError", "HTTPException"),  # of grpc and http, which have no errno
    # An OSError by its class alone: a file is damaged, or the code has not the permission to read or write it.
    FaultKind.CODE: ("BadGzipFile", "UnsupportedOperation", "UnidentifiedImageError"),
}
# Other damaged data: classes of Python, and texts of libraries' OSErrors without a class or a number of their own.
_DAMAGED = (
    "BadGzipFile", "BadZipFile", "UnidentifiedImageError", "EOFError", "LZMAError", "UnpicklingError",
    "UnicodeDecodeError", "JSONDecodeError", "zlib.error", "struct.error", "DataLossError",
)  # fmt: skip
_DAMAGED_TEXT = re.compile(
    r"Invalid data stream"  # bz2
    r"|image file is truncated|broken data stream when reading image file"  # PIL
    r"|\(truncated file: |\(file signature not found\)"  # h5py
)


def kind_of(error: BaseException) -> FaultKind:
    """The fault of an error."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError):
        return _of_number(error.errno) if error.errno else _of_library(names, str(error))
    if "OpError" in names:
        text = str(getattr(error, "message", error))
        return of_system(text) or _found(names, CODES) or FaultKind.CODE
    return _found(names, _OF_PYTHON) or FaultKind.CODE


def of_system(text: str) -> FaultKind | None:
    """The kind of the system's or Python's error that a text of TensorFlow's names; None if it names none."""
    text = text.rpartition("\nNode: ")[2]  # before it is the traceback of the operation's making
    for called in _CALLED.finditer(text):
        if names := _names_of(called[1], text):
            line = text[called.end() :].partition("\n")[0]
            number = re.match(r" \[Errno (\d+)\]", line)
            if number and "OSError" in names and not names.intersection(_OF_PYTHON[FaultKind.PATH]):
                return _of_number(int(number[1]))
            return (
                _of_library(names, line) if "OSError" in names else _found(names, _OF_PYTHON, CODES) or FaultKind.CODE
            )
    written = _WRITTEN.search(text)
    return _BY_TEXT[written[1]] if written else None


def fate_of(error: BaseException, place: Place, text: str) -> PsRuntimeError:
    """The error that this process raises for it, with this text, at a place where it is not skipped."""
    fate = FATES[place][kind_of(error)]
    assert fate is not None
    return fate(text)


def first_line(error: BaseException) -> str:
    """The line of an error that has its cause; of TensorFlow's, without where the operation was made and ran."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    heads = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[heads[-1] + 1 :] if heads else lines
    with_words = (line for line in lines if any(map(str.isalnum, line)) and not _HEADING.search(line))
    return _ROOT.sub("", next(with_words, type(error).__name__))


def is_damage(error: BaseException) -> bool:
    """Whether the error of Python or a library is that of a damaged file."""
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}.{kind.__name__}")}
    return not names.isdisjoint(_DAMAGED) or (isinstance(error, OSError) and bool(_DAMAGED_TEXT.search(str(error))))


def _of_number(number: int) -> FaultKind:
    return FaultKind.PATH if number in ERRNOS[FaultKind.PATH] else FaultKind.MACHINE


def _of_library(names: set[str], text: str) -> FaultKind:
    """The kind of an OSError without a number.  names: of its classes."""
    return FaultKind.CODE if _DAMAGED_TEXT.search(text) else _found(names, _OF_PYTHON) or FaultKind.MACHINE


def _found(names: set[str], *tables: dict[FaultKind, tuple[str, ...]]) -> FaultKind | None:
    found = (kind for table in tables for kind, known in table.items() if names.intersection(known))
    return next(found, None)


def _family(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for descendant in kind.__subclasses__():
        yield from _family(descendant)


def _names_of(name: str, text: str) -> set[str]:
    """Names of the exceptions of this process with this name, and of their bases; empty without one.

    text: in which the name was found.  Only Python's own exceptions count in a text without a traceback, as many
    libraries have an `Error`; the traceback has the name with its module.
    """
    called = [kind for kind in _family(BaseException) if kind.__name__ == name]
    full = {kind: re.escape(f"{kind.__module__}.{kind.__qualname__}") for kind in called}
    known = [kind for kind in called if kind.__module__ == "builtins"]
    if _TRACEBACK in text:
        known = [kind for kind in called if re.search(rf"^{full[kind]}(:|$)", text, re.MULTILINE)] or called
    return {each.__name__ for kind in known for each in kind.__mro__} or {name}.intersection(["RpcError"])


_TRACEBACK = "Traceback (most recent call last):"  # follows TensorFlow's text about a Python function that raised
_HEADING = re.compile(r":$|^\d+ root error\(s\) found\.$")
_ROOT = re.compile(r"^\(\d+\) [A-Z_]+: ")  # of one of several root errors
_CALLED = re.compile(r"\b(\w+):(?= |$)", re.MULTILINE)
_BY_TEXT = {os.strerror(number): kind for kind, numbers in ERRNOS.items() for number in numbers}
_WRITTEN = re.compile(rf"; ({'|'.join(map(re.escape, sorted(_BY_TEXT, key=len, reverse=True)))})(?![\w ])")


_PACKAGE = Path(__file__).parent
_EXAMPLES = str(_PACKAGE / "examples")
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path("purelib"), name)
    for name in ("tensorflow", "keras", "tf_keras", "numpy", "sklearn")
)
_NOT_THE_USERS = (sysconfig.get_path("stdlib"), *_LIBRARIES, "<")


@contextmanager
def blame(what: str, passing: tuple[type[BaseException], ...] = (), place: Place = Place.BUILD) -> Iterator[None]:
    """Raises an exception of the code inside as the error of `fate_of`; `passing` and our own errors pass.

    Code that ends its process, by sys.exit, has failed too.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (*passing, PsRuntimeError)):
            raise
        line = users_line(traceback.extract_tb(error.__traceback__)) or users_line(_frames_in(str(error)))
        at = f" at {line}" if line else ""
        text = f"{what} failed{at}: {type(error).__name__}: {first_line(error)}"
        file = _file_in(error) if is_damage(error) else ""
        blamed = fate_of(error, place, text + (f"; it is of {file}" if file and file not in text else ""))
        if isinstance(blamed, UsageError) and kind_of(error) is FaultKind.PATH:
            raise blamed from error  # the line needs no traceback
        blamed.detail = "".join(traceback.format_exception(error)).rstrip()
        raise blamed from error


def _file_in(error: BaseException) -> str:
    """The file that the innermost code read from when it failed; empty if it read from none."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    for each in (each for names in reversed(frames) for each in names.values()):
        with suppress(Exception):  # whatever an object of the user raises when it is asked for an attribute
            name = hasattr(each, "read") and (getattr(each, "name", None) or getattr(each, "filename", None))
            if name and isinstance(name, str):
                return name
    return ""


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """FILE:LINE of the innermost frame that is the user's, neither a library's nor ours; empty if there is none.

    frames: outermost first.  Frames before ours called us: a script that starts a worker is not to blame.
    """
    called = list(frames)
    ours = (number for number, frame in enumerate(called) if _is_ours(frame))
    users = [
        frame for frame in called[next(ours, 0) :] if not (_is_ours(frame) or frame.filename.startswith(_NOT_THE_USERS))
    ]
    return f"{users[-1].filename}:{users[-1].lineno}" if users else ""


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(str(_PACKAGE)) and not frame.filename.startswith(_EXAMPLES)


def _frames_in(text: str) -> list[traceback.FrameSummary]:
    """The frames of a traceback within a text, as in TensorFlow's errors of Python functions that it called."""
    found = re.findall(r'^ *File "([^"]+)", line (\d+), in (.+)$', text, re.MULTILINE)
    return [traceback.FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in found]
