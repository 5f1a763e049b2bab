"""What a call costs the coordinator does not grow with the number of workers."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import ClockReport
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec

MODES: dict[str, dict[str, Any]] = {"async": {}, "bounded": {"bound": 50}}
PS = 1  # incarnations
FIRST = 10


def trains_with(workers: int, mode: str) -> Coordinator:
    """A job in TRAINING, in which every worker has a session."""
    job = JobConfig(mode=mode, min_workers=workers, max_workers=workers, **MODES[mode])
    coordinator = Coordinator(job, 0.0)
    coordinator.join(Join(Role.PS, 0, "127.0.0.1:1", "127.0.0.1:2", "ps", job.job_id), PS, 0.0)
    specs = (VariableSpec("kernel", (4,), "float32"),)
    for index in range(workers):
        address = f"127.0.0.1:{index + 10}"
        coordinator.join(
            Join(Role.WORKER, index, address, address, f"{index}", job.job_id, variables=specs), FIRST + index, 0.0
        )
    revision = coordinator.answer(Role.PS, 0, PS).instructions.fence_revision
    coordinator.heartbeat(Role.PS, 0, PS, PsBeat(revision), 0.1)
    coordinator.report_prepared(0, FIRST, 1, Prepared(0), 0.2)
    assert coordinator.state.phase is Phase.TRAINING
    for index in range(workers):
        coordinator.heartbeat(Role.WORKER, index, FIRST + index, WorkerBeat(1), 0.3)
    coordinator.take_effects()
    return coordinator


def calls_of(coordinator: Coordinator, mode: str, step: int) -> tuple[int, int]:
    """(functions that a heartbeat and a clock report call, workers that these look at, one after the other)."""
    called = looked_at = 0

    def count(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal called
        called += event == "call"

    class Watched(dict[int, Any]):
        """The workers; each look at all of them is counted."""

        def __iter__(self) -> Any:
            nonlocal looked_at
            looked_at += len(self)
            return super().__iter__()

        def values(self) -> Any:
            nonlocal looked_at
            looked_at += len(self)
            return super().values()

    members = coordinator.state.members._members
    members[Role.WORKER] = Watched(members[Role.WORKER])
    gc.disable()  # what it frees of other tests in this process may have finalizers, which are calls
    sys.setprofile(count)
    try:
        coordinator.heartbeat(Role.WORKER, 1, FIRST + 1, WorkerBeat(1, step, step), 0.4)
        if mode == "bounded":
            coordinator.report_clock(ClockReport(1, FIRST + 1, 1, step), 0.4)
        coordinator.take_effects()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called, looked_at


@pytest.mark.parametrize("mode", MODES)
def test_a_heartbeat_and_a_report_look_at_one_worker_alone(mode: str) -> None:
    _, few, many = (calls_of(trains_with(workers, mode), mode, 1) for workers in (3, 3, 300))  # the first fills caches
    assert many == few
    assert many[1] == 0
