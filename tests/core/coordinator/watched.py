"""A coordinator under watch: every call goes through a model that knows what must come of it.

expected.py has the model, laws.py what must hold after each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psruntime.core.clocks.clocks import ClockReport
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, Join, LeaveKind, NotYet, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.errors import (
    PsRuntimeError,
    ReplacedError,
)
from tests.core.coordinator import laws
from tests.core.coordinator.expected import Expected, LiveMember


class Watched(Expected):
    """Calls go in here; an AssertionError comes out when the coordinator breaks a law."""

    def join(self, join: Join) -> None:
        self.pass_time()
        asked_s = self.asked_s.setdefault(join.join_id, self.now_s)
        join = replace(join, waited_s=self.now_s - asked_s)
        incarnation = self.draw_incarnation()
        self.joins[incarnation] = join
        kind, holder = self.verdict(join, asked_s)
        if kind is Answer and holder is None:
            self.live[incarnation] = LiveMember(join, self.now_s, base=self.floor, clock=self.floor)
            if join.role is Role.PS:
                self.missing_s.pop(join.index, None)
            else:
                self.specs, self.identity = join.variables, self.identity or join.identity
                self.live[incarnation].rests = self.drains
                self.fill_in_a_chief()
                self.pass_on_the_chief(self.state.phase)
        result = self.call("join", holder or incarnation, self.core.join, join, incarnation, self.now_s)
        assert type(result) is kind, result
        if isinstance(result, NotYet):
            assert result.holder is not None and result.holder.incarnation == holder
            assert result.holder.health_address == self.joins[holder].health_address
            assert result.tag == tag_of(holder)

    def heartbeat(self, incarnation: int, beat: PsBeat | WorkerBeat) -> None:
        self.pass_time()
        join = self.joins[incarnation]
        if member := self.live.get(incarnation):
            member.heard_s, member.silent_s = self.now_s, 0.0
            if isinstance(beat, PsBeat):
                member.wrote = beat.fence_revision if beat.fence_revision in self.fences[incarnation] else None
            else:
                member.rests = self.drains and laws.has_stopped(self, incarnation)
                member.beat = beat = replace(beat, stopped=True) if member.rests else beat
                if beat.view == self.state.view.number > 0:
                    self.move(incarnation, member.base + beat.steps)
                    self.raise_floor()
                    if beat.stopped:
                        self.retire(incarnation)
            usable = self.state.phase.prepared and not self.view_is_void() and not self.over
            if beat.view == self.state.view.number and usable:
                self.global_step = max(self.global_step, beat.global_step)
            self.pass_on_the_chief(self.state.phase)
        result = self.call(
            "heartbeat", incarnation, self.core.heartbeat, join.role, join.index, incarnation, beat, self.now_s
        )
        assert type(result) is (Answer if incarnation in self.live else ReplacedError), result

    def report_clock(self, incarnation: int, view: int, steps: int) -> int | None:
        """Returns the floor; None for one that is no member."""
        self.pass_time()
        member = self.live.get(incarnation)
        if member and view == self.state.view.number > 0:
            self.move(incarnation, member.base + steps)
            self.raise_floor()
        index = self.joins[incarnation].index
        report = ClockReport(index, incarnation, view, steps)
        result = self.call("report_clock", incarnation, self.core.report_clock, report, self.now_s)
        if member is None or member.join.role is Role.PS:
            assert type(result) is ReplacedError, result
            return None
        floor, reason = result.floor, result.reason
        assert floor == (self.floor if view == self.state.view.number else 0)
        if view == self.state.view.number:
            waits = not member.retired and self.job.bound is not None and member.clock - self.floor > self.job.bound
            assert (f"{member.clock - self.floor} steps ahead of worker " in reason) if waits else reason == ""
            self.seen["has to wait"] += waits
        return int(floor)

    def report(self, incarnation: int, view: int, global_step: int | None) -> None:
        """`report_prepared`, or without a global step `report_finished`."""
        self.pass_time()
        index = self.joins[incarnation].index
        accepted = incarnation in self.live and incarnation == self.chief
        ready = view == self.state.view.number and incarnation == self.chief and not self.view_is_void()
        if global_step is None:
            arguments: tuple[Any, ...] = (self.core.report_finished, index, incarnation, view, self.now_s)
            drains = self.state.phase is Phase.DRAINING or (
                self.state.phase is Phase.TRAINING and self.settled and self.had_all_stopped
            )
            expected = Phase.DONE if ready and drains else None
        else:
            arguments = (self.core.report_prepared, index, incarnation, view, Prepared(global_step), self.now_s)
            expected = Phase.TRAINING if ready and self.state.phase is Phase.PREPARING else None
            if expected:
                self.steps_lost += max(0, self.global_step - global_step)
                self.global_step = global_step
                self.avoided, self.patience = set(), 1
                self.pass_on_the_chief(Phase.TRAINING)
        result = self.call("report", incarnation, *arguments, moves_to=expected)
        assert type(result) is (Answer if accepted else ReplacedError), result

    def leave(self, incarnation: int, kind: LeaveKind) -> None:
        self.pass_time()
        join = self.joins[incarnation]
        fatal = kind is LeaveKind.FATAL and incarnation in self.live and not self.failing()
        if kind is LeaveKind.ERROR:
            self.fail(incarnation)
        self.drop(incarnation, for_good=fatal)
        result = self.call(
            f"leave {kind}", None, self.core.leave, join.role, join.index, incarnation, kind, "broke", self.now_s,
            moves_to=Phase.FAILED if fatal else None,
        )  # fmt: skip
        assert result is None

    def confirm_lost(self, incarnation: int) -> None:
        self.pass_time()
        self.lose(incarnation)
        assert self.call("confirm_lost", None, self.core.confirm_lost, incarnation, self.now_s) is None

    def advance(self) -> None:
        self.pass_time()
        assert self.call("advance", None, self.core.advance, self.now_s) is None

    def look(self, incarnation: int) -> None:
        join = self.joins[incarnation]
        result = self.call("answer", incarnation, self.core.answer, join.role, join.index, incarnation)
        assert type(result) is (Answer if incarnation in self.live else ReplacedError), result

    def call(
        self,
        name: str,
        incarnation: int | None,
        method: Callable[..., Any],
        *arguments: Any,
        moves_to: Phase | None = None,
    ) -> Any:
        """Makes the call and checks everything; gives back the answer or the error.  `moves_to`: what it must do."""
        before = laws.Before.of(self.state)
        try:
            result = method(*arguments)
        except PsRuntimeError as error:
            result = error
        self.seen[f"{name}: {type(result).__name__}"] += 1
        if self.state.view.number != before.view.number:
            self.floor = 0
            for member in self.live.values():
                member.base = member.clock = 0
                member.retired = member.rests = False
            for gone in self.gone:
                gone.unmoved = {}
        laws.check_events(self, before, moves_to)
        laws.check_state(self, before)
        if isinstance(result, Answer):
            assert incarnation is not None
            laws.check_answer(self, incarnation, result)
        return result
