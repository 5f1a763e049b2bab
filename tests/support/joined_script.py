"""A script that has joined, in a cluster of this process: its session is put together as a real one's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import StockArguments
from psruntime.classic.counting import StepCounting
from psruntime.classic.hooks import Tally
from psruntime.classic.identity import identity_of_script
from psruntime.classic.joining import session_of
from psruntime.classic.member import OwnedFolders
from psruntime.classic.script_session import ScriptSession
from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment, Ending, LeaveKind
from psruntime.graph.session.session import WorkerServer
from tests.support.local_cluster import LocalCluster, LocalControlPlane


class JoinedScript(LocalControlPlane):
    """The membership of a script, and what it has joined; the job ends after `steps` steps."""

    was_asked = False
    was_stopped = None
    exit_code: int | None = None

    def __init__(self, cluster: LocalCluster, steps: int = 1_000_000, chief: bool = True) -> None:
        super().__init__(cluster.view, steps)
        self.chief = chief
        self.server: WorkerServer = cluster.server
        self.job = JobConfig(ps=len(cluster.ps), max_workers=cluster.max_workers, job_id="1")
        self.joined = self.control_plane = self
        self.left: list[tuple[LeaveKind | str, str]] = []
        self.events: list[str] = []

    def log(self, event: str, **facts: Any) -> None:
        self.events.append(f"{event} {facts}")

    def is_chief(self) -> bool:
        return self.chief

    def await_end(self, assignment: Assignment) -> Ending:
        return super().await_end(assignment) if self.chief else Ending.OVER

    def takes_steps(self) -> bool:
        return self.done < self.steps

    def patience(self, max_wait_s: float) -> Any:
        return nullcontext()

    def back_off(self, why: str) -> None:
        self.events.append(f"back_off {why}")

    def fail(self, error: BaseException) -> None:
        self.leave("error", type(error).__name__)

    def leave(self, kind: LeaveKind | str, reason: str) -> None:
        if not self.left:
            self.folders.end_membership(is_over=True)
        self.left.append((kind, reason))

    def open(
        self, stock: StockArguments, counting: StepCounting, serves: Callable[[], bool] | None = None
    ) -> ScriptSession:
        """What join_script gives, once its member has joined."""
        self.folders = OwnedFolders(stock.folders(), self.job, "127.0.0.1:2222", self.log)
        identity = identity_of_script(tf1.get_default_graph(), counting.counters)
        return session_of(self, self.job, identity, stock, counting, Tally(), serves)  # type: ignore[arg-type]
