"""The log: one entry per event on stderr, as text to be read by people and `grep`, or as JSON for log collectors.

    2026-01-31T12:00:00.123Z worker 1 member_joined member="ps 0" after_s=0.25
    {"time": "2026-01-31T12:00:00.123Z", "role": "worker", "index": 1, "event": "member_joined", "member": "ps 0", ...}

An entry is one line.  Only the fact `traceback` has several; as text they are below the line, indented.
"""

from __future__ import annotations

import json
import math
import re
import threading
import traceback
from collections import Counter
from datetime import datetime, timezone

from psruntime.config.process import JSON_LOG, TEXT_LOG
from psruntime.faults import first_line
from psruntime.observe.outputs import Output, without_waiting

STDERR = 2
TRACEBACK = "traceback"  # the fact that has several lines
PLAIN = re.compile(r"[^\s\"=\\]+")  # a value that needs no quotes


class Log:
    """Writes the entries of one process; `index` is that in its role.  May be called by any thread.

    It keeps a descriptor of its own, so it still writes when descriptor 2 is redirected.  Entries that do not fit into
    the pipe of a reader that has stopped are dropped and counted; no entry raises.
    """

    def __init__(self, role: str, index: int, form: str = TEXT_LOG, descriptor: int = STDERR) -> None:
        self._role = role
        self._index = index
        self._entry = _json_entry if form == JSON_LOG else _text_entry
        self._output = Output(without_waiting(descriptor), patient=False)
        self._lost = 0  # entries that were dropped and reported
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __call__(self, event: str, /, **facts: object) -> None:
        """One entry: an event's name and its facts."""
        if self._write(event, facts) and (lost := self._output.lost - self._lost) > 0:
            self._lost += lost
            self("log_resumed", entries_lost=lost, reason="the reader of the log did not read")

    def _write(self, event: str, facts: dict[str, object]) -> bool:
        with self._counting:
            self._counts[event] += 1
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = (self._entry(now, self._role, self._index, event, facts) + "\n").encode("utf-8", "backslashreplace")
        return self._output.write(entry)

    @property
    def counts(self) -> dict[str, int]:
        """Entries up to now, by event."""
        with self._counting:
            return dict(self._counts)


def facts_of(error: BaseException) -> dict[str, object]:
    """The facts of an unexpected exception for the log."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    return {"reason": first_line_of(error), TRACEBACK: trace}


def first_line_of(error: BaseException) -> str:
    """Kind and first line of an exception."""
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


def _text_entry(now: str, role: str, index: int, event: str, facts: dict[str, object]) -> str:
    words = [f"{name}={_text(value)}" for name, value in facts.items() if name != TRACEBACK]
    below = [f"    {_visible(line)}" for line in str(facts.get(TRACEBACK, "")).splitlines()]
    return "\n".join([" ".join([now, role, str(index), event, *words]), *below])


def _json_entry(now: str, role: str, index: int, event: str, facts: dict[str, object]) -> str:
    header = {
        "time": now,
        "role": role,
        "index": index,
        "event": event,
    }  # these keep their names; a metric of the same name gets another one
    return json.dumps({**header, **{name: _plain(value) for name, value in facts.items()}, **header})


def _text(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if PLAIN.fullmatch(text) and text.isprintable():
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    return "\\" + character if character in '"\\' else _visible(character)


def _visible(text: str) -> str:
    """The text with escapes for characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _plain(value: object) -> object:
    """A value of JSON: a number where it is one, else the text that the other form has."""
    if value is None or type(value) in (bool, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
