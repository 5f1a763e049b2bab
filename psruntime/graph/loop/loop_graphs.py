"""The graphs of a worker's training, one for mode sync and one for the others: their sessions, and which are ready.

A job with local stages has a third one, for the steps that a worker takes by itself.  Each is built once, when it is
needed first.

Before a running job changes from one kind of steps to the other its workers build the other graph, which takes seconds,
and longer for a large model, and open sessions in it, all beside the steps of the graph that they have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.schedule import LOCAL, SYNC
from psruntime.core.members.messages import GraphsBuilt
from psruntime.core.members.view import View
from psruntime.errors import PsRuntimeError
from psruntime.graph.base import environment
from psruntime.graph.base.types import Graph, Session
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.ps_values import PsValues
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.graph.session.ps_state import PrivatePs
from psruntime.graph.session.session import LocalInitialiser, WorkerServer, open_session
from psruntime.graph.step.train_graph import TrainGraph, step_warm_up
from psruntime.observe.log import first_line_of

PUSHES = "pushes"  # the steps of all modes but sync


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
        initialise, step = LocalInitialiser(train.graph), step_warm_up(train)

        def warm_up(session: Session) -> None:
            for fetches in (preparation.flags, train.model.worker_copies.stamps, train.read_step):
                session.run(fetches)
            initialise.warm_up(session)
            if step:
                step(session)

        sessions = WarmSessions(train.graph, warm_up, preparation.warm_up)
        return cls(train, checkpoints, replicas, preparation, initialise, sessions)


class LoopGraphs:
    """Each may be called by any thread.

    make: builds the one for a mode.

    Law: no graph is built twice, or by two threads at a time.
    """

    def __init__(self, make: Callable[[str], LoopGraph]) -> None:
        self._make = make
        self._building = threading.Lock()
        self._graphs: dict[str, LoopGraph] = {}  # by the kind of their steps

    def of(self, mode: str) -> LoopGraph:
        """That of the mode, or LOCAL; builds it, or waits until it is built, if it is not there yet.

        Raises:
            UsageError, UserCodeError: the model cannot be trained in this mode.
        """
        kind = _kind_of(mode)
        with self._building:
            if kind not in self._graphs:
                self._graphs[kind] = self._make(mode)
            return self._graphs[kind]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of those that are built."""
        return frozenset(self._graphs)

    def all(self) -> list[LoopGraph]:
        """Those that are built."""
        return list(self._graphs.values())


def _kind_of(mode: str) -> str:
    """The kind of the steps of a mode, or of LOCAL."""
    return mode if mode in (SYNC, LOCAL) else PUSHES


WarmUp = Callable[[Session], None]


class WarmSessions:
    """At most one for the steps of a graph, and one to prepare a view.  `warm` is called by one thread, others by any.

    steps, preparation: run in a session what it will be wanted for, so that nothing is changed.
    """

    def __init__(self, graph: Graph, steps: WarmUp, preparation: WarmUp) -> None:
        self._graph = graph
        self._warm_up = {False: steps, True: preparation}
        self._lock = threading.Lock()  # guards the next
        self._kept: dict[bool, tuple[View, Session]] = {}  # by whether it is to prepare a view

    def warm(self, server: WorkerServer, view: View, prepares: bool) -> None:
        """Opens those on the view that are not there, the one to prepare it only if this worker may have to.

        A failure, as of a lost ps, is left to the next call that opens a session.
        """
        with suppress(tf1.errors.OpError):
            for each in (False, True) if prepares else (False,):
                session = self._pop(view, each) or self._warmed(server, view, each)
                if not self._keep(view, each, session):
                    _end(session)

    def open(self, server: WorkerServer, is_left: Callable[[], bool], view: View, prepares: bool) -> Session:
        """A session on the view, which the caller closes; a warm one if there is one.

        is_left: whether steps are to be taken in another graph.  Then what is closed is kept for the way back.  So is
        a warm session that has prepared a view: to close it takes time without steps.
        """
        warm = self._pop(view, prepares)
        session = warm or open_session(server, self._graph, view, runs_once=prepares)

        def takes_back(closed: Session) -> bool:
            wanted = warm is not None if prepares else is_left()
            return wanted and self._keep(view, prepares, closed)

        return session.lend(takes_back)

    @property
    def keeps_any(self) -> bool:
        return bool(self._kept)

    def close(self) -> None:
        """They are not wanted any more."""
        with self._lock:
            kept = [session for _, session in self._kept.values()]
            self._kept.clear()
        for session in kept:
            _end(session)

    def _pop(self, view: View, prepares: bool) -> Session:
        """The one that is kept, if it is on the ps of this view."""
        with self._lock:
            on, session = self._kept.pop(prepares, (view, None))
        if on.ps != view.ps:
            _end(session)
            return None
        return session

    def _warmed(self, server: WorkerServer, view: View, prepares: bool) -> Session:
        session = open_session(server, self._graph, view, runs_once=prepares)
        try:
            self._warm_up[prepares](session)
        except BaseException:
            _end(session)
            raise
        return session

    def _keep(self, view: View, prepares: bool, session: Session) -> bool:
        """Unless there is one."""
        with self._lock:
            return self._kept.setdefault(prepares, (view, session))[1] is session


def _end(session: Session) -> None:
    with suppress(tf1.errors.OpError):  # its ps may be lost
        session.close()


class ReadyGraphs:
    """Of a worker's `graphs`; at first those that are built are ready.

    `enter` and `prepare` may each be called by one thread, others by any.

    mode: of the steps that are taken; at first, of those that will be.
    on_change: called whenever `built` is another.  warm: makes sessions in a graph ready.
    """

    def __init__(
        self, graphs: LoopGraphs, mode: str, on_change: Callable[[], None], warm: Callable[[LoopGraph], None]
    ) -> None:
        self.mode = mode
        self._graphs, self._on_change, self._warm = graphs, on_change, warm
        self._noting = threading.Lock()  # guards the next five
        self._ready = graphs.kinds  # kinds whose steps could be taken now
        self._is_at_it = False  # whether a thread prepares one, and has not found yet whether it can
        self._wanted = ""  # the mode that is to be prepared
        self._number = 0  # of the change that wants it
        self._failed = ("", 0)  # why it could not, and the number of that change
        self._task: threading.Thread | None = None

    @property
    def built(self) -> GraphsBuilt:
        """Which are ready."""
        return GraphsBuilt(SYNC in self._ready, PUSHES in self._ready, *self._failed)

    @property
    def is_building(self) -> bool:
        """Whether a thread of its own is at it, which nothing can end."""
        return self._task is not None and self._task.is_alive()

    @property
    def keeps_sessions(self) -> bool:
        """Whether any is open that no loop has."""
        return any(graph.sessions.keeps_any for graph in self._graphs.all())

    def enter(self, mode: str) -> LoopGraph:
        """The graph of the mode, whose steps are taken from now on.  That of others has to be made ready again.

        Raises:
            As LoopGraphs.of.
        """
        graph, self.mode = self._graphs.of(mode), mode
        self._note(lambda: frozenset({_kind_of(mode)}))
        self._go_on()  # that of the others may be wanted already
        return graph

    def close(self) -> None:
        """No step is taken any more."""
        for graph in self._graphs.all():
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
            self._warm(self._graphs.of(mode))
        except Exception as error:  # noqa: BLE001 - whatever the user's model raises, the training continues
            reason = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)

        def found() -> frozenset[str]:
            self._is_at_it = False  # from here on another change begins another build
            self._failed = (reason, self._number) if reason and self._number else ("", 0)
            return self._ready if reason else self._ready | {_kind_of(mode)}

        self._note(found)
        environment.give_back()  # what building took
        self._go_on()  # another may be wanted by now

    def _note(self, ready: Callable[[], frozenset[str]]) -> None:
        """Takes note of what is ready, and reports if `built` is another."""
        with self._noting:
            before = self.built
            self._ready = ready()
            is_changed = self.built != before
        if is_changed:
            self._on_change()
