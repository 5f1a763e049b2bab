"""A script's membership of the job: its signals, and the folders that it owns.

SIGTERM in a script.  Without a handler of its own it would end between two updates, or, as the first process of a
container, not at all.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig
from psruntime.config.schedule import SYNC
from psruntime.config.values import whole_path
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Assignment, Instructions, LeaveKind, WorkerStats
from psruntime.core.members.view import Phase, over_error
from psruntime.core.plan.identity import ModelIdentity
from psruntime.errors import JobDoneError, JobFailedError, JobOverError, PsRuntimeError, StopRequested, UsageError
from psruntime.graph.base import environment
from psruntime.graph.base.server import start_server
from psruntime.graph.checkpoint.listing import is_remote
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.session.session import WorkerServer
from psruntime.network.connections import WorkerLinks
from psruntime.network.hosts import await_names
from psruntime.network.interfaces import interface_for
from psruntime.observe.log import Log, first_line_of
from psruntime.observe.meter import TrafficMeter
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import Registration, fetch_job
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.server.rpc_server import serve_health
from psruntime.rpc.wire.security import Security
from psruntime.rpc.worker.worker_control import WorkerControl
from psruntime.rpc.worker.worker_membership import worker_membership

_cause = 128 + signal.SIGTERM  # the exit code of a script that SIGTERM ends


def code_of_sigterm() -> int:
    """The exit code of a script that SIGTERM ends: that of the cause, if it came from `end_script_because_of`."""
    return _cause


def end_script_because_of(cause: int) -> None:
    """Ends the script as a SIGTERM does, with this exit code: what it needs to continue has ended."""
    global _cause
    _cause = cause
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # it is no member yet, and would end by the signal
        with suppress(OSError, ValueError):  # its reader may be gone
            sys.stdout.flush()
        os._exit(cause)
    os.kill(os.getpid(), signal.SIGTERM)


def take_sigterm(asked: threading.Event) -> Callable[[], None]:
    """From now on the first SIGTERM sets `asked`, the second raises SystemExit.  Returns what ends that.

    Without effect where the script has a handler, and in another thread than the main one, which gets no signals.
    """

    def on_sigterm(_signum: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            raise SystemExit(code_of_sigterm())
        asked.set()  # no thread waits for it, so this takes no lock that the main thread may hold

    def replace(handler: Any, by: Any) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, by)

    replace(signal.SIG_DFL, on_sigterm)
    return lambda: replace(on_sigterm, signal.SIG_DFL)


class OwnedFolders(tf1.train.CheckpointSaverListener):  # type: ignore[misc]
    """The marks of this process in `folders`; as a listener of their hooks it lets none save in another job's.

    A folder that only TensorFlow reaches (`gs://...`) has no mark, nor has one that the script saves in without a
    CheckpointSaverHook: nothing is known of that.
    """

    def __init__(self, folders: Iterable[str], job: JobConfig, coordinator: str, log: Callable[..., None]) -> None:
        paths = dict.fromkeys(whole_path(folder) for folder in folders if folder)
        self._owners = [
            FolderOwner(path, job.job_id, coordinator, job.lease_s, log) for path in paths if not is_remote(path)
        ]

    def claim(self, assignment: Assignment, look: Callable[[], None]) -> None:
        """As FolderOwner.claim, for the view of the assignment."""
        for owner in self._owners:
            owner.claim([ps.address for ps in assignment.view.ps], look, begins=assignment.seen_step == 0)

    def keep(self, instructions: Callable[[], Instructions]) -> None:
        """As FolderOwner.keep."""
        for owner in self._owners:
            owner.keep(instructions)

    def before_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002
        for owner in self._owners:
            owner.require_now()

    def end_membership(self, is_over: bool) -> None:
        """is_over: whether the job has ended, else only this process has left it."""
        for owner in self._owners:
            owner.release() if is_over else owner.stop()


STOP_S = 0.2  # for health calls under way at the end
NAME = "MonitoredTrainingSession"
INSTEAD = "write the model as a psruntime.ModelSpec"
NOT_FOR_SCRIPTS = {  # settings of a job, and why
    "epochs": f"a script reads its own input; for epochs {INSTEAD}",
    "staleness_lr": f"a script runs its own updates; for that {INSTEAD}",
    "schedule": f"the mode of a script stays as it is; for that {INSTEAD}",
    "delta_every": f"a script's saver writes all rows; for deltas {INSTEAD}",
    "warm_start": "a script initialises its own variables; for a warm start use the scaffold's init_fn",
}


@dataclass(frozen=True)
class JoinedScript:
    """What a script has once it is a member.  folders: that it saves in."""

    server: WorkerServer
    control_plane: WorkerControl
    membership: MembershipClient
    folders: OwnedFolders


class ScriptMember:
    """First `fetch_job`, then `join`; `leave` ends the membership.

    After a SIGTERM the script ends with its step, unless it has a handler of its own.  Whatever else ends the script
    ends the membership, and who can say no goodbye is found by its lease.
    """

    def __init__(self, where: ProcessConfig, security: Security, log: Log) -> None:
        self.log = log
        self.coordinator = where.coordinator
        self._where = where
        self._security = security
        self._asked, self._stop = threading.Event(), threading.Event()
        self._at_exit = ExitStack()
        self._joined: JoinedScript | None = None
        self._has_left = False
        self.exit_code: int | None = None  # with which the script ends, once an error of psruntime ends it
        self._client = CoordinatorClient(where.coordinator, security)
        self._at_exit.callback(self._client.close)
        atexit.register(self.leave, LeaveKind.ASKED, "the script ended without closing its session")

    def fetch_job(self) -> JobConfig:
        """The job's settings.

        Raises:
            UsageError: the coordinator is not reached within `connect_timeout_s`, does not agree with this process on
                certificates or the token, or has a setting that is not for scripts.
        """
        self._security.keep_current(self.log)
        await_names(self._where, self._stop, self.log)
        job = fetch_job(self._client, {}, self._where.connect_timeout_s, self._stop, self.log, self._where.index)
        _require_for_scripts(job)
        self.log("environment", **environment.prepare())
        return job

    def join(
        self, job: JobConfig, pushes: Callable[[], int], identity: ModelIdentity, folders: OwnedFolders
    ) -> JoinedScript:
        """Starts the servers and joins the job.

        pushes: the steps done since the script started.  folders: that it saves in.

        Raises:
            UsageError: a port is taken, or the index held, or the job has another model.
            JobDoneError, JobFailedError: the job is over.
        """
        where = self._where
        host, health = serve_health(where, self._security, flag="health_port")
        self._at_exit.callback(health.stop, STOP_S)
        interface = interface_for(host, where.coordinator, where.interface)
        server, address = start_server("worker", where.index, host, where.port, interface)
        links = WorkerLinks(address, job.link_timeout_s, self.log)
        links.start()
        self._at_exit.callback(links.close)
        traffic = TrafficMeter(links.counts)

        def on_answer(answer: Answer) -> None:
            links.follow(answer.instructions)
            if answer.instructions.leave:
                self._asked.set()

        control_plane, membership = worker_membership(
            ClientContext(self._client, job, self._stop, self.log, self._asked),
            Registration(Role.WORKER, where.index, address, f"{host}:{health.port}", identity=identity),
            lambda waiting: WorkerStats(pushes=pushes(), waiting=waiting, moved=traffic.moved()),
            self._at_exit,
            on_answer=on_answer,
            on_end=lambda error: None if isinstance(error, JobOverError) else links.give_up(),
        )  # fmt: skip
        membership.start(where.connect_timeout_s)
        at = WorkerServer(where.index, server.target, address)
        self._joined = joined = JoinedScript(at, control_plane, membership, folders)
        folders.keep(lambda: membership.answer.instructions)
        health.set_serving(True)
        self._at_exit.callback(take_sigterm(self._asked))
        return joined

    @property
    def joined(self) -> JoinedScript:
        """What `join` returned."""
        assert self._joined is not None
        return self._joined

    @property
    def was_asked(self) -> bool:
        """Whether SIGTERM has come."""
        return self._asked.is_set()

    @property
    def was_stopped(self) -> PsRuntimeError | None:
        """Why the job is STOPPED, if it is."""
        instructions = self.joined.membership.answer.instructions
        return over_error(instructions.phase, instructions.reason) if instructions.phase is Phase.STOPPED else None

    @property
    def job_has_ended(self) -> bool:
        """Whether this member has heard that the job is done, or has failed; one that was stopped can continue."""
        try:
            phase = self._joined.membership.answer.instructions.phase if self._joined else Phase.FORMING
        except PsRuntimeError as error:
            return isinstance(error, JobDoneError | JobFailedError)
        return phase in (Phase.DONE, Phase.FAILED)

    def takes_steps(self) -> bool:
        """Whether a step may still begin, now or after a wait; False also when the membership is lost."""
        try:
            return self.joined.membership.answer.instructions.phase.may_train
        except PsRuntimeError:
            return False

    @contextmanager
    def patience(self, max_wait_s: float) -> Iterator[None]:
        """Ends every wait of this member when what is done inside takes longer.

        Raises:
            PsRuntimeError: it did, and the wait was ended.
        """
        timer = threading.Timer(max_wait_s, self._stop.set)
        timer.daemon = True
        timer.start()
        try:
            yield
        except StopRequested as error:
            if self.was_asked:
                raise
            reason = self._joined.membership.answer.instructions.reason if self._joined else "not joined"
            raise PsRuntimeError(f"no session within {max_wait_s:g} s (max_wait_secs): {reason}") from error
        finally:
            timer.cancel()

    def fail(self, error: BaseException) -> None:
        """Leaves because of an error: at once, and without holding the others up."""
        if isinstance(error, JobFailedError):
            self.leave(LeaveKind.FATAL, str(error))  # or the job has failed already, then it tells nothing new
        elif isinstance(error, JobOverError):
            self.leave(LeaveKind.OVER, str(error))
        elif isinstance(error, StopRequested):
            self.leave(LeaveKind.ASKED, "asked to stop")
        elif isinstance(error, KeyboardInterrupt):
            self.leave(LeaveKind.ASKED, "interrupted from the keyboard")
        elif isinstance(error, SystemExit) and not error.code:
            self.leave(LeaveKind.ASKED, "the script ended itself")
        else:
            self.leave(LeaveKind.ERROR, first_line_of(error))

    def leave(self, kind: LeaveKind, reason: str) -> None:
        """Ends the membership and closes everything.  May be repeated."""
        atexit.unregister(self.leave)
        if self._joined and not self._has_left:
            self._joined.folders.end_membership(is_over=kind in (LeaveKind.OVER, LeaveKind.FATAL))
            self._joined.membership.leave(kind, reason)
        self._has_left = True
        self._stop.set()
        self._at_exit.close()


def _require_for_scripts(job: JobConfig) -> None:
    """UsageError if the job has a setting that is not for scripts."""
    if job.mode == SYNC:
        raise UsageError(
            f"{NAME} knows the modes async and bounded, and the job's is sync: a script's own updates cannot wait "
            f"until a round is complete; for mode sync {INSTEAD}"
        )
    if job.local_steps > 1 or job.pipeline > 1 or job.wire != "float32" or job.top_k is not None:
        raise UsageError(
            f"{NAME} knows neither local_steps nor pipeline nor wire nor top_k, one of which the job sets: a script "
            f"runs its own steps and updates; for these {INSTEAD}"
        )
    for setting, why in NOT_FOR_SCRIPTS.items():
        if getattr(job, setting):
            raise UsageError(f"{NAME} does not know {setting}, which the job sets: {why}")
    if job.on_data_error != "fail":
        raise UsageError(f"on_data_error skip is not for {NAME}: a script sees its own errors")
