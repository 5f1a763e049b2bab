"""Errors of the user's own code: one line that names what failed and where in the user's file, and the traceback."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from psruntime.errors import PassingError, PsRuntimeError, UsageError, UserCodeError

_PACKAGE = Path(__file__).parent
_EXAMPLES = str(_PACKAGE / "examples")
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path("purelib"), name)
    for name in ("tensorflow", "keras", "tf_keras", "numpy", "sklearn")
)
# What files and services raise through TensorFlow when they are away, by the name that stands in a text.
_OF_TENSORFLOW = ("UnavailableError", "DeadlineExceededError", "AbortedError", "NotFoundError")
OF_A_FILE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_NOT_THE_USERS = (sysconfig.get_path("stdlib"), *_LIBRARIES, "<")


@contextmanager
def blame(
    what: str, passing: tuple[type[BaseException], ...] = (), kind: Callable[[str], PsRuntimeError] = UsageError
) -> Iterator[None]:
    """Turns an exception of the code inside into what `kind` makes of a text; `passing` and our own go through."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (*passing, PsRuntimeError)):
            raise
        line = users_line(traceback.extract_tb(error.__traceback__)) or users_line(_frames_in(str(error)))
        blamed = kind(f"{what} failed{f' at {line}' if line else ''}: {type(error).__name__}: {_first_line(error)}")
        if not isinstance(error, OF_A_FILE):  # there the line says it all
            blamed.detail = "".join(traceback.format_exception(error)).rstrip()
        raise blamed from error


def failure(text: str) -> UserCodeError:
    """An error of the user's code while the job runs; of the kind that may pass if the text names one that does."""
    return PassingError(text) if _MAY_PASS.search(text) else UserCodeError(text)


def _family(kind: type[BaseException]) -> Iterator[str]:
    yield kind.__name__
    for descendant in kind.__subclasses__():
        if descendant.__module__ == "builtins":
            yield from _family(descendant)


_MAY_PASS = re.compile(rf"\b({'|'.join([*_family(OSError), *_OF_TENSORFLOW])}): ")


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """FILE:LINE of the innermost frame that is the user's, neither a library's nor ours; empty if there is none.

    frames: outermost first.  What stands before ours called us: a script that starts a worker is not to blame.
    """
    called = list(frames)
    ours = (number for number, frame in enumerate(called) if _is_ours(frame))
    users = [
        frame for frame in called[next(ours, 0) :] if not (_is_ours(frame) or frame.filename.startswith(_NOT_THE_USERS))
    ]
    return f"{users[-1].filename}:{users[-1].lineno}" if users else ""


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(str(_PACKAGE)) and not frame.filename.startswith(_EXAMPLES)


def _first_line(error: Exception) -> str:
    """What TensorFlow calls from C++ raises with all of its traceback; the first line has the reason."""
    text = str(getattr(error, "message", error))
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _frames_in(text: str) -> list[traceback.FrameSummary]:
    """Those of a traceback within a text, as TensorFlow's errors have it of Python functions that it called."""
    found = re.findall(r'^ *File "([^"]+)", line (\d+), in (.+)$', text, re.MULTILINE)
    return [traceback.FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in found]
