"""When an evaluator ends, and how."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psruntime import evaluator
from psruntime.config import JobConfig
from psruntime.core.members.view import Phase
from psruntime.errors import (
    JobDoneError,
    JobFailedError,
    JobStoppedError,
    OtherJobError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
)
from psruntime.evaluator import JobEnd

TRAIN_STEPS = 100
JOB = JobConfig(train_steps=TRAIN_STEPS, ps_timeout_s=30, checkpoint_dir="/folder")


class Coordinator:
    """Answers with a phase, or not at all."""

    name = "coordinator a:1"

    def __init__(self) -> None:
        self.phase: Phase | None = Phase.TRAINING
        self.job = JOB

    def get_status(self) -> Any:
        if self.phase is None:
            raise UnreachableError("no answer")
        return SimpleNamespace(phase=self.phase, reason="why"), self.job


class Checkpoints:
    """`left` of them are new."""

    def __init__(self, left: int = 0, failure: str = "", global_step: int = 0) -> None:
        self.left, self.failure, self.global_step = left, failure, global_step

    def measure_next(self) -> bool:
        self.left -= 1
        return self.left >= 0


def ended(error: PsRuntimeError | None) -> JobEnd:
    return cast(JobEnd, SimpleNamespace(error=error))


def measure_all(checkpoints: Checkpoints, end: Any, stop: threading.Event | None = None) -> int:
    return evaluator._measure_all(cast(Any, checkpoints), end, JOB, stop or threading.Event())


@pytest.mark.parametrize(
    ("phase", "error"),
    [(Phase.DONE, JobDoneError), (Phase.FAILED, JobFailedError), (Phase.STOPPED, JobStoppedError)],
)
def test_the_end_of_the_job_is_heard(phase: Phase, error: type[PsRuntimeError]) -> None:
    coordinator = Coordinator()
    end = JobEnd(cast(Any, coordinator), JOB)
    end.ask()
    assert end.error is None
    coordinator.phase = phase
    end.ask()
    assert isinstance(end.error, error)


def test_a_coordinator_that_is_silent_for_the_ps_timeout_is_given_up() -> None:
    now_s, coordinator = [0.0], Coordinator()
    end = JobEnd(cast(Any, coordinator), JOB, lambda: now_s[0])
    coordinator.phase = None
    now_s[0] = 29.0
    end.ask()
    assert end.error is None
    coordinator.phase = Phase.FORMING  # it was started again
    end.ask()
    coordinator.phase = None
    now_s[0] = 58.0
    end.ask()
    assert end.error is None
    now_s[0] = 59.0
    end.ask()
    assert str(end.error) == (
        "coordinator a:1 was not reached for 30 s; is ps 0 running there? (--ps-timeout): no answer"
    )


def test_what_is_new_when_the_job_ends_is_measured_before_the_end() -> None:
    checkpoints = Checkpoints(left=3)
    with pytest.raises(JobDoneError):
        measure_all(checkpoints, ended(JobDoneError("done")))
    assert checkpoints.left < 0


def test_a_last_checkpoint_without_values_fails_the_evaluation_of_a_job_that_is_done() -> None:
    with pytest.raises(JobFailedError, match=r"^the job is done, but its evaluation failed: damaged$"):
        measure_all(Checkpoints(failure="damaged"), ended(JobDoneError("done")))
    with pytest.raises(JobStoppedError):
        measure_all(Checkpoints(failure="damaged"), ended(JobStoppedError("stopped")))


def test_the_last_checkpoint_of_a_job_whose_processes_are_gone_ends_it_well() -> None:
    silent = ended(UnreachableError("nobody answers"))
    assert measure_all(Checkpoints(left=2, global_step=TRAIN_STEPS), silent) == 0
    for early in (Checkpoints(global_step=TRAIN_STEPS - 1), Checkpoints(global_step=TRAIN_STEPS, failure="damaged")):
        with pytest.raises(UnreachableError):
            measure_all(early, silent)


def test_a_job_that_is_done_and_has_no_checkpoint_here_fails_the_evaluation() -> None:
    with pytest.raises(JobFailedError, match=r"^the job is done, but /folder has no checkpoint here; is it the same"):
        measure_all(Checkpoints(global_step=-1), ended(JobDoneError("done")))


def test_another_job_in_its_place_ends_it() -> None:
    coordinator = Coordinator()
    end = JobEnd(cast(Any, coordinator), JOB)
    coordinator.job = JobConfig(job_id="other")
    end.ask()
    assert isinstance(end.error, OtherJobError)
    assert str(end.error) == f"coordinator a:1 serves job other now, and not {JOB.job_id}"


def test_a_signal_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        measure_all(Checkpoints(), ended(None), stop)
