"""Prepares a view before it may be used: the chief initialises, restores or adopts its variables.

core/recovery/recovery.py decides which.  A ps is prepared when its prepared flag is the marker of the plan, which is
written last.

In mode sync live variables are adopted only if all buckets have applied the same rounds: the view may have ended while
one was being applied.  They are sealed first, so that no operation of an earlier view's session can still close a
round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.accounting.saved_state import SavedState
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.members.view import listed
from psruntime.core.recovery.recovery import Contents, Recovery, decide, lost_work, obstacle
from psruntime.core.rounds.contribution import SectionState, hold_same_rounds
from psruntime.core.shards.shard_messages import START, Position
from psruntime.errors import (
    CannotPrepareError,
    CheckpointError,
    DamagedCheckpointError,
    FolderOwnedError,
    JobFailedError,
)
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Feed, Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import initialise
from psruntime.graph.buckets.apply import RowFlags
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP
from psruntime.graph.checkpoint.checkpoints import Checkpoints, Transferred
from psruntime.graph.checkpoint.listing import step_of
from psruntime.graph.push.round_sum import SectionRounds
from psruntime.graph.recovery.initial_values import InitialValues
from psruntime.graph.recovery.ps_values import PreparedFlags, RestoredCounters, Unreported
from psruntime.graph.recovery.replicas import Replica, Replicas
from psruntime.graph.recovery.warm_start import PretrainedValues, WarmStart
from psruntime.graph.step.train_graph import TrainGraph

AGAIN_S = 2.0  # until a checkpoint that could not be read is read once more


@dataclass
class _Tries:
    """The tries of one preparation so far: after a damaged checkpoint there is another one.

    damaged: checkpoints that could not be read.  skipped: those of them that the next try skips.
    first_error: why the first try, of the newest checkpoint, failed.  found: the contents of the ps before the first
    try, for the log.
    """

    damaged: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    first_error: CheckpointError | None = None
    found: dict[str, object] = field(default_factory=dict)


class Preparation:
    """The operations of worker `index` as the chief, in the training graph.

    With on_ps_loss "partial" the variables of live ps stay as they are when others are lost; never in mode sync.
    sharded: whether the input is read by data shards.  Whenever variables are restored or initialised, the shards go
    back to the position of the newest checkpoint, or to the start; also after an earlier try that was not reported.
    warm_start: values of variables instead of their initial ones.
    """

    def __init__(
        self,
        graph: TrainGraph,
        checkpoints: Checkpoints,
        replicas: Replicas | None,
        index: int,
        job: JobConfig,
        log: Callable[..., None],
        sharded: bool = False,
        warm_start: WarmStart | None = None,
    ) -> None:
        self._graph = graph
        self._warm_start = warm_start
        self._checkpoints = checkpoints
        self._replicas = replicas
        self._partial = job.on_ps_loss == "partial" and graph.rounds is None
        self._start_over = job.may_start_over
        self._log = log
        self._fence = graph.fence
        self._empty = graph.empty_ps
        every_ps = range(graph.plan.num_ps)
        with graph.graph.as_default(), tf1.device(worker_device(index)):
            variables = [_variables_on(graph, ps) for ps in every_ps]
            self._flags = PreparedFlags(graph.controls, graph.plan.marker, variables, graph.fence)
            self._counters = RestoredCounters(graph)
            self._round_states = [[r.state.read_value() for r in _rounds_on(graph, ps)] for ps in every_ps]
            self._unreported = Unreported(graph.fence) if sharded else None  # in a job with data shards
            self._attempt = tf1.placeholder(tf1.int64, [], name="attempt")
            nothing_pending = tf1.stack([self._attempt, 0, self._attempt, self._attempt])
            self._new_counters: list[list[Op]] = []
            self._seal, self._no_round = [], []
            # Of each ps: whether it has rounds, which a ps that joined while the job trained in another mode has not,
            # and the operations that make them.
            self._has_rounds: list[Tensor] = []
            self._new_sums: list[list[Op]] = []
            self._forget: list[list[Op]] = []  # which rows were touched since a checkpoint, on each ps
            for ps in every_ps:
                new = [*_counters_on(graph, ps), *(replicas.notes_on(ps) if replicas else [])]
                new += [self._unreported.variable] if self._unreported and ps == 0 else []
                self._new_counters.append([initialise(v) for v in new])
                no_round = [r.state.assign(nothing_pending, read_value=False) for r in _rounds_on(graph, ps)]
                graph.fence.guard(ps, self._new_counters[ps])
                rounds = _rounds_on(graph, ps)
                self._has_rounds.append(_are_initialised([r.state for r in rounds]))
                self._new_sums.append([initialise(v) for r in rounds for v in r.variables if v is not r.state])
                graph.fence.guard(ps, self._new_sums[ps])
                graph.fence.guard(ps, no_round)
                self._no_round += no_round
                self._forget.append([flags.forget() for flags in _row_flags_on(graph, ps)])
                graph.fence.guard(ps, self._forget[ps])
                self._seal += [r.seal(partial(graph.fence.inside, ps)) for r in _rounds_on(graph, ps)]
            self._initial_values = InitialValues(graph, index)
            for ps, write in graph.model.worker_copies.writes:
                graph.fence.guard(ps, [write])

    @property
    def flags(self) -> list[Tensor]:
        """The flag of each ps, int64 [], which `require` reads."""
        return self._flags.flags

    def warm_up(self, session: Session) -> None:
        """Makes a session ready to adopt the variables on the ps, and changes nothing."""
        for read in (self._flags.flags, self._has_rounds, self._graph.read_step):
            session.run(read)
        with suppress(tf1.errors.FailedPreconditionError):  # there are no rounds yet
            session.run(self._round_states)
        for written in (self._new_sums, self._no_round, self._flags.sizes):
            self._fence.warm_up(session, written, {self._attempt: 0})

    def run(self, session: Session, assignment: Assignment) -> Prepared:
        """Prepares the view of `session`.

        Raises:
            JobFailedError: a ps has the variables of another plan, or trained variables are lost.
            CheckpointError: the folder cannot be written, or its checkpoint does not fit, or none can be read; and
                nothing has been trained yet.
            CannotPrepareError: the same in a job that has trained, or this worker does not see the newest checkpoint.
            ReplacedError: a ps no longer admits this incarnation, so there is another chief.
        """
        tries = _Tries()
        while True:
            try:
                return self._prepare(session, assignment, tries)
            except CheckpointError as error:
                self._fence.require_admitted(session, assignment.incarnation)  # another chief may be why it failed
                if isinstance(error, FolderOwnedError):
                    raise
                tries.first_error = tries.first_error or error
                if isinstance(error, DamagedCheckpointError) and self._tries_again(error, tries):
                    continue
                if assignment.seen_step > 0:
                    raise CannotPrepareError(str(tries.first_error)) from None
                raise tries.first_error from None

    def _prepare(self, session: Session, assignment: Assignment, tries: _Tries) -> Prepared:
        def write(fetches: Any, feed: Feed | None = None) -> None:
            self._fence.run(session, assignment.incarnation, fetches, feed)

        try:
            self._checkpoints.check_folder()
        except CheckpointError:
            if assignment.seen_step == 0:
                raise
            # A job that has trained continues with what it can read; the next checkpoint reports what is wrong.
        self._claim_folder(session, assignment)
        contents = self._flags.read(session)
        write([self._new_counters[ps] for ps, content in enumerate(contents) if content is Contents.FRESH])
        self._begin_rounds(session, assignment, write)
        write(self._seal)
        attempt = self._last_attempt(session)
        same_rounds = self._same_rounds(session)
        recovery = decide(contents, self._partial, assignment.restore, same_rounds, self._empty)
        empty = {ps for ps in self._empty if contents[ps] is not Contents.PREPARED}
        if not recovery.ps:
            if empty:
                self._flags.finish(session, assignment.incarnation, empty)
            is_left = self._unreported is not None and self._unreported.is_left(session)
            position = self._position(None) if is_left else None
            saved_step = self._saved_step(assignment)
            return Prepared(self._report("adopted", session), attempt, saved_step=saved_step, position=position)
        live_step = int(session.run(self._graph.read_step)) if contents[GLOBAL_STEP.ps] is Contents.PREPARED else 0
        replica = self._newer_replica(session, contents, self._saved_step(assignment) or 0)
        path = None if replica else self._checkpoints.latest()
        if replica:
            recovery, state = Recovery(replica.ps | empty, recovery.reason), replica.state
        else:
            if not self._start_over:
                self._require_source(path, assignment, recovery, tries)
            state = self._checkpoints.state(path) if path else SavedState(0)
            if path and (unlike := self._checkpoints.is_unlike(state)):
                self._log("model_differs", checkpoint=path, reason=unlike)
        # Before anything is changed: it may be gone.
        warm_values = self._warm_start.open(self._graph) if self._warm_start and not (replica or path) else None
        fresh = {ps for ps in recovery.ps if contents[ps] is Contents.FRESH}
        tries.found = tries.found or {"fresh_ps": len(fresh), "reason": recovery.reason}
        # Before they are marked as begun: they are fresh until then, and this is done again.
        self._counters.restore(write, fresh, state)
        if self._unreported:
            self._unreported.begin(session, assignment.incarnation, assignment.view.number)
        self._flags.begin(session, assignment.incarnation, recovery.ps)
        self._counters.roll_back(write, recovery.ps - fresh, state)
        write([*self._no_round, *(self._forget[ps] for ps in recovery.ps)], {self._attempt: attempt})
        source: dict[str, object]
        if replica:
            write(replica.restore)
            event, source = "restored", {"replica": state.global_step}
        elif path:
            moved = self._checkpoints.restore(session, path, state.global_step, recovery.ps, assignment.incarnation)
            event, source = "restored", _facts(moved)
        else:
            self._initial_values.assign(
                write, recovery.ps, partial(self._read_pretrained, session, recovery.ps, assignment.incarnation)
            )
            if warm_values:
                self._log("warm_started", **warm_values.assign(session, recovery.ps, assignment.incarnation))
            self._fence.require_admitted(session, assignment.incarnation)
            event, source = "initialised", _facts(self._checkpoints.save(session))
        if GLOBAL_STEP.ps in recovery.ps:
            self._graph.model.worker_copies.restored(write)
        if self._replicas and not replica:
            self._replicas.forget(session, assignment.incarnation)
        self._flags.finish(session, assignment.incarnation, recovery.ps)
        some = {} if len(recovery.ps) == self._graph.plan.num_ps else {"only_ps": listed(sorted(recovery.ps))}
        global_step = self._report(event, session, **source, **some, **tries.found)
        saved_step = self._saved_step(assignment)
        newest_step = self._checkpoints.newest_step() if path else None
        if tries.skipped or (newest_step and state.global_step < newest_step):  # by its name, it is damaged
            saved_step = state.global_step if path else saved_step
        trained = max([live_step, _trained(tries.skipped, assignment.seen_step)])
        steps_lost = max(0, trained - state.global_step)
        return Prepared(global_step, attempt, steps_lost, saved_step, self._position(path))

    def _read_pretrained(
        self, session: Session, every_ps: Collection[int], incarnation: int, values: PretrainedValues
    ) -> None:
        for facts in values.assign(session, every_ps, incarnation):
            self._log("pretrained", **facts)

    def _claim_folder(self, session: Session, assignment: Assignment) -> None:
        """Raises FolderOwnedError if the folder of the checkpoints is a live job's.

        A folder without the newest checkpoint is not the job's, but another one at the same path: it gets no mark.
        """
        owner = self._checkpoints.owner
        if owner is None or self._is_elsewhere(assignment):
            return
        owner.claim(
            [ps.address for ps in assignment.view.ps],
            lambda: self._fence.require_admitted(session, assignment.incarnation),
            begins=assignment.seen_step == 0,
        )

    def _begin_rounds(self, session: Session, assignment: Assignment, write: Callable[..., None]) -> None:
        """If a ps has no rounds yet, starts those of all ps at the highest attempt; the state, which marks that a ps
        has rounds, is written last."""
        has = [bool(each) for each in session.run(self._has_rounds)]
        absent = [ps for ps, each in enumerate(has) if not each]
        if absent:
            last_attempt = self._last_attempt(session, absent)
            write([self._new_sums[ps] for ps in absent])
            write(self._no_round, {self._attempt: last_attempt})
            self._flags.measure(session, assignment.incarnation, absent)

    def _position(self, path: str | None) -> Position | None:
        """The position of the variables in the data shards.  path: of the checkpoint that they are from, if any."""
        if not self._unreported:
            return None
        try:
            path = path or self._checkpoints.latest()
            return (self._checkpoints.state(path).position if path else None) or START
        except CheckpointError:  # of the newest, where a replica was taken instead
            return START

    def _saved_step(self, assignment: Assignment) -> int | None:
        """The step of the newest checkpoint that may be restored; the latest known, if this process cannot see it."""
        if self._is_elsewhere(assignment):
            return assignment.saved_step
        try:
            latest = self._checkpoints.latest()
        except CheckpointError:
            return assignment.saved_step
        return step_of(latest) if latest else None

    def _is_elsewhere(self, assignment: Assignment) -> bool:
        """Whether the job has a newer checkpoint than this process sees in the folder, and does not start over."""
        why = obstacle(self._checkpoints.newest_step(), assignment.saved_step, self._checkpoints.folder)
        return bool(why) and not self._start_over

    def _require_source(self, path: str | None, assignment: Assignment, recovery: Recovery, tries: _Tries) -> None:
        """Raises if a job that has trained would continue without its newest checkpoint.

        Raises:
            CannotPrepareError: the newest checkpoint is not here.
            JobFailedError: there is none.
        """
        found, folder = self._checkpoints.newest_step(), self._checkpoints.folder
        if reason := obstacle(found, assignment.saved_step, folder):
            cut_off = [each for each in self._checkpoints.cut_off() if step_of(each) == assignment.saved_step]
            if not cut_off:
                raise CannotPrepareError(reason)
            if tries.skipped.isdisjoint(cut_off):
                self._log("checkpoint_damaged", path=cut_off[0], reason="it has no index", instead=path)
            tries.skipped.update(cut_off)
        if path is None and assignment.seen_step > 0:
            raise JobFailedError(
                lost_work(assignment.seen_step, recovery.reason, "--checkpoint-dir or --replicate-every")
            )

    def _tries_again(self, error: DamagedCheckpointError, tries: _Tries) -> bool:
        """Whether there is another try, of the newest checkpoint or of an older one instead."""
        path = self._checkpoints.latest()
        if path is None:
            return False
        if path not in tries.damaged:
            tries.damaged.add(path)
            self._log("checkpoint_damaged", path=path, reason=error, instead="the same, once more")
            time.sleep(AGAIN_S)
            return True
        older = self._checkpoints.skip(path)
        if older:
            tries.skipped.add(path)
            self._log("checkpoint_damaged", path=path, reason=error, instead=older)
        return older is not None

    def require(self, session: Session, assignment: Assignment) -> None:
        """Raises UnavailableError unless every ps of the session is prepared."""
        self._flags.require(session)
        if self._unreported:
            self._unreported.end(session, assignment.view.number)

    def _same_rounds(self, session: Session) -> bool:
        """Whether no round was cut off while it was applied."""
        return hold_same_rounds(self._states(session))

    def _states(self, session: Session, absent: Collection[int] = ()) -> list[SectionState]:
        """Of all sections but those of these ps."""
        found = session.run([states for ps, states in enumerate(self._round_states) if ps not in absent])
        return [SectionState(*state.tolist()) for of_ps in found for state in of_ps]

    def _last_attempt(self, session: Session, absent: Collection[int] = ()) -> int:
        return max((bucket.attempt for bucket in self._states(session, absent)), default=0)

    def _newer_replica(self, session: Session, contents: list[Contents], saved_step: int) -> Replica | None:
        """The replica to restore the lost ps from, if it is not older than the checkpoint of this step."""
        if self._replicas is None:
            return None
        lost = {ps for ps, content in enumerate(contents) if content is not Contents.PREPARED}
        fresh = {ps for ps, content in enumerate(contents) if content is Contents.FRESH}
        replica = self._replicas.newest(session, lost - self._empty, fresh)
        newer = replica and replica.is_whole and replica.state.global_step >= saved_step
        return replica if newer else None

    def _report(self, event: str, session: Session, **facts: object) -> int:
        global_step = int(session.run(self._graph.read_step))
        self._log(event, global_step=global_step, **facts)
        return global_step


def _trained(skipped: Collection[str], seen_step: int) -> int:
    """Global step until which the job had trained, by its damaged checkpoints.

    seen_step: the highest that was seen; a damaged one of a higher step is from before the job was started again, and
    its loss was counted then.
    """
    step = max((step_of(path) or 0 for path in skipped), default=0)
    return min(step, seen_step) if seen_step else step


def _facts(moved: Transferred | None) -> dict[str, object]:
    return {"checkpoint": moved.path, "sharded": moved.sharded} if moved else {"checkpoint": None}


def _are_initialised(variables: list[Variable]) -> Tensor:
    """Whether all are, bool []."""
    return tf1.reduce_all([tf1.raw_ops.VarIsInitializedOp(resource=variable.handle) for variable in variables] or True)


def _rounds_on(graph: TrainGraph, ps: int) -> list[SectionRounds]:
    sections = graph.rounds.sections if graph.rounds else []
    return [rounds for rounds in sections if rounds.section.ps == ps]


def _counters_on(graph: TrainGraph, ps: int) -> list[Variable]:
    """The counters of updates and restores on a ps, and the sums of rounds."""
    counters = [v for s in graph.sections_on(ps) for v in s.counters] + _changes_on(graph, ps)
    counters += [graph.model.ps_copies.stamp] if ps == 0 else []
    id_rows = graph.model.id_rows
    counters += [id_rows[s.bucket.name].clock for s in graph.stores_on(ps) if s.bucket.name in id_rows]
    return counters + [v for r in _rounds_on(graph, ps) for v in r.variables]


def _changes_on(graph: TrainGraph, ps: int) -> list[Variable]:
    """The variables of the last changes of its buckets; once initialised they have none."""
    changes = [v for log in graph.model.logs.values() if log.store.bucket.ps == ps for v in log.variables]
    return changes + [v for flags in _row_flags_on(graph, ps) for v in flags.variables]


def _row_flags_on(graph: TrainGraph, ps: int) -> list[RowFlags]:
    names = [store.bucket.name for store in graph.stores_on(ps)]
    return [flags for name in names for flags in graph.row_flags.get(name, ())]


def _variables_on(graph: TrainGraph, ps: int) -> list[Variable]:
    """All variables of a ps but its PsControl: masters, the optimizers' own, counters, dense sums of rounds."""
    variables = [v for store in graph.stores_on(ps) for v in graph.values_of(store)]
    variables += [v for section in graph.sections_on(ps) for v in section.counters]
    variables += _changes_on(graph, ps)
    variables += [v for r in _rounds_on(graph, ps) for v in r.variables]
    return variables + [graph.model.ps_copies.variables[copy.name] for copy in graph.plan.copies if copy.ps == ps]
