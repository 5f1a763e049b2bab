"""The graphs of a worker's training, one for mode sync and one for the others, with all that its loop runs in them.

A job with local stages has a third one, for the steps that a worker takes by itself.

Each is built once, when it is needed first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from psruntime.config import JobConfig
from psruntime.config.schedule import LOCAL, SYNC
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.ps.ps_state import PrivatePs
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.ps_values import PsValues
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.graph.session.session import LocalInitialiser
from psruntime.graph.session.warm_sessions import WarmSessions
from psruntime.graph.step.train_graph import StepWarmUp, TrainGraph

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
        initialise, step = LocalInitialiser(train.graph), StepWarmUp(train)

        def warm_up(session: Session) -> None:
            for fetches in (preparation.flags, train.model.worker_copies.stamps, train.read_step):
                session.run(fetches)
            initialise.warm_up(session)
            step.run(session)

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
        kind = kind_of(mode)
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


def kind_of(mode: str) -> str:
    """The kind of the steps of a mode, or of LOCAL."""
    return mode if mode in (SYNC, LOCAL) else PUSHES
