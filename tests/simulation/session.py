"""TensorFlow as a simulated worker sees it: sessions on a view, runs on all its ps, steps, checkpoints, preparation.

A run sends its header to each ps; there each bucket is closed, then pulled; with all values on the worker the gradient
is computed, sent to each bucket and contributed.  Every message has a delay of its own, so a worker that dies, or loses
its session, leaves any part of a run behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import PENDING
from psruntime.core.members.view import View
from psruntime.core.rounds.contribution import BucketOutcome, SectionState
from psruntime.graph.loop.step_runner import Ran, Started
from tests.simulation.kernel import Event, Process
from tests.simulation.network import LINK_TIMEOUT_S, Network
from tests.simulation.servers import Gradient, Header, Run, Servers, gradient_of

RETRANSMIT_S = 0.2
UNHEARD_S = 0.003  # for which a ps may continue with what a session has under way that has ended


class Session:
    """A session of worker `process` on a view: its calls fail once a ps of it is gone."""

    def __init__(self, network: Network, process: Process, worker: int, view: View) -> None:
        self._network, self._process, self._worker = network, process, worker
        self.servers: list[Servers] = [network.ps[entry.address] for entry in view.ps]
        self.is_closed = False
        self._runs: list[Run] = []
        self._waiting: dict[Run, Callable[[str], None]] = {}  # what makes a run fail
        process.on_death.append(self._die)

    @property
    def worker(self) -> str:
        """The name of its process."""
        return self._process.name

    def reset(self, name: str) -> None:
        """Its connection to this process breaks: what it runs fails, and the ps continue with it for a moment."""
        if name in (self.worker, *(servers.process.name for servers in self.servers)):
            for fail in list(self._waiting.values()):
                fail(f"the connection to {name} was reset")

    @property
    def homes(self) -> dict[int, Servers]:
        """Bucket number -> its ps."""
        return {number: servers for servers in self.servers for number in servers.numbers}

    def close(self) -> None:
        self.is_closed = True
        self._runs = []

    discard = close

    def _die(self) -> None:
        """The ps learn of it a moment later, each at its own time, and continue with what has arrived until then."""
        for run in self._runs:
            self._cancel_soon(run)

    def _cancel_soon(self, run: Run) -> None:
        for servers in self.servers:
            delay_s = self._network.simulation.random.random() * UNHEARD_S
            self._network.simulation.at(delay_s, partial(run.cancel, servers.index), servers.process)

    def run(self, parts: dict[Any, tuple[Servers, Callable[[Run, Callable[[Any], None]], None]]]) -> dict[Any, Any]:
        """Calls each part at its ps; returns what each gave, by its key.

        parts: key -> (ps, what is called there with the run and a function for the result).

        Raises:
            UnavailableError: a ps is gone, or not reached.
        """
        run, network, process = Run(), self._network, self._process
        results: dict[Any, Any] = {}
        failure: list[str] = []
        done = Event(network.simulation)
        watched: list[tuple[Process, Callable[[], None]]] = []
        if self.is_closed:
            raise tf1.errors.AbortedError(None, None, "the session is closed")
        if not parts:
            return results
        self._runs.append(run)

        def fail(why: str) -> None:
            failure.append(why)
            done.set()

        def take(key: Any, result: Any) -> None:
            results[key] = result
            if len(results) == len(parts):
                done.set()

        for key, (servers, act) in parts.items():
            home = servers.process

            def reply(result: Any, key: Any = key, home: Process = home) -> None:
                self._deliver(home, process, partial(take, key, result))

            def arrive(act: Any = act, reply: Any = reply, ps: int = servers.index) -> None:
                if not run.is_cancelled(ps):
                    act(run, reply)

            servers.runs.setdefault(self._worker, []).append(run)
            broken = partial(process.after, 0.01, partial(fail, f"{home.name} is gone"))
            if home.alive:
                home.on_death.append(broken)
                watched.append((home, broken))
                self._deliver(process, home, arrive)
            else:
                broken()
        watch = partial(self._watch_links, run, done, fail)
        process.after(LINK_TIMEOUT_S, watch)
        self._waiting[run] = fail
        done.wait()
        del self._waiting[run]
        if failure:
            self._cancel_soon(run)
        for servers, _ in parts.values():
            runs = servers.runs.get(self._worker, [])
            if run in runs:
                runs.remove(run)
        for home, act_of_death in watched:
            if act_of_death in home.on_death:
                home.on_death.remove(act_of_death)
        if run in self._runs:
            self._runs.remove(run)
        if failure:
            self.close()
            raise tf1.errors.UnavailableError(None, None, failure[0])
        return results

    def _deliver(self, sender: Process, receiver: Process, act: Callable[[], None]) -> None:
        """What is sent on a cut link arrives once that is whole, as TCP has it."""
        if self._network.is_cut(sender, receiver):
            receiver.simulation.at(RETRANSMIT_S, partial(self._deliver, sender, receiver, act))
        else:
            receiver.simulation.at(self._network.delay_s(sender, receiver), act, receiver)

    def _watch_links(self, run: Run, done: Event, fail: Callable[[str], None]) -> None:
        """A link that is cut while a run waits ends the run, as the product's watch of connections does."""
        if done.is_set():
            return
        cut = [servers.process.name for servers in self.servers if self._network.is_cut(self._process, servers.process)]
        if cut or any(run.is_cancelled(servers.index) for servers in self.servers):
            fail(f"{', '.join(cut) or 'the session'} does not answer")
        else:
            self._process.after(LINK_TIMEOUT_S, partial(self._watch_links, run, done, fail))


class Recoverable:
    """As MonitoredSession: what it runs is run again in a new session when one is lost."""

    LOST = (tf1.errors.UnavailableError, tf1.errors.AbortedError)

    def __init__(self, creator: Any, opened: Callable[[Session], None]) -> None:
        self._creator, self._opened = creator, opened
        self._session: Session | None = None

    def run_step_fn(self, act: Callable[[Any], Any]) -> Any:
        while True:
            try:
                if self._session is None:
                    self._session = self._creator.create_session()
                    self._opened(self._session)
                return act(None)
            except self.LOST:
                if self._session is not None:
                    self._session.close()
                self._session = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


class Request:
    """What a run is fed: a key, and the header."""

    odd_rate = ""
    nothing = None

    def __init__(self, name: str) -> None:
        self.fed = name

    def values(
        self, push_id: tuple[int, int, int, int], global_step: int = 0, members: int = 0, factor: float = 0.0,
        **_: object,
    ) -> Header:  # fmt: skip
        worker, incarnation, sequence, origin = push_id
        return Header(worker, incarnation, sequence, members, factor, global_step, origin)


class Runner:
    """As StepRunner, of the newest session: the step of the mode, and the runs of a round without a batch.

    compute_s: of virtual time for a gradient, and up to twice as much.  only_keeps: whether a step keeps its gradient
    without contributing it, as with backup workers.
    """

    def __init__(
        self, process: Process, worker: int, is_current: Callable[[], bool], compute_s: float, only_keeps: bool
    ) -> None:
        self._only_keeps = only_keeps
        self.global_step = 0
        self.session: Session | None = None
        self._process, self._worker, self._is_current = process, worker, is_current
        self._compute_s = compute_s
        self._kept: dict[int, Gradient] = {}

    def opened(self, session: Session) -> None:
        self.session = session
        self.global_step = self.read_step()

    def read_step(self) -> int:
        assert self.session is not None
        home = self.session.homes[0]
        return int(self.session.run({0: (home, lambda run, done: done(home.global_step))})[0])

    def before_run(self, _: object) -> None:
        """As ViewHook."""
        self._require_current()

    def on_pause(self, global_step: int = 0) -> None:
        """No checkpoint is due."""

    def _require_current(self) -> Session:
        if not self._is_current():
            raise tf1.errors.AbortedError(None, None, "the view was replaced")
        assert self.session is not None
        return self.session

    def start(self, feed: dict[str, Any]) -> Started:
        session = self._require_current()
        step = self._step if "close" in feed else self._update
        return Started(None, lambda: step(session, feed))

    def finish(self, started: Started, ran: Ran) -> dict[str, Any]:
        self.global_step = max(self.global_step, int(ran.fetched["global_step"]))
        return dict(ran.fetched)

    def round_run(self, name: str) -> Callable[..., Any]:
        session = self._require_current()
        return partial(getattr(self, f"_{name}"), session)

    def _step(self, session: Session, feed: dict[str, Any]) -> Ran:
        header, closing, batch = feed["step"], feed["close"], feed["batch"]
        pulled = self._closed(session, closing, pulls=True)
        values = tuple(pulled[number][1] for number in sorted(pulled))
        self._compute()
        for number in pulled:
            gradient = gradient_of(self._worker, batch, values, number)
            self._kept[number] = Gradient(self._worker, header.incarnation, batch, gradient)
        states = {number: pulled[number][0] for number in pulled} if closing else {}
        if self._only_keeps:
            kept = {number: BucketOutcome(int(PENDING), pulled[number][0].applied, 0) for number in pulled}
            outcomes = self._by_ps(session, kept)
        else:
            outcomes = self._contribute(session, header, states)
        return _ran(outcomes, pulled[0][2])

    def _update(self, session: Session, feed: dict[str, Any]) -> Ran:
        """A step of the modes without rounds."""
        header, batch = feed["step"], feed["batch"]
        pulled = session.run({n: (home, partial(_pulled, home, n)) for n, home in session.homes.items()})
        values = tuple(pulled[number][1] for number in sorted(pulled))
        self._compute()
        parts = {}
        for number, home in session.homes.items():
            value = gradient_of(self._worker, batch, values, number)
            gradient = Gradient(self._worker, header.origin, batch, value, values)

            def act(
                run: Run, done: Callable[[Any], None], number: int = number, home: Servers = home,
                gradient: Gradient = gradient,
            ) -> None:  # fmt: skip
                home.push(number, header, gradient, pulled[number][0], run, done)

            parts[number] = (home, act)
        pushed = session.run(parts)
        outcomes = self._by_ps(session, {number: outcome[:2] for number, outcome in pushed.items()})
        return _ran(outcomes, pushed[0][2])

    def _compute(self) -> None:
        task = self._process.simulation.task
        assert task is not None
        task.wait(self._compute_s * (1 + self._process.simulation.random.random()))

    def _closed(self, session: Session, closing: Header | None, pulls: bool) -> dict[int, Any]:
        """Closes the round on each bucket; with `pulls`, (round state, value, rounds in it) of each after that."""
        parts = {}
        for number, home in session.homes.items():

            def act(run: Run, done: Callable[[Any], None], number: int = number, home: Servers = home) -> None:
                bucket = home.buckets[number]
                home.close(
                    number, closing, run,
                    lambda state: done((state, bucket.value, bucket.steps) if pulls else state),
                )  # fmt: skip

            parts[number] = (home, act)
        return session.run(parts)

    def _contribute(
        self, session: Session, header: Header, states: dict[int, SectionState] | None = None
    ) -> list[np.ndarray]:
        parts = {}
        for number, home in session.homes.items():
            applied = states[number].applied if states else None

            def act(
                run: Run, done: Callable[[Any], None], number: int = number, home: Servers = home,
                applied: int | None = applied,
            ) -> None:  # fmt: skip
                gradient = self._kept[number]._replace(incarnation=header.incarnation)
                home.contribute(number, header, gradient, applied, run, done)

            parts[number] = (home, act)
        return self._by_ps(session, session.run(parts))

    def _close(self, session: Session, header: Header) -> list[np.ndarray]:
        return self._by_ps(session, self._closed(session, header, pulls=False))

    @staticmethod
    def _by_ps(session: Session, results: dict[int, Any]) -> list[np.ndarray]:
        return [np.array([results[number] for number in servers.numbers], np.int64) for servers in session.servers]


def _pulled(home: Servers, number: int, run: Run, done: Callable[[tuple[int, int]], None]) -> None:
    """(version, value) of a bucket."""
    bucket = home.buckets[number]
    done((bucket.version, bucket.value))


def _ran(outcomes: list[np.ndarray], global_step: int) -> Ran:
    fetched = {
        "outcomes": outcomes, "loss": 0.5, "finite": True, "global_step": global_step, "examples": 1.0,
        "marks": {"pulled": 0.0, "computed": 0.0},
    }  # fmt: skip
    return Ran(fetched, {}, None, None, 0.0, 0.0)
