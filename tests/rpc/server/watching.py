"""A coordinator for the servicer each of whose inputs is checked by the model and the laws of tests/core."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import ClockAnswer, ClockReport
from psruntime.core.coordinator.coordinator import Coordinator, Effects
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, LeaveKind, NotYet, Prepared, PsBeat, WorkerBeat
from psruntime.core.rounds.round_messages import Action, Report
from psruntime.core.shards.shard_messages import ShardAnswer, ShardRequest
from psruntime.core.steering.commands import Command, Kind, Reply
from psruntime.errors import PsRuntimeError, ReplacedError, UsageError
from tests.core.coordinator.watched import Watched


class WatchedCoordinator:
    """Takes the servicer's calls in place of a Coordinator.  A broken law is an AssertionError: a defect in the log."""

    def __init__(self, job: JobConfig) -> None:
        self._relay = _Relay(job)

    def __getattr__(self, name: str) -> Any:
        """What is only read."""
        return getattr(self._relay.core, name)

    @property
    def seen(self) -> dict[str, int]:
        """What came of the calls, by call and kind of answer."""
        return self._relay.seen

    def take_effects(self) -> Effects:
        core = self._relay.core
        effects = Coordinator.take_effects(core)
        kept, core.kept = core.kept, []
        return reduce(_together, [*kept, effects])

    def join(self, join: Join, new_incarnation: int, now_s: float) -> Answer | NotYet:
        relay = self._relay.at(now_s)
        relay.drawn = new_incarnation
        relay.asked_s[join.join_id] = now_s - join.waited_s  # whatever it says
        return self._outcome(lambda: relay.join(join))

    def heartbeat(self, role: Role, index: int, incarnation: int, beat: PsBeat | WorkerBeat, now_s: float) -> Answer:
        relay = self._relay.at(now_s)
        if relay.is_one(role, index, incarnation):
            return self._outcome(lambda: relay.heartbeat(incarnation, beat))
        return self._strange(relay.core.heartbeat, role, index, incarnation, beat, now_s)

    def report_clock(self, report: ClockReport, now_s: float) -> ClockAnswer:
        relay = self._relay.at(now_s)
        if relay.is_one(Role.WORKER, report.worker_index, report.incarnation):
            return self._outcome(lambda: relay.report_clock(report.incarnation, report.view, report.steps))
        return self._strange(relay.core.report_clock, report, now_s)

    def report_prepared(self, index: int, incarnation: int, view: int, prepared: Prepared, now_s: float) -> Answer:
        relay = self._relay.at(now_s)
        if relay.is_one(Role.WORKER, index, incarnation):
            return self._outcome(lambda: relay.report(incarnation, view, prepared.global_step))
        return self._strange(relay.core.report_prepared, index, incarnation, view, prepared, now_s)

    def report_finished(self, index: int, incarnation: int, view: int, now_s: float) -> Answer:
        relay = self._relay.at(now_s)
        if relay.is_one(Role.WORKER, index, incarnation):
            return self._outcome(lambda: relay.report(incarnation, view, None))
        return self._strange(relay.core.report_finished, index, incarnation, view, now_s)

    def report_obstacle(self, index: int, incarnation: int, view: int, obstacle: str, now_s: float) -> Answer:
        """The model relieves nobody: while the job trains an obstacle may change nothing."""
        relay = self._relay.at(now_s)
        relay.pass_time()
        asked = incarnation if relay.is_one(Role.WORKER, index, incarnation) else None
        call = (relay.core.report_obstacle, index, incarnation, view, obstacle, now_s)
        return self._outcome(lambda: relay.call("report_obstacle", asked, *call))

    def control(self, command: Command, now_s: float) -> Reply:
        """The model holds workers, but knows no other bound, mode and end than its own."""
        relay = self._relay.at(now_s)
        if command.kind in (Kind.BOUND, Kind.MODE, Kind.DRAIN):
            relay.advance()
            raise UsageError(f"{command.kind} is not asked of a job under watch")
        relay.pass_time()
        return self._outcome(lambda: relay.call("control", None, relay.core.control, command, now_s))

    def next_action(
        self,
        index: int,
        incarnation: int,
        view: int,
        report: Report | None,
        now_s: float,
        starved_since: int | None = None,
    ) -> Action:
        """The model holds no rounds: a turn may change nothing."""
        relay = self._relay.at(now_s)
        relay.pass_time()
        return self._outcome(
            lambda: relay.call(
                "next_action", None, relay.core.next_action, index, incarnation, view, report, now_s, starved_since
            )
        )

    def take_shard(self, request: ShardRequest, now_s: float) -> ShardAnswer:
        """The model knows no data shards: one may change nothing else."""
        relay = self._relay.at(now_s)
        relay.pass_time()
        return self._outcome(lambda: relay.call("take_shard", None, relay.core.take_shard, request, now_s))

    def action_of(self, index: int, incarnation: int) -> Action:
        return self._relay.core.action_of(index, incarnation)

    def leave(self, role: Role, index: int, incarnation: int, kind: LeaveKind, reason: str, now_s: float) -> None:
        relay = self._relay.at(now_s)
        if relay.is_one(role, index, incarnation):
            self._outcome(lambda: relay.leave(incarnation, kind))
            return
        relay.pass_time()
        relay.call("leave of a stranger", None, relay.core.leave, role, index, incarnation, kind, reason, now_s)

    def starts(self, index: int, now_s: float) -> None:
        """The model knows no workers before their join: one that starts may change nothing of it."""
        relay = self._relay.at(now_s)
        relay.pass_time()
        relay.call("starts", None, relay.core.starts, index, now_s)

    def confirm_lost(self, incarnation: int, now_s: float) -> None:
        self._relay.at(now_s).confirm_lost(incarnation)

    def advance(self, now_s: float) -> None:
        self._relay.at(now_s).advance()

    def answer(self, role: Role, index: int, incarnation: int) -> Answer:
        relay = self._relay
        if relay.is_one(role, index, incarnation):
            return self._outcome(lambda: relay.look(incarnation))
        return relay.core.answer(role, index, incarnation)

    def _strange(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """A call under an incarnation that was never admitted there: refused, and without effect."""
        relay = self._relay
        relay.pass_time()
        outcome = relay.call(f"{method.__name__} of a stranger", None, method, *arguments)
        assert isinstance(outcome, ReplacedError), outcome
        raise outcome

    def _outcome(self, call: Callable[[], object]) -> Any:
        call()
        if isinstance(self._relay.outcome, PsRuntimeError):
            raise self._relay.outcome
        return self._relay.outcome


class _Core(Coordinator):
    """Keeps the effects that the laws take, for the servicer."""

    def __init__(self, job: JobConfig, now_s: float) -> None:
        super().__init__(job, now_s)
        self.kept: list[Effects] = []

    def take_effects(self) -> Effects:
        effects = super().take_effects()
        self.kept.append(effects)
        return effects


def _together(first: Effects, then: Effects) -> Effects:
    return Effects(
        first.events + then.events,
        first.records + then.records,
        first.news or then.news,
        then.actions_revision,
        then.shards_revision,
        first.stragglers | then.stragglers,
    )


class _Relay(Watched):
    """The model, with the incarnations and the time of the servicer."""

    def __init__(self, job: JobConfig) -> None:
        super().__init__(job)
        self.core: _Core = _Core(job, 0.0)
        self.drawn = 0
        self.outcome: Any = None

    def at(self, now_s: float) -> _Relay:
        self.now_s = now_s
        return self

    def is_one(self, role: Role, index: int, incarnation: int) -> bool:
        """Whether somebody who asked for this place was, or would have been, given the incarnation."""
        join = self.joins.get(incarnation)
        return join is not None and (join.role, join.index) == (role, index)

    def draw_incarnation(self) -> int:
        return self.drawn

    def call(self, *arguments: Any, **options: Any) -> Any:
        self.outcome = super().call(*arguments, **options)
        return self.outcome
