"""Breaks of the laws, made on purpose: FOUND_BY has those that the simulation finds, and by which seed.

A mutant replaces one function of the product, or of the ps' twin of the product's graph, by a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from psruntime.config.schedule import ASYNC, BOUNDED, SYNC
from psruntime.core.accounting.accounts import APPLIED, PENDING, ROLLED_BACK, VOID
from psruntime.core.coordinator import lifecycle
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members import membership
from psruntime.core.members.view import Fence, Past
from psruntime.core.recovery import recovery
from psruntime.core.rounds import contribution, rounds
from psruntime.core.rounds.contribution import SectionState
from psruntime.core.rounds.rounds import RoundEvent, Rounds, RoundState
from psruntime.graph.loop import round_loop, round_runs
from psruntime.rpc.client.latest_answer import LatestAnswer
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.worker import worker_control
from psruntime.rpc.worker.step_gate import Gate
from psruntime.rpc.worker.worker_control import WorkerControl
from tests.simulation import checkpoints
from tests.simulation.servers import Bucket, Pushed, Servers


@dataclass(frozen=True)
class Mutant:
    """In each of `places`, (owner, name), the function is what `wrong` makes of the right one."""

    name: str
    places: tuple[tuple[Any, str], ...]
    wrong: Callable[[Any], Any]
    mode: str = SYNC

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for owner, name in self.places:
                patched.setattr(owner, name, self.wrong(vars(owner)[name]))
            yield


def _gives(result: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *args, **options: result


def _no_void(right: Any) -> Any:
    def withdraw(self: Rounds, incarnation: int) -> list[int]:
        self._late += self._chosen.lose(incarnation)
        return []

    return withdraw


def _same_attempt(right: Any) -> Any:
    """An attempt that became void is tried again under its number."""

    def move(self: Rounds, event: RoundEvent) -> None:
        right(self, event)
        self.attempt -= event is RoundEvent.VOID

    return move


def _forgets_attempts(right: Any) -> Any:
    return lambda self, global_step, attempt: right(self, global_step, min(attempt, global_step))


def _never_moves(column: int, to: int) -> Callable[[Any], Any]:
    def wrong(right: Any) -> Any:
        return lambda self, count, *columns: None if columns == (column, to) else right(self, count, *columns)

    return wrong


def _keeps_values(right: Any) -> Any:
    def restore(self: Servers, number: int, value: int, steps: int, attempt: int) -> None:
        bucket = self.buckets[number]
        if bucket.steps == 0:
            bucket.value, bucket.steps = value, steps
        bucket.state = SectionState(attempt, 0, attempt, attempt)

    return restore


def _complete_early(right: Any) -> Any:
    """A round is complete when all members but one have contributed."""

    def look(self: Rounds) -> None:
        if self.state is RoundState.COLLECTING and len(self._contributions) == self._chosen.needed - 1 > 0:
            for missing in [inc for inc in self._members if inc not in self._contributions]:
                self._chosen.lose(missing)
                del self._chosen.members[missing]
        right(self)

    return look


def _any_revision(right: Any) -> Any:
    def offer(self: LatestAnswer, answer: Any) -> None:
        with self._changed:
            self._answer = answer
            self._changed.notify_all()

    return offer


def _forgets_round(right: Any) -> Any:
    return lambda self, global_step, attempt: (setattr(self, "_previous", None), right(self, global_step, attempt))[1]


_RIGHT_USE = contribution.use_of


def _always_again(right: Any) -> Any:
    return lambda kept, is_of_view, action, closes_without: _RIGHT_USE(kept, True, action, closes_without)


def _always_counted(right: Any) -> Any:
    return lambda kept, is_of_view, action, closes_without: _RIGHT_USE(
        kept, is_of_view, replace(action, known_from=action.round), closes_without
    )


def _drops_instead(right: Any) -> Any:
    def use(*args: Any) -> Any:
        found = right(*args)
        return contribution.Use.SPENT if found is contribution.Use.ANEW else found

    return use


def _one_round_more(right: Any) -> Any:
    return lambda self, limit=None, *more, **named: right(self, None if limit is None else limit + 1, *more, **named)


def _with_every_view(right: Any) -> Any:
    return lambda self, view: right(self, self.view.number)


def _never_renewed(right: Any) -> Any:
    return lambda self, member: member


def _not_sealed(right: Any) -> Any:
    return lambda self, number, run, done: done(None)


def _of_the_chief(right: Any) -> Any:
    return lambda state, index, incarnation: state.chief_member


def _forgotten(right: Any) -> Any:
    return lambda self, attempt: self


def _sent_again(right: Any) -> Any:
    return lambda start: lambda step_context: start()()


def _no_end(right: Any) -> Any:
    return lambda self, global_step: right(self, min(global_step, (self._job.train_steps or 0) - 1))


NO_RECOVERY = recovery.Recovery(frozenset())
MUTANTS = (
    Mutant("a ps does not check the fence", ((Servers, "is_fenced"),), _gives(False)),
    Mutant("contributions to an older attempt are taken", ((SectionState, "voids"),), _gives(False)),
    Mutant("a round closes without one of its members", ((Rounds, "_look"),), _complete_early),
    Mutant("a round is applied twice", ((SectionState, "began"),), _gives(False)),
    Mutant("a lease does not end", ((membership.Membership, "end_leases"),), _gives([])),
    Mutant("a heartbeat does not renew the lease", ((membership.Membership, "renew"),), _never_renewed),
    Mutant("pending contributions stay after a restore", ((Bucket, "move"),), _never_moves(PENDING, VOID)),
    Mutant(
        "applied updates stay in the ledger after a restore", ((Bucket, "move"),), _never_moves(APPLIED, ROLLED_BACK)
    ),
    Mutant("variables stay at a restore", ((Servers, "restore"),), _keeps_values),
    Mutant("the loss of a member voids nothing", ((Rounds, "_withdraw"),), _no_void),
    Mutant("a void attempt is tried again under its number", ((Rounds, "_move"),), _same_attempt),
    Mutant("a view begins with attempts that there were", ((Rounds, "begin"),), _forgets_attempts),
    Mutant("a report of an older attempt counts", ((rounds, "is_of"),), _gives(True)),
    Mutant("buckets with different rounds are adopted", ((checkpoints, "hold_same_rounds"),), _gives(True)),
    Mutant("variables are adopted though a ps was lost", ((checkpoints, "decide"),), _gives(NO_RECOVERY)),
    Mutant("sums are not sealed", ((Servers, "seal"),), _not_sealed),
    Mutant("a torn round counts as applied", ((round_runs, "torn"),), _gives(None)),
    Mutant("a bucket that is not closed counts as closed", ((round_loop, "has_closed"),), _gives(True)),
    Mutant("a void contribution is reported", ((round_loop, "are_accepted"),), _gives(True)),
    Mutant("a gradient of another view is pushed again", ((round_loop, "use_of"),), _always_again),
    Mutant("a contribution is sent again", ((round_loop, "sent_once"), (round_runs, "sent_once")), _sent_again),
    Mutant("each contribution that was accepted counts", ((round_loop, "use_of"),), _always_counted),
    Mutant("a contribution that was cut off voids nothing", ((Rounds, "cut_off"),), _gives([])),
    Mutant("a batch is dropped with its view", ((round_loop, "use_of"),), _drops_instead),
    Mutant("an older answer replaces a newer one", ((LatestAnswer, "offer"),), _any_revision),
    Mutant("a round more than the limit", ((Rounds, "__init__"),), _one_round_more),
    Mutant("a report of another view counts", ((JobState, "trains_in"),), _with_every_view),
    Mutant("a worker does not wait for its admission", ((Fence, "is_admitted"),), _gives(True)),
    Mutant("anyone is the chief", ((lifecycle, "require_chief"),), _of_the_chief),
    Mutant("a session of an older view is used", ((worker_control, "_is_of"),), _gives(True)),
    Mutant("a member does not join again", ((MembershipClient, "_rejoin"),), _gives(None)),
    Mutant("what was tried is not passed on", ((Past, "tried"),), _forgotten),
    Mutant("the round of the view before is not recorded", ((Rounds, "begin"),), _forgets_round),
    Mutant("an update is applied again", ((Pushed, "of"),), _gives(frozenset()), ASYNC),
    Mutant("the gate is always open", ((Gate, "opens"),), _gives(True), BOUNDED),
    Mutant("steps do not end with the job's", ((WorkerControl, "stepped"),), _no_end, ASYNC),
)
FOUND_BY = {  # the first seed that does; the others were not found in 200 to 900 seeds
    "a ps does not check the fence": 51,
    "a round closes without one of its members": 0,
    "a round is applied twice": 0,
    "a lease does not end": 91,
    "a heartbeat does not renew the lease": 0,
    "variables stay at a restore": 5,
    "the loss of a member voids nothing": 3,
    "a void attempt is tried again under its number": 255,
    "a view begins with attempts that there were": 42,
    "variables are adopted though a ps was lost": 0,
    "a torn round counts as applied": 116,
    "a bucket that is not closed counts as closed": 116,
    "a contribution is sent again": 564,
    "applied updates stay in the ledger after a restore": 5,
    "a gradient of another view is pushed again": 23,
    "each contribution that was accepted counts": 30,
    "a contribution that was cut off voids nothing": 564,
    "a batch is dropped with its view": 23,
    "an update is applied again": 13,
    "the gate is always open": 25,
    "steps do not end with the job's": 0,
    "a session of an older view is used": 4,
    "a member does not join again": 3,
    "the round of the view before is not recorded": 30,
}
