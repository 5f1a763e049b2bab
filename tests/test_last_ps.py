"""The end of ps 0, which hosts the coordinator: it lets the others leave, for a time, and names those that do not."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from psruntime import ps
from psruntime.core.members.job_status import JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase, View
from psruntime.ps import await_empty

LONG_S = 60.0


@dataclass
class Coordinator:
    """Of a job that is done: the first worker of the list leaves with each look, until `stays` are left."""

    workers: list[int]
    stays: int = 0
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def get_status(self) -> tuple[JobStatus, None]:
        left = tuple(MemberStatus(Role.WORKER, index, "h:1", "h:2", 7, 1.0, 0.0) for index in self.workers)
        if len(self.workers) > self.stays:
            self.workers.pop(0)
        return JobStatus(Phase.DONE, "", View(), 0, 10, 0, left), None

    def wait(self, within_s: float = LONG_S, stop: threading.Event | None = None) -> list[tuple[str, dict[str, Any]]]:
        note = lambda event, **facts: self.log.append((event, facts))  # noqa: E731
        await_empty(self, within_s, stop or threading.Event(), note)  # type: ignore[arg-type]
        return self.log


def test_members_that_leave_at_once_are_not_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ps, "TELL_AFTER_S", LONG_S)
    assert Coordinator([0, 1]).wait() == []


def test_whom_it_waits_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ps, "TELL_AFTER_S", 0.0)
    assert Coordinator([3, 5]).wait() == [("waiting", {"reason": "worker 3, worker 5 to leave"})]


def test_one_that_stays_is_left_behind_and_named() -> None:
    log = Coordinator([4], stays=1).wait(within_s=0.01)
    assert log == [("left_behind", {"members": "worker 4", "reason": "the job has been over for 0.01 s"})]
    [(_, facts)] = Coordinator(list(range(12)), stays=12).wait(within_s=0.0)
    assert facts["members"].endswith("worker 9 and 2 more")


def test_a_process_that_shall_stop_does_not_wait() -> None:
    stop = threading.Event()
    stop.set()
    assert Coordinator([4], stays=1).wait(stop=stop) == []
