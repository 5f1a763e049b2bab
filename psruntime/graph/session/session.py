"""Sessions on a view: our SessionCreator inside MonitoredSession, and the hook that ends one whose view was replaced.

It opens a session only while the coordinator's last answer has a prepared view that admits this worker, so no process
polls for 30 s and a replaced one does not take its successor's place.  It uses the session only if every ps confirms
that, since the answer may be older than the loss of a ps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf1
from tensorflow.python.client.session import _FetchHandler

from psruntime.config.schedule import SYNC
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.members.view import View
from psruntime.errors import CannotPrepareError, ReplacedError
from psruntime.faults import Place, first_line
from psruntime.graph.base.errors import LOST_SESSION, or_lost, users_errors
from psruntime.graph.base.types import Array, Graph, Proto, Session, Tensor
from psruntime.graph.session.worker_run import ControlPlane, WorkerRun


class ViewHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Ends a session whose view was replaced, and has the global step that this worker last read.

    takes_copies: whether the worker copies are those on the ps of the session, where these were restored.
    """

    def __init__(self, run: WorkerRun, creator: ViewSessionCreator, takes_copies: bool = True) -> None:
        self._takes_copies = takes_copies
        self._graph = run.graph
        self._creator = creator
        self._control_plane = run.control_plane
        self._log = run.log
        self._global_step = 0
        self._stepped = False  # in the newest session

    @property
    def global_step(self) -> int:
        """The global step that this worker last read."""
        return self._global_step

    @property
    def incarnation(self) -> int:
        """This worker's, in the newest session."""
        return self._creator.assignment.incarnation

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        if self._takes_copies:
            self._graph.model.worker_copies.take(session)
        self._global_step = int(session.run(self._graph.read_step))
        self._stepped = False

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:  # noqa: ARG002
        if not self._control_plane.is_current(self._creator.assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")

    def raise_global_step(self, global_step: int) -> None:
        """Raises the global step to this one; concurrent steps may end in another order than they were counted in."""
        self._global_step = max(self._global_step, global_step)

    def saw(self, global_step: int) -> None:
        """A step ended."""
        self.raise_global_step(global_step)
        if not self._stepped:
            self._stepped = True
            self._log("first_step", global_step=self._global_step)


class LocalInitialiser:
    """Initialises those of a graph, to which it adds operations."""

    def __init__(self, graph: Graph) -> None:
        with graph.as_default():
            each = [variable.initializer for variable in tf1.local_variables()]
            each += tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
            self._begins = tf1.placeholder_with_default(True, [], name="begins")
            begun = tf1.raw_ops.Assert(condition=self._begins, data=[self._begins])
            for operation in set(each):
                operation._add_control_input(begun)
            self._operation = tf1.group(*each)
        self._place = Place.BUILD

    def __call__(self, session: Session) -> None:
        """Raises UsageError if the model makes a table or a variable of what cannot be: a file that is not there.

        In a later session it was there before, and its lack is one of the machine.
        """
        with users_errors(session.graph, self._place):
            session.run(self._operation, {self._begins: True})  # fed as in a warm-up, or it would be another run
        self._place = Place.STEP

    def warm_up(self, session: Session) -> None:
        """Makes a session ready for it, and initialises nothing: the variables are those of all its sessions."""
        with suppress(tf1.errors.InvalidArgumentError):
            session.run(self._operation, {self._begins: False})


@dataclass(frozen=True)
class WorkerServer:
    """The TensorFlow server of worker `index`: its sessions run on `target`, others reach it at `address`."""

    index: int
    target: str
    address: str


class ViewSession(tf1.Session):  # type: ignore[misc]
    """A session whose every end by a lost ps is one of `LOST_SESSION`, which MonitoredSession recovers from."""

    _takes_back: Callable[[Session], bool] | None = None  # the owner of a session that is lent

    def lend(self, takes_back: Callable[[Session], bool]) -> Session:
        """This session, whose next `close` calls `takes_back` instead; if that returns True, it stays open."""
        self._takes_back = takes_back
        return self

    def close(self) -> None:
        takes_back, self._takes_back = self._takes_back, None
        if takes_back is None or not takes_back(self):
            super().close()

    def discard(self) -> None:
        """Closes a session in which something failed, which is of no use to its owner either."""
        self._takes_back = None
        self.close()

    def __del__(self) -> None:
        self._takes_back = None
        super().__del__()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return or_lost(super().run, *args, **kwargs)

    def calling(self, fetches: Any, feed_list: Sequence[Tensor], explains: bool = False) -> Callable[..., Any]:
        """What runs `fetches` with a value for each tensor of `feed_list`, taken apart once.

        explains: an error names its operation and where that was made, as one of `run` does.
        """
        call = callable_of(self, fetches, feed_list)
        return partial(or_lost, partial(self._do_call, call) if explains else call)


def callable_of(session: Session, fetches: Any, feed_list: Sequence[Tensor]) -> Callable[..., Any]:
    """Runs `fetches`, of any structure, when called with a value for each tensor of `feed_list`.

    tf1.Session.make_callable takes fetches and feeds apart once only without a feed list; with one it does so at each
    call, and extends the session by what was added to the graph, under a lock.  This does it once, with feeds; the
    names of TensorFlow that are not public stand here alone.
    """
    session._extend_graph()
    handler = _FetchHandler(session.graph, fetches, {})
    fetched = [tensor._as_tf_output() for tensor in handler.fetches()]
    targets = [operation._c_op for operation in handler.targets()]
    fed = [(tensor._as_tf_output(), tensor.dtype.as_numpy_dtype) for tensor in feed_list]

    def call(*values: Array) -> Any:
        if session._closed:
            raise RuntimeError("Attempted to use a closed Session.")  # as TensorFlow's run
        feeds = {output: np.asarray(value, dtype) for (output, dtype), value in zip(fed, values, strict=True)}
        return handler.build_results(session, session._call_tf_sessionrun(None, feeds, fetched, targets, None))

    return call


class ModeChangedError(Exception):
    """The job trains in a mode now whose steps the graph of this session does not have."""


class Preparing(Protocol):
    """What the creator needs of a Preparation."""

    def run(self, session: Session, assignment: Assignment) -> Prepared:
        """Prepares the view of the session.  ReplacedError: another does."""

    def require(self, session: Session, assignment: Assignment) -> None:
        """UnavailableError unless every ps of the session is prepared."""


class ViewSessionCreator(tf1.train.SessionCreator):  # type: ignore[misc]
    """Opens sessions on the current view; prepares it first when this worker is asked to.

    has_rounds: whether the graph has the steps of mode sync, else those of the others; None: the mode does not matter.
    initialise: makes a session on a prepared view ready; by default its
    local variables and tables are initialised.  opens: a session on a view, either to prepare it or for steps.
    """

    def __init__(
        self,
        graph: Graph,
        control_plane: ControlPlane,
        preparation: Preparing,
        log: Callable[..., None],
        opens: Callable[[View, bool], Session],
        initialise: Callable[[Session], None] | None = None,
        has_rounds: bool | None = None,
    ) -> None:
        self._assignment: Assignment | None = None
        self._control_plane = control_plane
        self._preparation = preparation
        self._log = log
        self._initialise = initialise or LocalInitialiser(graph)
        self._opens = opens
        self._has_rounds = has_rounds

    @property
    def assignment(self) -> Assignment:
        """That of the newest session."""
        assert self._assignment is not None, "no session was created yet"
        return self._assignment

    def create_session(self) -> Session:
        """A session on a prepared view.  Tries until there is one; the control plane ends the wait.

        Raises:
            ModeChangedError: the job's mode needs another graph.
        """
        while True:
            if not self._control_plane.is_chief():  # which reports first that it prepares
                self._require_mode()
            assignment = self._control_plane.await_view()
            self._require_mode()
            session = self._opens(assignment.view, assignment.prepare)
            try:
                if assignment.prepare:
                    self._control_plane.report_prepared(assignment, self._preparation.run(session, assignment))
                    session.close()
                    continue
                self._preparation.require(session, assignment)
                self._initialise(session)
            except CannotPrepareError as error:
                session.discard()
                self._control_plane.report_obstacle(assignment, str(error))
                continue
            except (*LOST_SESSION, ReplacedError) as error:
                session.discard()
                self._control_plane.no_session(assignment, first_line(error))
                continue
            except BaseException:
                session.discard()
                raise
            self._assignment = assignment
            self._control_plane.entered(assignment)
            self._log("session", view=assignment.view.number)
            return session

    def _require_mode(self) -> None:
        if self._has_rounds is not None and self._has_rounds != (self._control_plane.mode == SYNC):
            raise ModeChangedError(self._control_plane.mode)


def open_session(
    server: WorkerServer, graph: Graph, view: View, runs_once: bool = False, config: Proto = None
) -> Session:
    """A session on this worker's server, in which the graph's ps are those of the view.

    runs_once: whether nothing is run in it again and again, so that TensorFlow need not rewrite what it runs: that
    takes more time then than it saves.
    config: a ConfigProto of the user's, whose cluster is replaced; by default soft placement.
    """
    if config is None:
        config = tf1.ConfigProto(allow_soft_placement=True)
    else:
        given, config = config, tf1.ConfigProto()
        config.CopyFrom(given)
        config.ClearField("cluster_def")
        config.ClearField("device_filters")  # the session has the ps and this worker alone, whatever they leave out
    if runs_once:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.experimental.share_session_state_in_clusterspec_propagation = True
    ps_job = config.cluster_def.job.add(name="ps")
    for entry in view.ps:
        ps_job.tasks[entry.index] = entry.address
    config.cluster_def.job.add(name="worker").tasks[server.index] = server.address
    return ViewSession(server.target, graph=graph, config=config)
