"""The commands of operators: each is taken once, in its order, and ends as done or given up.

The coordinator calls `finish` for what only it sees, as that a checkpoint is written or a worker has gone.

Law: a request that was taken is not taken again, however often it is repeated.
Law: one change of settings is under way at a time, and each begins after those before it, but for one that workers
build for: others pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psruntime.core.steering.barrier import Barrier, BarrierState, Decision, Look
from psruntime.core.steering.commands import Command, Kind, Outcome, Overrides, Reply, SteeringStatus

REMEMBERED = 256  # requests that are over, for repeats of theirs; an operator makes a few an hour
MOST_OPEN = 64  # requests that are not
MOST_OPEN_OF_HOST = 16  # of those: so one host leaves room for the others
OPEN = Reply(Outcome.PENDING)


@dataclass
class Request:
    """A command that was taken, at this global step.

    incarnation: of the worker that it is about.  failed_saves: of the chief then.
    """

    command: Command
    at_step: int
    incarnation: int = 0
    failed_saves: int = 0
    reply: Reply = OPEN

    @property
    def is_open(self) -> bool:
        return self.reply.outcome is Outcome.PENDING


class Steering:
    """`note(name, **facts)` takes what an operator wants to read.  revision: grows with every change of a reply.

    started_with: the settings with which the job was started.
    """

    def __init__(self, started_with: Overrides, note: Callable[..., None]) -> None:
        self.barrier = Barrier(started_with)
        self.revision = 0
        self._note = note
        self._requests: dict[str, Request] = {}  # by request id, the latest last
        self._open: list[Request] = []
        self._under_way: Request | None = None  # the change that the barrier is at

    @property
    def settings(self) -> Overrides:
        """In force."""
        return self.barrier.in_force

    def is_full_for(self, caller: str) -> bool:
        """Whether so many have not, of all callers or of those at this host, that no more is taken.

        caller: host:port.
        """
        host = caller.rpartition(":")[0]
        of_host = sum(each.command.by.rpartition(":")[0] == host for each in self._open)
        return len(self._open) >= MOST_OPEN or of_host >= MOST_OPEN_OF_HOST

    def restore(self, settings: Overrides) -> None:
        """Restores settings that a member got from an earlier coordinator, before the job trains."""
        if self.barrier.state is BarrierState.OPEN:
            self.barrier.restore(settings)

    def has_request(self, request_id: str) -> bool:
        """Whether this request was taken."""
        return request_id in self._requests

    def take(self, command: Command, global_step: int, incarnation: int = 0, failed_saves: int = 0) -> None:
        """A command that can be carried out.  A repeat changes nothing.

        While no ps has got a change, and a worker does not end its step, `resume` withdraws it.  What the job
        wants itself would come again; that is withdrawn by what an operator wants instead.  A change for which workers
        build lets others pass, and another mode withdraws it.
        """
        if self.has_request(command.request_id):
            return
        revocable = self.revocable
        if revocable and (command.is_by_hand if revocable.is_due else command.kind is Kind.RESUME):
            self.withdraw(f"withdrawn by {command}", global_step)
        if self.is_building and command.kind.changes and not command.wants_what(self.changing):
            if command.kind is Kind.MODE and not command.is_due:
                self.withdraw(f"withdrawn by {command}", global_step)
            else:
                self.barrier.give_up()  # it begins again behind the other one
                self._under_way = None
        request = Request(command, global_step, incarnation, failed_saves)
        self._requests[command.request_id] = request
        self._open.append(request)
        over = [name for name, each in self._requests.items() if not each.is_open]
        for name in over[: max(0, len(over) - REMEMBERED)]:
            del self._requests[name]
        self.revision += 1
        self._note("control", command=str(command), by=command.by, global_step=global_step)

    @property
    def revocable(self) -> Command | None:
        """The change for which workers pause and that no ps has got yet; None if there is none."""
        return self.changing if self.barrier.state is BarrierState.PAUSE else None

    @property
    def is_building(self) -> bool:
        """Whether a change is under way for which workers build; no worker pauses for it yet."""
        return self.barrier.state is BarrierState.BUILD

    @property
    def changing(self) -> Command:
        """The change that is under way, or comes next; there is one."""
        return self._change().command

    @property
    def is_changing(self) -> bool:
        """Whether a change has not taken effect."""
        return any(request.command.kind.changes for request in self._open)

    def withdraw(self, why: str, global_step: int) -> None:
        """Withdraws the change that is under way, which no ps has got yet."""
        self.barrier.give_up()
        self.finish(self._change(), global_step, why, Outcome.GIVEN_UP)

    def reply(self, request_id: str) -> Reply:
        """The outcome of a request that was taken; while it is pending, `waits_for` gives the reason."""
        return self._requests[request_id].reply

    def open_of(self, kind: Kind) -> Iterator[Request]:
        """The commands of this kind that have not taken effect."""
        return (request for request in list(self._open) if request.command.kind is kind)

    def decide(self, look: Look) -> Decision:
        """What the barrier does next."""
        return self.barrier.decide(look)

    def release(self, global_step: int) -> None:
        """The change that was under way is in force from this global step on."""
        self.barrier.release(global_step)
        self.finish(self._change(), global_step, self._change().command.done)

    def finish(self, request: Request, global_step: int, text: str, outcome: Outcome = Outcome.DONE) -> None:
        """A command has taken effect, or does not any more.  text: of the log, before the global step."""
        at = f"{text} at global step {global_step}" if outcome is Outcome.DONE else text
        request.reply = Reply(outcome, global_step, at)
        self._open.remove(request)
        if request is self._under_way:
            self._under_way = None
        self.revision += 1
        facts = {"command": str(request.command), "outcome": outcome, "global_step": global_step}
        self._note("steered", **facts, reason=at)

    def end(self, why: str, global_step: int, is_done: bool | None) -> None:
        """The job takes no further step: what has not taken effect is given up, but for its end itself.

        A change that the ps have got is done: no step can begin under other settings.

        is_done: whether the training is completed; None while the job drains.
        """
        if self.barrier.state is BarrierState.APPLY:
            self.release(global_step)
        if self.barrier.may_be_given_up:
            self.barrier.give_up()
        for request in list(self._open):
            is_drain = request.command.kind is Kind.DRAIN
            if is_drain and is_done:
                self.finish(request, global_step, "drained; the job is done")
            elif not is_drain or is_done is False:
                self.finish(request, global_step, f"given up: {why}", Outcome.GIVEN_UP)

    def status(self, look: Callable[[], Look], waits_for: Callable[[Request], str]) -> SteeringStatus:
        """look: of the barrier at the job.  waits_for: what a command waits for that is no change."""
        pending = tuple(str(request.command) for request in self._open)
        reason = ""
        if self._open:
            first = self._open[0]
            seen = look()
            is_change = first.command.kind.changes
            reason = self.decide(seen).reason or seen.why_not if is_change else waits_for(first)
        return SteeringStatus(self.settings, pending, reason)

    def _change(self) -> Request:
        """The change that is under way, or comes next: those that need no build first."""
        changes = (request for request in self._open if request.command.kind.changes)
        return self._under_way or min(changes, key=lambda request: self._may_build(request.command))

    def _may_build(self, command: Command) -> bool:
        """Whether workers may have to build for it; those of a schedule have built before they joined."""
        return not command.is_due and not command.change(self.settings).same_graph(self.settings)

    def begin_next(self, global_step: int) -> bool:
        """Begins the next change if none is under way; returns whether one is.  One that changes nothing is done."""
        while self.barrier.state is BarrierState.OPEN and self.is_changing:
            request = self._change()
            change = request.command.change(self.settings)
            if why := request.command.why_not(self.settings):
                self.finish(request, global_step, f"given up: {why}", Outcome.GIVEN_UP)
            elif change == self.settings:
                self.finish(request, global_step, f"{request.command.done} already")
            elif change.same_steps(self.settings):
                self.barrier.note(change, global_step)
                self.finish(request, global_step, request.command.done)
            else:
                self._under_way = request
                self.barrier.begin(change, self._may_build(request.command))
        return self.barrier.state is not BarrierState.OPEN
