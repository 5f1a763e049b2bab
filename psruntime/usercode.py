"""Errors of the user's own functions, in one line that names the function and the place in its file."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from psruntime.errors import PsRuntimeError, UsageError

_PACKAGE = Path(__file__).parent
_EXAMPLES = str(_PACKAGE / "examples")
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path("purelib"), name)
    for name in ("tensorflow", "keras", "tf_keras", "numpy", "sklearn")
)
_NOT_THE_USERS = (str(_PACKAGE), sysconfig.get_path("stdlib"), *_LIBRARIES, "<")


@contextmanager
def blame(what: str, passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Turns an exception of the code inside into a UsageError; `passing` and our own go through."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (*passing, PsRuntimeError)):
            raise
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise UsageError(f"{what} failed{_place(error.__traceback__)}: {type(error).__name__}: {first_line}") from error


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the user's, which is neither a library's nor ours."""
    users = [
        frame
        for frame in traceback.extract_tb(trace)
        if frame.filename.startswith(_EXAMPLES) or not frame.filename.startswith(_NOT_THE_USERS)
    ]
    return f" at {users[-1].filename}:{users[-1].lineno}" if users else ""
