"""The graphs of a worker's training, one for mode sync and one for the others, with all that its loop runs in them.

A job with local stages has a third one, for the steps that a worker takes by itself.

Each is built once, when it is needed first.  Before a running job changes from the one kind to the other its workers
are told to build, which they do beside their steps: that takes seconds, and longer for a large model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from psruntime.config import JobConfig
from psruntime.config.schedule import LOCAL, SYNC
from psruntime.core.members.messages import GraphsBuilt
from psruntime.errors import PsRuntimeError
from psruntime.graph.base import allocator
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.ps.private_ps import PrivatePs
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.ps_values import PsValues
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.graph.session.local_initialiser import LocalInitialiser
from psruntime.graph.session.warm_sessions import WarmSessions
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.step.warm_up import StepWarmUp
from psruntime.observe.log import first_line_of

_PUSHES = "pushes"  # the steps of all modes but sync


@dataclass(frozen=True)
class LoopGraph:
    """A training graph, and what a loop runs in it beside the steps.

    initialise: as in ViewSessionCreator.  sessions: in it, some of which are ready before they are wanted.
    """

    train: TrainGraph
    checkpoints: Checkpoints
    replicas: Replicas | None
    preparation: Preparation
    initialise: LocalInitialiser
    sessions: WarmSessions

    @cached_property
    def ps_values(self) -> PsValues:
        """Reads what its ps hold, and writes it where they are a worker's own."""
        return PsValues(self.train, writes=self.train.rounds is None)

    @cached_property
    def own_ps(self) -> PrivatePs:
        """The ps of a worker that trains in this graph by itself."""
        return PrivatePs(self.train.plan.num_ps)

    @classmethod
    def around(
        cls,
        train: TrainGraph,
        job: JobConfig,
        index: int,
        log: Callable[..., None],
        sharded: bool = False,
        warm_start: WarmStart | None = None,
        owner: FolderOwner | None = None,
    ) -> LoopGraph:
        """Adds to the training graph of worker `index`.  sharded, warm_start: as in Preparation.
        owner: as in Checkpoints.
        """
        checkpoints = Checkpoints(train, job.checkpoint_dir, job.keep, index, owner)
        replicas = Replicas(train) if job.replicate_every else None
        preparation = Preparation(train, checkpoints, replicas, index, job, log, sharded, warm_start)
        initialise, step = LocalInitialiser(train.graph), StepWarmUp(train)

        def warm_up(session: Session) -> None:
            for fetches in (preparation.flags, train.model.worker_copies.stamps, train.read_step):
                session.run(fetches)
            initialise.warm_up(session)
            step.run(session)

        sessions = WarmSessions(train.graph, warm_up, preparation.warm_up)
        return cls(train, checkpoints, replicas, preparation, initialise, sessions)


class LoopGraphs:
    """Each may be called by any thread, `enter` and `prepare` by one.

    make: builds the one for a mode.  on_change: called whenever `built` is another.  warm: makes sessions in one ready.

    Law: no graph is built twice, or by two threads at a time.
    """

    def __init__(
        self,
        make: Callable[[str], LoopGraph],
        on_change: Callable[[], None],
        warm: Callable[[LoopGraph], None] = lambda _: None,
    ) -> None:
        self._make, self._on_change, self._warm = make, on_change, warm
        self._building = threading.Lock()
        self._graphs: dict[str, LoopGraph] = {}  # by the kind of their steps
        self._noting = threading.Lock()  # guards the next five
        self._ready: frozenset[str] = frozenset()  # kinds whose steps could be taken now
        self._is_at_it = False  # whether a thread prepares one, and has not found yet whether it can
        self._wanted = ""  # the mode that is to be prepared
        self._number = 0  # of the change that wants it
        self._failed = ("", 0)  # why it could not, and the number of that change
        self._task: threading.Thread | None = None

    @property
    def built(self) -> GraphsBuilt:
        """Which are ready."""
        return GraphsBuilt(SYNC in self._ready, _PUSHES in self._ready, *self._failed)

    @property
    def is_building(self) -> bool:
        """Whether a thread of its own is at it, which nothing can end."""
        return self._task is not None and self._task.is_alive()

    @property
    def keeps_sessions(self) -> bool:
        """Whether any is open that no loop has."""
        return any(graph.sessions.keeps_any for graph in list(self._graphs.values()))

    def of(self, mode: str) -> LoopGraph:
        """That of the mode, or LOCAL; builds it, or waits until it is built, if it is not there yet.

        Raises:
            UsageError, UserCodeError: the model cannot be trained in this mode.
        """
        graph = self._built(mode)
        self._note(lambda: self._ready | {_kind(mode)})
        return graph

    def enter(self, mode: str) -> LoopGraph:
        """As `of`: steps of this mode are taken from now on.  The graph of others has to be made ready again."""
        graph = self._built(mode)
        self._note(lambda: frozenset({_kind(mode)}))
        self._go_on()  # that of the others may be wanted already
        return graph

    def close(self) -> None:
        """No step is taken any more."""
        for graph in list(self._graphs.values()):
            graph.sessions.close()

    def prepare(self, mode: str, number: int) -> None:
        """Makes that of the mode ready in a thread of its own, unless it is, or could not be built.

        mode: empty: none is wanted any more.  number: of the change that wants it; for another one it is tried again.
        """
        with self._noting:
            self._wanted = mode
            if number != self._number:
                self._number, self._failed = number, ("", 0)
        self._go_on()

    def _go_on(self) -> None:
        """With what is wanted and not ready, unless a thread is at it."""
        with self._noting:
            mode = self._wanted
            if not mode or self.built.serve(mode) or self._failed[1] or self._is_at_it:
                return
            self._is_at_it = True
        self._task = threading.Thread(target=self._get_ready, args=(mode,), name="graph", daemon=True)
        self._task.start()

    def _get_ready(self, mode: str) -> None:
        reason = ""
        try:
            self._warm(self._built(mode))
        except Exception as error:  # noqa: BLE001 - whatever the user's model raises, the training goes on
            reason = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)

        def found() -> frozenset[str]:
            self._is_at_it = False  # from here on another change begins another build
            self._failed = (reason, self._number) if reason and self._number else ("", 0)
            return self._ready if reason else self._ready | {_kind(mode)}

        self._note(found)
        allocator.give_back()  # what building took
        self._go_on()  # another may be wanted by now

    def _built(self, mode: str) -> LoopGraph:
        kind = _kind(mode)
        with self._building:
            if kind not in self._graphs:
                self._graphs[kind] = self._make(mode)
            return self._graphs[kind]

    def _note(self, ready: Callable[[], frozenset[str]]) -> None:
        """Takes note of what is ready, and tells if `built` is another."""
        with self._noting:
            before = self.built
            self._ready = ready()
            is_changed = self.built != before
        if is_changed:
            self._on_change()


def _kind(mode: str) -> str:
    return mode if mode in (SYNC, LOCAL) else _PUSHES
