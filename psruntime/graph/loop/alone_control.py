"""The control plane of a worker that trains by itself for a while, while the job continues."""

from __future__ import annotations

from collections.abc import Callable

from psruntime.core.members.messages import Assignment, Ending, Prepared
from psruntime.core.members.view import View
from psruntime.core.rounds.round_messages import Action, Report, Starved
from psruntime.graph.session.worker_run import ControlPlane, Shards


class TrainsNoMoreError(Exception):
    """The job does not train any more, or not in the view in which a worker began to train by itself."""


class AloneControl:
    """Of steps on ps of the worker's own, which it prepares itself, with no bound and without the others.

    The worker steps while the job trains in the view in which this began.  steps_left: that it has still to take.

    job: the control plane of the job.  Each method as in ControlPlane.
    """

    def __init__(self, job: ControlPlane) -> None:
        self.steps_left = 0
        self._job = job
        self._in_job: Assignment | None = None
        self._own: Assignment | None = None
        self._is_prepared = False
        self._global_step = 0  # of the job, which stays as it is

    def begin(self, in_job: Assignment, view: View, global_step: int, end: int) -> None:
        """Steps are to be taken from `global_step` to `end` on the ps of `view`, while `in_job` holds."""
        self._in_job, self._global_step, self.steps_left = in_job, global_step, end - global_step
        self._own, self._is_prepared = Assignment(view, in_job.incarnation, prepare=False), False

    @property
    def shards(self) -> Shards:
        return self._job.shards

    @property
    def mode(self) -> str:
        return "async"

    @property
    def bound(self) -> int | None:
        return None

    @property
    def learning_rate_scale(self) -> float:
        return self._job.learning_rate_scale

    def await_view(self) -> Assignment:
        """Raises TrainsNoMoreError."""
        if not self._goes_on:
            raise TrainsNoMoreError
        assert self._own is not None
        return Assignment(self._own.view, self._own.incarnation, prepare=not self._is_prepared)

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:  # noqa: ARG002
        self._is_prepared = True

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:  # noqa: ARG002
        raise AssertionError(f"nothing keeps a worker from its own ps: {obstacle}")

    def no_session(self, assignment: Assignment, why: str) -> None:
        self._job.back_off(f"no session on view {assignment.view.number} of this worker's own: {why}")

    def entered(self, assignment: Assignment) -> None:
        pass

    def is_current(self, assignment: Assignment) -> bool:
        return self._own is not None and assignment.view == self._own.view

    def is_chief(self) -> bool:
        return True

    def wants_checkpoint(self) -> bool:
        return False

    def while_paused(self, act: Callable[[], None]) -> None:
        pass

    def may_step(self, under_way: int = 0) -> bool:
        return self.steps_left > under_way and self._goes_on

    @property
    def _goes_on(self) -> bool:
        assert self._in_job is not None
        return self._job.is_current(self._in_job) and self._job.may_step()

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        self._job.waits_for_shard(reason, no_step_under_way)

    def next_action(
        self,
        assignment: Assignment,  # noqa: ARG002
        report: Report | None,  # noqa: ARG002
        starved: Starved | None = None,  # noqa: ARG002
    ) -> Action | None:
        return None

    def count_push(self) -> None:
        pass

    def stepped(self, global_step: int) -> None:  # noqa: ARG002
        self.steps_left -= 1
        self._job.stepped(self._global_step)

    def fails(self, reason: str) -> None:
        pass

    def await_end(self, assignment: Assignment) -> Ending:  # noqa: ARG002
        return Ending.OVER

    def saves(self, under_way: bool) -> None:
        pass

    def saved(self, global_step: int) -> None:
        pass

    def closed_part(self, doing: str = "") -> None:
        pass

    def closes(self, doing: str) -> None:
        pass

    def report_finished(self, assignment: Assignment) -> None:
        pass

    def back_off(self, why: str) -> None:
        self._job.back_off(why)
