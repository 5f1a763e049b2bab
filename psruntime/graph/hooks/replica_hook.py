"""Makes replicas when they are due: on the chief, every so many global steps."""

from __future__ import annotations

from functools import partial

import tensorflow.compat.v1 as tf1

from psruntime.errors import ReplacedError
from psruntime.graph.base.errors import LOST_SESSION, Background, await_end, first_line
from psruntime.graph.base.types import Session
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.session.session import ViewHook
from psruntime.graph.session.worker_run import WorkerRun

ABANDON_S = 10.0  # for sending to end after its session was lost


class ReplicaHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Copies the variables on the ps, while this worker is the chief, between two steps, every `every_steps` global
    steps.

    A copy is sent while the next steps run.  If the next one is due before, it waits: so fewer than twice
    `every_steps` are lost with a ps.  Other workers push between two steps of the chief, and while it waits; so the
    next copy is made before a step after which it would be late, and earlier if the last one took long to send.
    """

    def __init__(self, run: WorkerRun, replicas: Replicas, view: ViewHook) -> None:
        self._graph = run.graph
        self._replicas = replicas
        self._every_steps = run.job.replicate_every
        self._is_chief = run.control_plane.is_chief
        self._view = view
        self._log = run.log
        self._made_at: int | None = None  # global step of the newest in this session
        self._seen = 0  # global step after the last step
        self._ahead = 0  # steps by which the next one is made earlier
        self._sending: Background[int] | None = None

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        self._finish(ABANDON_S)
        self._made_at = None

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        if not self._graph.is_step(run_context):
            return
        global_step = self._view.global_step
        stride, self._seen = max(1, global_step - self._seen), global_step  # of all workers, in a step of this one
        if self._sending and not self._sending.is_alive():
            assert self._made_at is not None
            took = global_step - self._made_at
            self._ahead = min(took, self._every_steps // 2) if took > 2 * stride + 1 else 0
            self._finish()
        if self._is_due(global_step + stride + self._ahead) and self._is_chief():
            self._finish()
            self._made_at = global_step
            self._begin(run_context.session)

    def _is_due(self, next_step: int) -> bool:
        return self._made_at is None or next_step > self._made_at + self._every_steps

    def end(self, session: Session) -> None:  # noqa: ARG002
        self._finish()

    def _begin(self, session: Session) -> None:
        """Copies, and starts to send.  The step is done and counted, so no error here may make MonitoredSession repeat
        it."""
        incarnation = self._view.incarnation
        try:
            self._graph.model.worker_copies.write_back(partial(self._graph.fence.run, session, incarnation))
            global_step = self._replicas.begin(session, incarnation)
        except (*LOST_SESSION, ReplacedError) as error:
            self._log("replica_failed", reason=first_line(error))  # the next step finds the session lost
            return

        def send() -> int:
            self._replicas.send(session, incarnation)
            self._replicas.finish(session, incarnation)
            return global_step

        self._sending = Background("replica", send)

    def _finish(self, within_s: float | None = None) -> None:
        """Waits until the copy is sent."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        await_end(sending, f"replica {self._made_at} to be sent", self._log, within_s)
        if sending.is_alive() or sending.result is None:
            reason = "it is still being sent, and its session is lost" if sending.is_alive() else sending.failure
            self._log("replica_failed", reason=reason)
