"""What the chief does before a view may be used, with the pieces of the user's Scaffold.

every ps fresh                 restore the newest checkpoint, or run init_op and init_fn
every ps prepared              adopt: live variables are never rolled back
some fresh (a ps was replaced) all back to the newest checkpoint, or all anew without one
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.placement import marker_of, ps_of, variables_of
from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.recovery.recovery import Holding, decide, lost_work
from psruntime.errors import CheckpointError, JobFailedError, UsageError
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.checkpoint.listing import CheckpointList
from psruntime.graph.ops.ancestors import ancestors
from psruntime.graph.recovery.prepared_flag import PreparedFlags
from psruntime.graph.store.bucket_store import PsControl
from psruntime.graph.store.write_fence import FencedSession, WriteFence

_WRITES = ("Assign", "AssignVariableOp")  # what Savers and initialisers write by


class ScaffoldPreparation:
    """The operations of worker `index`, built in the default graph before the scaffold is finalized.

    checkpoint_dir: of the script, empty if there are no checkpoints.
    """

    def __init__(
        self,
        scaffold: Any,
        counting: StepCounting,
        checkpoint_dir: str,
        job: JobConfig,
        index: int,
        log: Callable[..., None],
    ) -> None:
        self._scaffold = scaffold
        self._counting = counting
        self._checkpoints = CheckpointList(checkpoint_dir) if checkpoint_dir else None
        self._start_over = job.start_over == "on"
        self._log = log
        with tf1.device(worker_device(index)):
            controls = [PsControl(ps, job.max_workers) for ps in range(job.ps)]
            held = [variables_of(ps) for ps in range(job.ps)]
            self._fence = WriteFence(controls, index, unnamed=True)
            self._flags = PreparedFlags(controls, marker_of(job.ps), held, self._fence)

    def guard_writes(self) -> None:
        """Puts what the scaffold restores and initialises with behind the fence, in the graph that it has finalized.

        What an init_fn writes is not behind it: it gets the session itself, which it may use as it likes.
        """
        graph = tf1.get_default_graph()
        saver = self._scaffold.saver
        restore = graph.as_graph_element(saver.saver_def.restore_op_name) if saver and saver.saver_def else None
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
            CheckpointError: the newest checkpoint cannot be found or restored.
            ReplacedError: a ps no longer admits this incarnation, so another chief is at work.
        """
        incarnation = assignment.incarnation
        holdings = self._flags.read(session)
        recovery = decide(holdings, partial=False, restore=False, same_rounds=True)
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
            self._restore(FencedSession(session, self._fence, incarnation), path)
        else:
            self._initialise(session, incarnation)
        self._require_values(session, f"checkpoint {path}" if path else "the scaffold's init_op")
        self._flags.finish(session, incarnation, recovery.ps)
        event = "restored" if path else "initialised"
        fresh = holdings.count(Holding.FRESH)
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
        try:
            self._scaffold.saver.restore(session, path)
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be restored: {_why(error)}; give another checkpoint_dir to begin anew"
            ) from error

    def _initialise(self, session: Any, incarnation: int) -> None:
        scaffold = self._scaffold
        if scaffold.init_op is not None:
            self._fence.run(session, incarnation, scaffold.init_op, scaffold.init_feed_dict)
        if scaffold.init_fn is not None:
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
    """Lets the saver of a new chief go on with the list of its predecessor, so that it deletes the oldest.

    If the list cannot be read the saver begins another, and the log says so: what lies in the folder stays there.
    """
    if saver is None or not folder:
        return
    try:
        listed = CheckpointList(folder).listed()
    except CheckpointError as error:
        log("checkpoints_forgotten", reason=error)
        return
    if listed:
        saver.recover_last_checkpoints(listed)


def _why(error: Exception) -> str:
    """What a restore failed with: the variable that lacks, if TensorFlow names one among all else."""
    lacks = re.search(r"Key \S+ not found in checkpoint", str(error))
    return lacks[0] if lacks else first_line(error)


def _names(session: Any, ready_op: Any) -> str:
    """What is not ready, by a Scaffold's ready_op: a string tensor of names."""
    if ready_op is None:
        return ""
    return ", ".join(name.decode() for name in session.run(ready_op))
