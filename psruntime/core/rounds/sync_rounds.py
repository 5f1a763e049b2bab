"""The coordinator's part of mode sync: takes reports, keeps the record of the rounds, warns of slow rounds.

The record is enough to repeat the training: each closed round with its parts, each void attempt, each gradient that was
too late for its round, and each start of a view with the global step of its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from psruntime.config.schedule import SYNC
from psruntime.core.members.membership import JudgedClock, Since
from psruntime.core.members.messages import Machine
from psruntime.core.members.view import View, listed
from psruntime.core.rounds.past_round import PastRound, RoundPart, record_of_worker
from psruntime.core.rounds.round_messages import Applied, Computed, CutOff, Pushed, Report
from psruntime.core.rounds.rounds import NAMED, Rounds
from psruntime.core.rounds.shares import Shares

Record = dict[str, Any]  # JSON; "record" names its kind


class SyncRounds:
    """Wraps the rounds of a coordinator.  `note(name, **facts)` logs an event for operators.

    limit: the global step that ends the training.  backup_workers, shares: as in Rounds.  on_part: is called with each
    part of a closed round.
    late: gradients that came too late for their rounds, and were dropped.
    """

    def __init__(
        self,
        warn_s: float,
        note: Callable[..., None],
        clock: JudgedClock,
        limit: int | None = None,
        backup_workers: int = 0,
        shares: Shares | None = None,
        on_part: Callable[[RoundPart], None] = lambda _: None,
    ) -> None:
        self.rounds = Rounds(limit, backup_workers, shares)
        self.late = 0
        self._late_batches: dict[int, int] = {}  # incarnation -> of its last of them, to know a repeat
        self._warn_s = warn_s
        self._note = note
        self._on_part = on_part
        self._waits: Since[tuple[bool, int]] = Since(clock)  # what is waited for: whether a round is open, its attempt
        self._warned = False  # of it
        self._records: list[Record] = []
        # Incarnation -> machine and began_at, of a live ps, or a worker whose record is not made yet.
        self.processes: dict[int, tuple[Machine | None, int]] = {}

    def admit(self, incarnation: int, machine: Machine | None, began_at: int = 0) -> None:
        """A member is admitted.  machine, began_at: as in Join."""
        if machine or began_at:
            self.processes[incarnation] = machine, began_at

    def prepared(self, view: View, mode: str, global_step: int, attempt: int, of_rounds: Mapping[str, Any]) -> None:
        """A view is prepared; in mode sync, its rounds start.  `attempt`: the highest that its ps have seen.

        of_rounds: as of JobConfig.
        """
        if mode == SYNC:
            self._record_round(self.rounds.begin(global_step, attempt))  # only the report that it is applied was lost
        if mode == SYNC or self.rounds.attempt:  # else there are no rounds that it could undo
            facts: Record = {"view": view.number, "mode": mode, "global_step": global_step}
            known = [(ps.index, self.processes.get(ps.incarnation, (None, 0))[0]) for ps in view.ps]
            if ps := [{"ps": index, **vars(machine)} for index, machine in known if machine]:
                facts["ps"] = ps
            self._records.append({"record": "prepared", **facts, **of_rounds})

    def take(self, incarnation: int, index: int, report: Report | None, starved_since: int | None = None) -> None:
        """Takes a worker's report since its last action.

        starved_since: as in Rounds.set_starved.
        """
        self.rounds.enter(incarnation, index)
        if isinstance(report, Computed):
            self._record_round(self.rounds.computed(incarnation, index, report))
            self._record_late()
        elif isinstance(report, Pushed):
            self._record_round(self.rounds.contribute(incarnation, report))
        elif isinstance(report, Applied):
            self._record_round(self.rounds.close(report))
        elif isinstance(report, CutOff):
            self._record_void("cut_off", index, lambda: self.rounds.cut_off(incarnation, report))
        self._record_void("starved", index, lambda: self.rounds.set_starved(incarnation, starved_since))

    def lose(self, incarnation: int, index: int) -> None:
        """A worker is gone."""
        self._record_void("lost", index, lambda: self.rounds.lose(incarnation))
        self._late_batches.pop(incarnation, None)
        self.processes.pop(incarnation, None)

    def update(self, live: Callable[[], list[int]], needed: int, chief: int | None) -> None:
        """Opens the next round if possible; warns, once, of a round that waits for more than `warn_s` seconds.

        The first round of a view needs `needed` workers with a session, a local one, which is long, all of them; both
        open with fewer after `warn_s`.  `live` has the indices of all.
        """
        rounds = self.rounds
        needed = len(live()) if rounds.local_end else needed
        rounds.open_next(needed if self.waited_s <= self._warn_s else 1)
        self._record_late()
        self._note_shares()
        waits = (rounds.open, rounds.attempt)
        none_is_late = not rounds.active or rounds.is_wanted_closed or rounds.all_train_alone
        if waits != self._waits.what or none_is_late:
            self._waits.begin(waits)
            self._warned = False
        if self.waited_s > self._warn_s and not self._warned:
            self._warned = True
            reason = self.waits_for(live(), chief)
            self._note("slow_round", attempt=rounds.attempt, waited_s=round(self.waited_s, 1), reason=reason)

    def waits_for(self, live: Collection[int], chief: int | None) -> str:
        """The workers that the round waits for, also before it opens; for people."""
        text = self.rounds.waits_for(chief)
        absent = self.rounds.absent(live)
        return text if self.rounds.open or not absent else f"{text}; without one: worker {listed(absent[:NAMED])}"

    @property
    def waited_s(self) -> float:
        """Seconds of judged time since the round began to wait for the same workers; 0 while no rounds run."""
        return self._waits.for_s if self.rounds.active else 0.0

    def take_records(self) -> list[Record]:
        """The records since the last call."""
        records, self._records = self._records, []
        return records

    def _record_void(self, why: str, index: int, takes_out: Callable[[], list[int]]) -> None:
        """Takes a worker, or its contribution, out of the open round, which may make its attempt void."""
        number, attempt = self.rounds.round, self.rounds.attempt
        voided = takes_out()
        self._record_late()
        if self.rounds.attempt != attempt:
            self._note("void", round=number, attempt=attempt, **{why: f"worker {index}"})
            self._records.append({"record": "void", "round": number, "attempt": attempt, why: index, "voided": voided})

    def _record_late(self) -> None:
        for incarnation, index, computed in self.rounds.take_late():
            if self._late_batches.get(incarnation) != computed.batch:
                self._late_batches[incarnation] = computed.batch
                self.late += 1
                facts = {"round": computed.round, "worker": index, "batch": computed.batch}
                self._records.append({"record": "late", **facts, "examples": computed.examples})

    def _record_round(self, past: PastRound | None) -> None:
        if past is None:
            return
        for part in past.parts:
            if process := self.processes.pop(part.incarnation, None):
                self._records.append(record_of_worker(part, *process))
        self._records.append(past.record)
        for part in past.parts:
            self._on_part(part)

    def _note_shares(self) -> None:
        """Where rounds have them, and they have changed."""
        shares = self.rounds.shares.take_news() if self.rounds.shares else None
        if shares is not None:
            each = ", ".join(f"worker {index}: {share}" for index, share in shares.items())
            some = f"{min(shares.values())} to {max(shares.values())}, {len(shares)} workers"
            self._note("shares", round=self.rounds.round, examples=each if len(shares) <= NAMED else some)
