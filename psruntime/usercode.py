"""Errors of the user's own code: one line that names the failure and the line of the user's file, and the traceback."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psruntime.errors import PsRuntimeError, UsageError
from psruntime.faults import Kind, Place, fate_of, first_line, is_damage, kind_of

_PACKAGE = Path(__file__).parent
_EXAMPLES = str(_PACKAGE / "examples")
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path("purelib"), name)
    for name in ("tensorflow", "keras", "tf_keras", "numpy", "sklearn")
)
_NOT_THE_USERS = (sysconfig.get_path("stdlib"), *_LIBRARIES, "<")


@contextmanager
def blame(what: str, passing: tuple[type[BaseException], ...] = (), place: Place = Place.BUILD) -> Iterator[None]:
    """Raises an exception of the code inside as the error that faults.py names; `passing` and our own errors pass.

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
        if isinstance(blamed, UsageError) and kind_of(error) is Kind.PATH:
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
