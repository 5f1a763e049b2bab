"""A watched job fits its terminal, and what matters comes first."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from psruntime.commands.status import watched
from psruntime.core.members.messages import WorkerStats
from tests.observe.test_render import JOB, PS, STATUS, WORKER
from tests.support.selection import long_but

EVENTS = [(1000.0 + i, "joined", f"worker {i}", "") for i in range(8)]
PAIR = (PS, replace(PS, index=1))
CROWD = tuple(
    replace(WORKER, index=i, chief=i == 0, silent_s=9.0 if i == 18 else 0.1,
            worker_stats=WorkerStats(waiting="made up" if i == 19 else ""))
    for i in range(20)
)  # fmt: skip
FULL = replace(STATUS, members=(*PAIR, *CROWD))


def lines_of(height: int | None, status=FULL, width: int = 120) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 10)
    console.print(watched([Text("first")], status, JOB, EVENTS, {19}, console if height else None))
    return out.getvalue().splitlines()


def workers_in(lines: list[str]) -> list[int]:
    begin = next(i for i, line in enumerate(lines) if line.startswith("worker "))
    rows = (re.match(r"(\d+) ", line) for line in lines[begin + 1 :])
    return [int(row[1]) for row in rows if row]


def test_with_room_for_all_it_is_in_order() -> None:
    lines = lines_of(None)
    assert workers_in(lines) == list(range(20))
    assert not any("more" in line for line in lines)
    assert sum("10.0.0.1:1" in line for line in lines) == 2
    assert any(line.startswith("traffic") for line in lines)


def test_on_a_terminal_of_24_lines_events_and_who_stands_out_are_seen() -> None:
    lines = lines_of(24)
    assert len(lines) == 24
    assert lines[0] == "first" and lines[1].startswith("TRAINING")
    assert sum("joined" in line for line in lines) == 8
    shown = workers_in(lines)
    assert shown[:2] == [18, 19], "the silent one and the one that waits"
    assert shown[2:] == list(range(len(shown) - 2))
    assert lines[-1] == f"and {20 - len(shown)} more"


@pytest.mark.parametrize("height", long_but([1, 4, 24, 59], range(1, 60)))
@pytest.mark.parametrize("width", [60, 120])
def test_no_height_is_exceeded(height: int, width: int) -> None:
    lines = lines_of(height, width=width)
    assert len(lines) <= max(height, 4), "the head is always there"


def test_with_many_ps_there_is_a_line_for_the_workers() -> None:
    many = replace(STATUS, members=(*(replace(PS, index=i) for i in range(40)), *CROWD))
    lines = lines_of(24, many)
    assert len(lines) <= 24
    assert any(re.fullmatch(r"and \d+ more", line) for line in lines)
    assert lines[-1] == "20 workers"
