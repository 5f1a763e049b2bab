"""When an evaluator ends, and how."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psruntime.commands import evaluator
from psruntime.commands.evaluator import JobEnd
from psruntime.config import JobConfig
from psruntime.config.values import Metric
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Kind, Outcome, Reply
from psruntime.errors import (
    JobDoneError,
    JobFailedError,
    JobStoppedError,
    OtherJobError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
    UsageError,
)
from psruntime.observe import evaluations
from psruntime.observe.evaluations import EarlyStopping
from psruntime.observe.log import Log
from psruntime.process.process import Process

TRAIN_STEPS = 100
JOB = JobConfig(train_steps=TRAIN_STEPS, ps_timeout_s=30, checkpoint_dir="/folder")


def log(*_: Any, **__: Any) -> None:
    pass


class Coordinator:
    """Answers with a phase, or not at all."""

    name = "coordinator a:1"

    def __init__(self) -> None:
        self.phase: Phase | None = Phase.TRAINING
        self.job = JOB

    def get_status(self, watches: bool) -> Any:
        assert watches
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
    end = JobEnd(cast(Any, coordinator), JOB, log)
    end.ask()
    assert end.error is None
    coordinator.phase = phase
    end.ask()
    assert isinstance(end.error, error)


def test_the_time_since_the_end_of_the_job_is_known() -> None:
    now_s, coordinator = [0.0], Coordinator()
    end = JobEnd(cast(Any, coordinator), JOB, log, lambda: now_s[0])
    end.ask()
    now_s[0] = 3.0
    assert end.over_for_s == 0.0
    coordinator.phase = Phase.DONE
    end.ask()
    now_s[0] = 8.0
    assert end.over_for_s == 5.0


def test_a_coordinator_that_is_silent_for_the_ps_timeout_is_given_up() -> None:
    now_s, coordinator = [0.0], Coordinator()
    end = JobEnd(cast(Any, coordinator), JOB, log, lambda: now_s[0])
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
    end = JobEnd(cast(Any, coordinator), JOB, log)
    coordinator.job = JobConfig(job_id="other")
    end.ask()
    assert isinstance(end.error, OtherJobError)
    assert str(end.error) == f"coordinator a:1 serves job other now, and not {JOB.job_id}"


def test_a_signal_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        measure_all(Checkpoints(), ended(None), stop)


class Steered(Coordinator):
    """A coordinator that answers a command with what comes next in `outcomes`."""

    def __init__(self, *outcomes: Outcome | PsRuntimeError) -> None:
        super().__init__()
        self.outcomes, self.asked = list(outcomes), []

    def control(self, request: Any, deadline_s: float) -> Any:
        assert deadline_s > request.max_wait_s > 0
        self.asked.append((request.command.kind, request.command.request_id))
        said = self.outcomes.pop(0)
        if isinstance(said, PsRuntimeError):
            raise said
        return Reply(said, 7, str(said))


def drained(*outcomes: Outcome | PsRuntimeError) -> tuple[JobEnd, Steered, list[tuple[str, dict[str, Any]]]]:
    """After as many questions as there are outcomes."""
    coordinator, events = Steered(*outcomes), []
    end = JobEnd(cast(Any, coordinator), JOB, lambda name, **facts: events.append((name, facts)))
    end.drain()
    for _ in outcomes:
        end.ask()
    return end, coordinator, events


def test_the_end_of_a_job_that_it_ends_itself_is_waited_for() -> None:
    end, coordinator, _ = drained(Outcome.PENDING, UnreachableError("no answer"), Outcome.PENDING, Outcome.DONE)
    assert isinstance(end.error, JobDoneError) and end.drained
    assert len(set(coordinator.asked)) == 1 and coordinator.asked[0][0] is Kind.DRAIN, "repeats of one request"


@pytest.mark.parametrize("error", [JobDoneError("done"), JobFailedError("failed"), JobStoppedError("stopped")])
def test_a_job_that_ended_before_it_was_asked_to(error: PsRuntimeError) -> None:
    end, _, _ = drained(error)
    assert end.error is error and not end.drained and not end.drain()


@pytest.mark.parametrize("refusal", [UsageError("the job is about to end"), Outcome.GIVEN_UP])
def test_a_job_that_does_not_end_is_watched_as_before(refusal: Any) -> None:
    end, coordinator, events = drained(refusal)
    told = [(name, str(facts["reason"])) for name, facts in events]
    assert end.error is None and told == [("not_drained", str(refusal))]
    assert end.drain() and not end.drain(), "it may be asked again, once"
    coordinator.phase = Phase.STOPPED
    end.ask()
    assert isinstance(end.error, JobStoppedError) and len(coordinator.asked) == 1


def test_another_job_in_its_place_is_not_ended() -> None:
    coordinator = Steered(Outcome.DONE)
    coordinator.job = JobConfig(job_id="other")
    end = JobEnd(cast(Any, coordinator), JOB, log)
    end.drain()
    end.ask()
    assert isinstance(end.error, OtherJobError) and not coordinator.asked


def test_it_does_not_ask_without_a_pause_unless_the_coordinator_makes_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Steered(Outcome.PENDING, UnreachableError("no answer"), Outcome.DONE)
    end, waits = JobEnd(cast(Any, coordinator), JOB, log), []
    end.drain()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    end._watch(cast(Any, SimpleNamespace(wait=wait)))
    assert waits == [evaluator.LOOK_S, 0.0, evaluator.LOOK_S] and isinstance(end.error, JobDoneError)


def test_a_job_whose_metric_gets_no_better_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, measured, ended_after, path = [], [], [], tmp_path / "evaluations.jsonl"

    def drain() -> bool:
        ended_after.append(len(measured))
        return len(ended_after) != 2  # the second time it is about to end

    results = evaluator.Results(
        EarlyStopping(Metric("loss", False), 2), drain, str(path),
        lambda name, **facts: events.append((name, facts)), Process(Log("evaluator", 0)).show,
    )  # fmt: skip
    for number, value in enumerate([3, 2, 2, 1, 1.5, 1, 2, 0.5, 0.75]):
        measured.append(number)
        results.measured(number, {"loss": value})
    assert ended_after == [6, 7]
    why = "loss got no better in 2 checkpoints: best was 1.0000 at global step 3"
    assert [facts["reason"] for name, facts in events if name == "stops_early"] == [why]
    assert evaluations.read(str(path)).stopped_at == -1, "it has not ended yet"
    results.ended(8)
    assert evaluations.read(str(path)).stopped_at == 8
    assert "held out, at global step 4: loss 1.5000\n" in capsys.readouterr().out
