"""The log: one entry per event on stderr, as text to be read by people and `grep`, or as JSON for log collectors.

    2026-01-31T12:00:00.123Z worker 1 member_joined member="ps 0" after_s=0.25
    {"time": "2026-01-31T12:00:00.123Z", "role": "worker", "index": 1, "event": "member_joined", "member": "ps 0", ...}

An entry is one line.  Only the fact `traceback` has several; as text they are below the line, indented.
"""

from __future__ import annotations

import json
import logging
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
        self.is_json = form == JSON_LOG
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
        entry = (json_entry if self.is_json else _text_entry)(self._role, self._index, event, facts)
        return self._output.write(f"{entry}\n".encode("utf-8", "backslashreplace"))

    def line(self, event: str, text: str, /, **facts: object) -> str:
        """A line for the same file as the entries, which its readers take as it is: the text, as JSON an entry with
        it."""
        return json_entry(self._role, self._index, event, {**facts, "text": text}) if self.is_json else text

    @property
    def counts(self) -> dict[str, int]:
        """Entries up to now, by event."""
        with self._counting:
            return dict(self._counts)


class Warnings(logging.Handler):
    """Makes an entry of each record."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log("python_warning", level=record.levelname, logger=record.name, reason=record.getMessage())


def take_warnings(log: Log, *loggers: str) -> None:
    """If the log is of JSON, what these loggers and `warnings` have is in it; else that is as it was."""
    if not log.is_json:
        return
    logging.captureWarnings(True)
    for name in ("py.warnings", *loggers):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [Warnings(log)], False


class Exact(float):
    """A number of which the log has all digits, in either form."""

    def __format__(self, spec: str) -> str:
        return repr(float(self))


def facts_of(error: BaseException) -> dict[str, object]:
    """The facts of an unexpected exception for the log."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    return {"reason": first_line_of(error), TRACEBACK: trace}


def first_line_of(error: BaseException) -> str:
    """Kind and first line of an exception."""
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


def line_text(line: str) -> str:
    """The text of a line as `Log.line` has made it; of an entry of the log the line itself."""
    if not line.startswith("{"):
        return line
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError):
        return line


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text_entry(role: str, index: int, event: str, facts: dict[str, object]) -> str:
    words = [f"{name}={_text(value)}" for name, value in facts.items() if name != TRACEBACK]
    below = [f"    {_visible(line)}" for line in str(facts.get(TRACEBACK, "")).splitlines()]
    return "\n".join([" ".join([_now(), role, str(index), event, *words]), *below])


def json_entry(role: str, index: int, event: str, facts: dict[str, object]) -> str:
    header = {
        "time": _now(),
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
