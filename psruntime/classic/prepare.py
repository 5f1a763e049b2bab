"""The sessions of a script on each view, and what the chief does before a view may be used.

What the chief does before a view may be used, with the pieces of the user's Scaffold.

every ps fresh                 restore the newest checkpoint, or run init_op and init_fn
every ps prepared              adopt: live variables are never rolled back
some fresh (a ps was replaced) all back to the newest checkpoint, or all anew without one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import list_by_name
from psruntime.classic.counting import StepCounting
from psruntime.classic.identity import unlike
from psruntime.classic.member import OwnedFolders
from psruntime.classic.placement import marker_of, outside_scopes, place_rest, ps_of, variables_of
from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.plan.identity import ModelIdentity, in_a_line
from psruntime.core.recovery.checkpoint_names import Entry, find_sources
from psruntime.core.recovery.recovery import Contents, decide, lost_work
from psruntime.errors import CheckpointError, JobFailedError, UsageError
from psruntime.faults import Place, blame
from psruntime.graph.base.checkpoint_reader import contents_of, is_pattern, readable
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import worker_device
from psruntime.graph.buckets.bucket_store import ChiefFence, FencedSession, PsControl
from psruntime.graph.checkpoint.checkpoints import failing
from psruntime.graph.checkpoint.listing import CheckpointList
from psruntime.graph.recovery.ps_values import PreparedFlags
from psruntime.graph.session.session import ViewSessionCreator

_WRITES = ("Assign", "AssignVariableOp")  # what Savers and initialisers write by


class ScaffoldPreparation:
    """The operations of worker `index`, built in the default graph before the scaffold is finalized.

    checkpoint_dir: of the script, empty if there are no checkpoints.  folders: that it saves in.
    identity: of the script.
    """

    def __init__(
        self,
        scaffold: Any,
        counting: StepCounting,
        checkpoint_dir: str,
        job: JobConfig,
        index: int,
        log: Callable[..., None],
        folders: OwnedFolders,
        identity: ModelIdentity,
    ) -> None:
        self._scaffold = scaffold
        self._folders = folders
        self._identity = identity
        self._entries: list[Entry] = []
        self._counting = counting
        self._checkpoints = CheckpointList(checkpoint_dir) if checkpoint_dir else None
        self._start_over = job.may_start_over
        self._log = log
        with tf1.device(worker_device(index)):
            controls = [PsControl(ps, job.max_workers) for ps in range(job.ps)]
            held = [variables_of(ps) for ps in range(job.ps)]
            self._fence = ChiefFence(controls, index, unnamed=True)
            self._flags = PreparedFlags(controls, marker_of(job.ps), held, self._fence)

    def guard_writes(self) -> None:
        """Puts what the scaffold restores and initialises with behind the fence, in the graph that it has finalized.

        What an init_fn writes is not behind it: it gets the session itself, which it may use as it likes.
        """
        graph = tf1.get_default_graph()
        saver = self._scaffold.saver
        restore = graph.as_graph_element(saver.saver_def.restore_op_name) if saver and saver.saver_def else None
        self._entries = list(dict.fromkeys(_entries(restore))) if restore is not None else []
        roots = [each for each in (restore, self._scaffold.init_op) if each is not None]
        writes: dict[int, list[Any]] = {}
        for operation in ancestors(tf1.nest.flatten(roots)):
            ps = ps_of(operation)
            if operation.type in _WRITES and ps is not None:
                writes.setdefault(ps, []).append(operation)
        graph._unsafe_unfinalize()
        for ps, operations in writes.items():
            for operation in operations:
                self._fence.guard(ps, [operation])
        graph.finalize()

    def run(self, session: Any, assignment: Assignment) -> Prepared:
        """Prepares the view of `session`.

        Raises:
            JobFailedError: a ps holds other variables, or some have no value after all.
            FolderOwnedError: a folder is a live job's.
            CheckpointError: a folder cannot be marked in a job that has yet to begin, or the newest checkpoint cannot
                be found or restored.
            UserCodeError: the scaffold's init_fn failed.
            ReplacedError: a ps no longer admits this incarnation, so another chief is at work.
        """
        incarnation = assignment.incarnation
        self._folders.claim(assignment, lambda: self._fence.require_admitted(session, incarnation))
        found = self._flags.read(session)
        recovery = decide(found, partial=False, restore=False, same_rounds=True)
        if not recovery.ps:
            return self._report("adopted", session)
        self._flags.begin(session, incarnation, recovery.ps)
        path = self._checkpoints.newest() if self._checkpoints else None
        if self._checkpoints and path:
            self._checkpoints.require(path)
            self._require_no_delta(self._checkpoints, path)
        if path is None and assignment.seen_step > 0 and not self._start_over:
            raise JobFailedError(lost_work(assignment.seen_step, recovery.reason, "a checkpoint_dir"))
        if path:
            if difference := unlike(self._identity, path):
                self._log("model_differs", checkpoint=path, reason=difference)
            self._restore(FencedSession(session, self._fence, incarnation), path)
        else:
            self._initialise(session, incarnation)
        self._require_values(session, f"checkpoint {path}" if path else "the scaffold's init_op")
        self._flags.finish(session, incarnation, recovery.ps)
        event = "restored" if path else "initialised"
        fresh = found.count(Contents.FRESH)
        return self._report(event, session, checkpoint=path, fresh_ps=fresh, reason=recovery.reason)

    def _require_no_delta(self, checkpoints: CheckpointList, path: str) -> None:
        delta = checkpoints.delta_of(path)
        if delta and not self._start_over:
            raise CheckpointError(
                f"{delta} is newer than checkpoint {path}, and a script's saver cannot restore a delta; write the "
                "model as a psruntime.ModelSpec, or give --start-over on to go on from the older one"
            )

    def require(self, session: Any, assignment: Assignment | None = None) -> None:  # noqa: ARG002
        """UnavailableError unless every ps of the session is prepared."""
        self._flags.require(session)

    def initialise(self, session: Any) -> None:
        """Runs the scaffold's local_init_op and looks whether all is ready.

        Raises:
            UsageError: it is not; the message names what lacks.
        """
        scaffold = self._scaffold
        if scaffold.local_init_op is not None:
            session.run(scaffold.local_init_op, feed_dict=scaffold.local_init_feed_dict)
        missing = _names(session, scaffold.ready_op)
        if missing:
            raise UsageError(f"the scaffold's local_init_op leaves {missing} without a value")

    def _restore(self, session: Any, path: str) -> None:
        with failing(f"checkpoint {path} cannot be restored", "; bring its files back, or give another checkpoint_dir"):
            _, misfits = find_sources(self._entries, contents_of(path))
            if misfits:
                raise CheckpointError(
                    f"checkpoint {path} does not fit the script: {in_a_line(iter(misfits))}; "
                    "start the script that it was written with, or give another checkpoint_dir"
                )
            self._scaffold.saver.restore(session, readable(path))

    def _initialise(self, session: Any, incarnation: int) -> None:
        scaffold = self._scaffold
        if scaffold.init_op is not None:
            self._fence.run(session, incarnation, scaffold.init_op, scaffold.init_feed_dict)
        if scaffold.init_fn is not None:
            with blame("the scaffold's init_fn", (*LOST_SESSION, SystemExit), Place.INITIAL):
                scaffold.init_fn(session)

    def _require_values(self, session: Any, source: str) -> None:
        missing = _names(session, self._scaffold.ready_for_local_init_op)
        if missing:
            raise JobFailedError(f"{source} leaves {missing} without a value")

    def _report(self, event: str, session: Any, **facts: object) -> Prepared:
        global_step = int(session.run(self._counting.global_step))
        self._log(event, global_step=global_step, **facts)
        return Prepared(global_step)


def remember_checkpoints(saver: Any, folder: str, log: Callable[..., None]) -> None:
    """Lets the saver of a new chief continue the list of its predecessor, so that it deletes the oldest.

    If the list cannot be read the saver begins another, and the log says so: what lies in the folder stays there.
    """
    if saver is None or not folder:
        return
    try:
        listed = CheckpointList(folder).listed()
    except CheckpointError as error:
        log("checkpoints_forgotten", reason=error)
        return
    if is_pattern(folder):
        list_by_name(saver)
    if listed:
        saver.recover_last_checkpoints([readable(path) for path in listed])


def _entries(restore: Any) -> Iterator[Entry]:
    """What an operation restores variables from.

    restore: of a Saver.  A variable that is not restored as it is in the checkpoint, but in another shape for example,
    or whose shape is not known, is left out.
    """
    for op in ancestors([restore]):
        if op.type != "RestoreV2":
            continue
        names, slices = (tf1.get_static_value(op.inputs[number]) for number in (1, 2))
        if names is None or slices is None:
            continue
        for name, part, value in zip(names, slices, op.outputs, strict=True):
            if variable := _restored(value):
                shape = variable.get_attr("shape")
                whole = [int(size) for size in part.decode().split(" ")[:-1]]  # before the slice of a part
                if whole or not (shape.unknown_rank or any(dim.size < 0 for dim in shape.dim)):
                    sizes = whole or [dim.size for dim in shape.dim]
                    yield Entry(name.decode(), tuple(sizes), value.dtype.base_dtype.name)


def _restored(value: Any) -> Any:
    """The operation of the variable that is assigned this value; None: it is changed before, or belongs to no
    variable."""
    for op in value.consumers():
        if op.type in _WRITES:
            return op.inputs[0].op
        if op.type == "Identity":
            return _restored(op.outputs[0])
    return None


def _names(session: Any, ready_op: Any) -> str:
    """What is not ready, by a Scaffold's ready_op: a string tensor of names."""
    if ready_op is None:
        return ""
    return ", ".join(name.decode() for name in session.run(ready_op))


class ScriptSessions(tf1.train.SessionCreator):  # type: ignore[misc]
    """Makes the sessions of a MonitoredSession.

    make: called once, after every hook's `begin` and before the graph is finalized; it may add to the graph, and
    gives the preparation and the creator of the sessions themselves.  patience: surrounds each wait for a session.
    """

    def __init__(
        self,
        scaffold: Any,
        index: int,
        make: Callable[[], tuple[ScaffoldPreparation, ViewSessionCreator]],
        patience: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.session: Any = None  # the newest one
        self._scaffold = scaffold
        self._index = index
        self._make = make
        self._patience = patience
        self._views: ViewSessionCreator | None = None

    @property
    def assignment(self) -> Assignment:
        """The assignment of the newest session."""
        assert self._views is not None
        return self._views.assignment

    def create_session(self) -> Any:
        if self._views is None:
            with outside_scopes():
                preparation, self._views = self._make()
                _add_saver(self._scaffold)
                self._scaffold.finalize()
                preparation.guard_writes()
            place_rest(tf1.get_default_graph(), self._index)
        with self._patience():
            self.session = self._views.create_session()
        return self.session

    def renew(self) -> None:
        """Closes the newest session and opens one on the view of now, with no hook in it."""
        self.session.close()
        self.create_session()


def _add_saver(scaffold: Any) -> None:
    """Stock's default saver writes on the ps; ours on the worker, which need not share a disk with them."""
    if scaffold.saver is None and not tf1.get_collection(tf1.GraphKeys.SAVERS):
        tf1.add_to_collection(tf1.GraphKeys.SAVERS, tf1.train.Saver(allow_empty=True))
