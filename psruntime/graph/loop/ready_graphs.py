"""Which graphs are ready for steps, and the thread that makes another one ready beside the steps.

Before a running job changes from one kind of steps to the other its workers build the other graph, which takes seconds,
and longer for a large model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from psruntime.config.schedule import SYNC
from psruntime.core.members.messages import GraphsBuilt
from psruntime.errors import PsRuntimeError
from psruntime.graph.base import environment
from psruntime.graph.loop.loop_graphs import PUSHES, LoopGraph, LoopGraphs, kind_of
from psruntime.observe.log import first_line_of


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
        self._note(lambda: frozenset({kind_of(mode)}))
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
            return self._ready if reason else self._ready | {kind_of(mode)}

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
