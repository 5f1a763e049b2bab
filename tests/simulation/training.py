"""The training of a simulated worker, as graph/loop/training_loop.py has it: sessions, rounds, the end of the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from psruntime.config import JobConfig
from psruntime.config.schedule import SYNC
from psruntime.core.members.messages import Assignment, Ending
from psruntime.core.members.view import View
from psruntime.errors import ReplacedError
from psruntime.graph.loop.async_loop import AsyncLoop
from psruntime.graph.loop.round_loop import RoundLoop
from psruntime.graph.session.session import ViewSessionCreator
from psruntime.rpc.worker.worker_control import WorkerControl
from tests.simulation.checkpoints import Checkpoints, Preparation
from tests.simulation.kernel import Process
from tests.simulation.servers import BATCHES
from tests.simulation.session import Recoverable, Request, Runner, Session

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

SAVE_EVERY = 4  # rounds


class Inputs:
    """Batches are numbers, unlike those of all other processes.  number: of the process."""

    shards = None
    is_ready = True
    why_none = ""
    name = "input_fn"

    def __init__(self, number: int) -> None:
        self.drawn, self._first = 0, number * BATCHES
        self._back: list[list[Any]] = []

    def draw_if_any(self) -> list[Any]:
        if self._back:
            return self._back.pop()
        self.drawn += 1
        return [self._first + self.drawn - 1]

    draw_endlessly = draw_if_any

    def give_back(self, batch: list[Any]) -> None:
        self._back.append(batch)

    def applied(self, batch: list[Any]) -> None:
        """It counts."""

    def put_back(self, batch: list[Any]) -> None:
        """It does not; without data shards it is not read again."""

    def examples(self, batch: list[Any]) -> int:
        return 1

    def miscounted(self, batch: list[Any]) -> None:
        return None


class Training:
    """As graph/loop/training_loop.py: sessions, the steps of the mode, the end of the job."""

    def __init__(
        self, cluster: Cluster, process: Process, index: int, number: int, control: WorkerControl, job: JobConfig,
        log: Callable[..., None],
    ) -> None:  # fmt: skip
        self._cluster, self._control = cluster, control
        self._checkpoints = Checkpoints(cluster.folder, process, job.mode == SYNC)
        self._saved = 0
        preparation = Preparation(cluster.folder, process, self._checkpoints, index, cluster.audit.restored)

        def opens(view: View, _prepares: bool) -> Session:
            return self._opened(Session(cluster.network, process, index, view))

        has_rounds = job.mode == SYNC
        self._creator = ViewSessionCreator(
            None, control, preparation, log, opens, initialise=lambda _: None, has_rounds=has_rounds
        )
        compute_s, only_keeps = cluster.schedule.compute_s, job.backup_workers > 0
        self._runner = Runner(
            process, index, lambda: control.is_current(self._creator.assignment), compute_s, only_keeps
        )
        self.session = Recoverable(self._creator, self._runner.opened)
        sections = [SimpleNamespace(sums=numbers) for numbers in cluster.buckets]
        request, closing = Request("step"), Request("close")
        rounds = SimpleNamespace(sections=sections, request=closing) if has_rounds else None
        graph = SimpleNamespace(
            rounds=rounds, request=request, mean_divisor=None, graph=None,
            model=SimpleNamespace(spec=SimpleNamespace(clip_norm=None, examples=0), batch=["batch"]),
        )  # fmt: skip
        run = SimpleNamespace(
            graph=graph, inputs=Inputs(number), control_plane=control, index=index, job=job, log=log,
            data_errors=SimpleNamespace(succeeded=lambda: None, step_failed=_raise),
            observers=SimpleNamespace(on_update=None),
        )  # fmt: skip
        steps: tuple[Any, ...] = (self._on_step, lambda: False)
        self._loop: Any = (
            RoundLoop(run, self._creator, self._runner, *steps)  # type: ignore[arg-type]
            if has_rounds
            else AsyncLoop(run, self._creator, self._runner, self._runner, *steps)  # type: ignore[arg-type]
        )

    def _opened(self, session: Session) -> Session:
        sessions = self._cluster.sessions
        sessions[session.worker] = [each for each in sessions.get(session.worker, []) if not each.is_closed] + [session]
        return session

    def run(self) -> None:
        try:
            while True:
                self.session.run_step_fn(lambda _: None)
                self._loop.run(self.session)
                assignment = self._creator.assignment
                ending = self._control.await_end(assignment)
                if ending is Ending.OVER:
                    return
                if ending is Ending.RESUME:
                    self.session.run_step_fn(lambda _: self._runner._require_current())
                else:
                    self._finish(assignment)
        finally:
            self.session.close()

    def _on_step(self, result: Any) -> None:
        if self._control.is_chief() and result.global_step >= self._saved + SAVE_EVERY:
            with suppress(*Recoverable.LOST):
                self._save()

    def _save(self) -> None:
        session = self._runner.session
        assert session is not None
        checkpoint = self._checkpoints.save(session)
        if checkpoint:
            self._saved = checkpoint.global_step
            self._control.saved(checkpoint.global_step)

    def _finish(self, assignment: Assignment) -> None:
        try:
            self._runner._require_current()
            self._save()
            self._control.closed_part()
            if not self._control.is_current(assignment):
                return
            self._control.report_finished(assignment)
        except ReplacedError as error:
            self._control.back_off(str(error))
        except Recoverable.LOST as error:
            self._control.back_off(f"a ps was lost while the job ended: {error}")


def _raise(error: Exception, *_: object) -> bool:
    """No step fails in the user's code."""
    raise error
