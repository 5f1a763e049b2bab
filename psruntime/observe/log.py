"""The log: one line per event on stderr, to be read by people and by `grep`.

2026-01-31T12:00:00.123Z worker 1 member_joined member="ps 0" after_s=0.25
"""

from __future__ import annotations

import os
import re
import traceback
from datetime import datetime, timezone

STDERR = 2
PLAIN = re.compile(r"[^\s\"=\\]+")  # a value that needs no quotes


class Log:
    """Writes the lines of one process; `index` is its place in its job.  May be called by any thread.

    It keeps a duplicate of the descriptor, so it goes on when descriptor 2 is redirected.
    """

    def __init__(self, role: str, index: int, descriptor: int = STDERR) -> None:
        self._who = f"{role} {index}"
        self._descriptor = os.dup(descriptor)

    def __call__(self, event: str, /, **facts: object) -> None:
        """One line: an event's name and its facts."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        words = [now, self._who, event, *(f"{name}={_text(value)}" for name, value in facts.items())]
        line = (" ".join(words) + "\n").encode("utf-8", "backslashreplace")
        try:
            os.write(self._descriptor, line)  # one call, so that lines of several threads do not mix
        except OSError:
            return  # whoever read the log is gone; that must not end a training

    def traceback(self, event: str, **facts: object) -> None:
        """The same for an exception that is being handled, with its traceback as the last fact."""
        self(event, **facts, traceback=traceback.format_exc().rstrip())


def _text(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if PLAIN.fullmatch(text) and text.isprintable():
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
