"""docs/operations.md and docs/settings.md: exit codes, log events and settings are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from psruntime import errors
from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.config.settings import default_text, flag_of, settings_of
from psruntime.launch.children import crashed
from tests.support import docs

SETTINGS = docs.ROOT / "docs/settings.md"
# Functions that log, or hand an event on -> which of their arguments it is.
LOGGED = {"log": 0, "_log": 0, "note": 0, "_note": 0, "_report": 0, "_forget": 2, "remove": 2, "self": 0}


def test_the_table_of_exit_codes_is_what_the_launcher_goes_by() -> None:
    rows = {row[0]: row[2] for row in docs.table("docs/operations.md", "exit codes")}
    for code in (errors.EXIT_DONE, errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_RESTART):
        assert rows[str(code)].startswith("yes") == crashed(code), code


@pytest.mark.parametrize("config", [JobConfig, ProcessConfig, SecurityConfig, WorkerConfig])
def test_the_tables_of_settings_have_them_all(config: type) -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` ?(.*?) \|", SETTINGS.read_text(), re.MULTILINE))
    for setting in settings_of(config):
        default = default_text(setting).removeprefix("default: ")
        assert rows[flag_of(setting.name)].startswith(default), setting.name


def test_the_table_of_log_events_has_them_all() -> None:
    named = [
        event for row in docs.table("docs/operations.md", "log events") for event in re.findall(r"`(\w+)`", row[0])
    ]
    assert len(named) == len(set(named))
    assert set(named) == logged_events()


@cache
def logged_events() -> frozenset[str]:
    """All events that psruntime logs."""
    return frozenset(event for file in (docs.ROOT / "psruntime").rglob("*.py") for event in events(file))


def events(file: Path) -> Iterator[str]:
    """What a module logs: the texts that its log, or what hands an event on to one, is called with first."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = LOGGED.get(called, len(node.args))
            yield from (text for argument in node.args[place : place + 1] for text in texts(argument))
        elif isinstance(node, ast.Assign) and "event" in ast.unparse(node.targets[0]):
            yield from texts(node.value)


def texts(node: ast.AST) -> list[str]:
    """The text that this is, or those that it may be."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.Tuple):
        return texts(node.elts[0])
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


@pytest.mark.parametrize(
    ("statement", "logged"),
    [
        ('self._log("exit", code=1)', ["exit"]),
        ('member.log("error" if code else "over", reason=error)', ["error", "over"]),
        ('transitions.remove(state, member, "cut_off", reason)', ["cut_off"]),
        ('event, source = "restored", {"replica": 1}', ["restored"]),
        ("self._note({**facts}, folder)", []),
        ('print("exit")', []),
    ],
)
def test_an_event_is_found(statement: str, logged: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(statement)
    assert list(events(tmp_path / "a.py")) == logged
