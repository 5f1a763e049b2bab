"""Virtual time: the processes of a job in one thread, whose order follows from a seed.

A process has tasks, greenlets that stand for its threads, and perhaps an asyncio loop.  A task runs until it waits;
the next event by virtual time, then by order of scheduling, continues another one.  `threading` and `time` here stand
for the modules of these names, in the code of the product (stand_ins.py).

A killed process never runs again: its tasks are ended where they wait, without an effect on others.  The events of a
paused process wait for its end of the pause.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

MOST_EVENTS = 60_000  # of a schedule; most have 2,000
KEPT_LINES = 4000  # of the trace
ROUNDING_S = 1e-6  # by which a clock may be behind the time for which an event of it was scheduled


class Simulation:
    """Events in the order of virtual time.  `note` adds a line to the trace, whose hash is `digest`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.lines: list[str] = []
        self.defects: list[str] = []
        self.current: Process | None = None
        self.task: Task | None = None
        self._due: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._number = 0
        self._hash = hashlib.sha256()

    def at(self, delay_s: float, act: Callable[[], None], process: Process | None = None) -> None:
        """`act` runs after so much virtual time, in the process, unless that is dead by then."""
        self._number += 1
        heapq.heappush(self._due, (self.now_s + max(0.0, delay_s), self._number, process, act))

    def run(self, is_over: Callable[[], bool], limit_s: float) -> bool:
        """Runs events until it is over (True); nothing is left, or virtual time or MOST_EVENTS are up (False)."""
        while not is_over():
            if not self._due or self._due[0][0] > limit_s or self.events > MOST_EVENTS:
                return False
            self.now_s, _, process, act = heapq.heappop(self._due)
            self._run(process, act)
        return True

    def _run(self, process: Process | None, act: Callable[[], None]) -> None:
        if process is not None and not process.alive:
            return
        if process is not None and process.paused:
            process.backlog.append(act)
            return
        self.events += 1
        self.current = process
        try:
            act()
        finally:
            self.current = None

    def note(self, *words: object) -> None:
        line = f"{self.now_s:.6f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        if len(self.lines) < KEPT_LINES:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


class Process:
    """A process of the job on a host of its own.  Its clock shows `offset_s` + `rate` x virtual time."""

    def __init__(self, simulation: Simulation, name: str, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self.simulation, self.name = simulation, name
        self.alive, self.paused = True, False
        self.backlog: list[Callable[[], None]] = []
        self.on_death: list[Callable[[], None]] = []
        self._offset_s, self._rate = offset_s, rate
        self._tasks: list[Task] = []

    @property
    def clock_s(self) -> float:
        return self._offset_s + self._rate * self.simulation.now_s

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """`act` runs in this process after so many seconds of its clock."""
        self.simulation.at(seconds / self._rate, act, self)

    def spawn(self, target: Callable[[], None], name: str) -> Task:
        self._tasks = [task for task in self._tasks if not task.is_over]
        task = Task(self, target, name)
        self._tasks.append(task)
        self.after(0.0, task.begin)
        return task

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused, backlog = False, self.backlog
        self.backlog = []
        for act in backlog:
            self.simulation.at(0.0, act, self)

    def kill(self) -> None:
        """Ends it at once, from outside or by itself."""
        if not self.alive:
            return
        self.alive = False
        for act in list(self.on_death):
            act()
        for task in self._tasks:
            task.end()


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, target: Callable[[], None], name: str) -> None:
        self.process, self.name, self.is_over = process, name, False
        self.ended = Event(process.simulation)
        self._number = 0  # of the wait
        self._target = target
        self._greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            self._target()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - no thread may end so
            if self.process.alive:
                import traceback

                self.process.simulation.defects.append(
                    f"{self.process.name}: thread {self.name} ended by {type(error).__name__}: {error}\n"
                    + "".join(traceback.format_exception(error)[-4:])
                )
        self.is_over = True
        if self.process.alive:
            self.ended.set()

    def begin(self) -> None:
        self._switch(None)

    def _switch(self, value: Any) -> Any:
        simulation = self.process.simulation
        before, simulation.task = simulation.task, self
        self._greenlet.parent = _hub()
        try:
            self._greenlet.switch(value) if self._greenlet else self._greenlet.switch()
        finally:
            simulation.task = before

    def wait(self, timeout_s: float | None) -> bool:
        """In this task: until `wake` (True), or until the time is up by the clock of the process (False)."""
        if not self.process.alive:
            raise GreenletExit
        number = self._number
        if timeout_s is not None:
            self.process.after(max(0.0, timeout_s), lambda: self._continue(number, False))
        woken: bool = _hub().switch()
        if not self.process.alive:
            raise GreenletExit
        return woken

    def wake(self) -> None:
        number = self._number
        self.process.after(0.0, lambda: self._continue(number, True))

    def _continue(self, number: int, woken: bool) -> None:
        if number == self._number and not self.is_over:
            self._number += 1
            self._switch(woken)

    def end(self) -> None:
        """Ends the greenlet where it waits; one that runs now ends at its next wait."""
        self._number += 1
        self.is_over = True
        if self is not self.process.simulation.task and self._greenlet:
            self._greenlet.parent = getcurrent()
            before, self.process.simulation.task = self.process.simulation.task, self
            try:
                self._greenlet.throw(GreenletExit)
            finally:
                self.process.simulation.task = before


_HUBS: list[greenlet] = []


def _hub() -> greenlet:
    if not _HUBS:
        current = getcurrent()
        while current.parent is not None:
            current = current.parent
        _HUBS.append(current)
    return _HUBS[0]


# What stands for threading and time.


class Event:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._is_set = simulation, False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            task = self._simulation.task
            assert task is not None
            self._waiting.append(task)
            task.wait(timeout)
            self._waiting = [each for each in self._waiting if each is not task]
        return self._is_set


class Lock:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._owner = simulation, None
        self._waiting: list[Task] = []

    def __enter__(self) -> Lock:
        task: Any = self._simulation.task or self  # without a task: the loop of a server, which never waits in it
        while self._owner is not None:
            assert task is not self, "a server must not wait for a lock"
            self._waiting.append(task)
            task.wait(None)
        self._owner = task
        return self

    def __exit__(self, *_: object) -> None:
        self._owner = None
        if self._waiting:
            self._waiting.pop(0).wake()


class Condition(Lock):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._sleeping: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        task = self._simulation.task
        assert task is not None
        self._sleeping.append(task)
        self.__exit__()
        woken = task.wait(timeout)
        self._sleeping = [each for each in self._sleeping if each is not task]
        self.__enter__()
        return woken

    def notify_all(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        for task in sleeping:
            task.wake()


class Thread:
    def __init__(
        self, simulation: Simulation, target: Callable[..., None], name: str = "", args: tuple[Any, ...] = (),
        daemon: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.daemon = name, daemon
        self._simulation = simulation
        self._task: Task | None = None
        self._target = lambda: target(*args)

    def start(self) -> None:
        process = self._simulation.current
        assert process is not None
        self._task = process.spawn(self._target, self.name)

    def join(self, timeout: float | None = None) -> None:
        assert self._task is not None
        if not self._task.is_over:
            self._task.ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over


def threading_of(simulation: Simulation) -> Any:
    """What stands for the module threading."""
    from functools import partial

    return SimpleNamespace(
        Event=partial(Event, simulation),
        Lock=partial(Lock, simulation),
        Condition=partial(Condition, simulation),
        Thread=partial(Thread, simulation),
        current_thread=lambda: simulation.task,
    )


def time_of(simulation: Simulation) -> Any:
    """What stands for the module time: every clock is that of the process which asks."""

    def clock_s(*_: object) -> float:
        return simulation.current.clock_s if simulation.current else simulation.now_s

    def sleep(seconds: float) -> None:
        assert simulation.task is not None
        simulation.task.wait(seconds)

    return SimpleNamespace(
        monotonic=clock_s, time=clock_s, process_time=clock_s, clock_gettime=clock_s, sleep=sleep,
        CLOCK_MONOTONIC=1, CLOCK_BOOTTIME=7,
    )  # fmt: skip


class Loop(asyncio.BaseEventLoop):
    """The event loop of a process."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process, self._is_due, self._spawned = process, False, []
        self._selector = SimpleNamespace(select=lambda _: [], close=lambda: None)
        process.on_death.append(self._die)
        self.set_task_factory(self._make)

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._spawned = [each for each in self._spawned if not each.done()]
        self._spawned.append(task)
        return task

    def time(self) -> float:
        return self._process.clock_s

    def call_soon(self, *args: Any, **options: Any) -> Any:
        if not self._is_due:
            self._is_due = True
            self._process.after(0.0, self._turn)
        return super().call_soon(*args, **options)

    def call_at(self, when: float, *args: Any, **options: Any) -> Any:
        handle = super().call_at(when, *args, **options)
        self._process.after(max(0.0, when - self.time()) + ROUNDING_S, self._turn)
        return handle

    def _turn(self) -> None:
        self._is_due = False
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)
        if self._ready and not self._is_due:
            self._is_due = True
            self._process.after(0.0, self._turn)

    def _process_events(self, _: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """Events alone wake it."""

    def _die(self) -> None:
        for task in self._spawned:
            task._log_destroy_pending = False
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio prints that it was never retrieved
        self._ready.clear()
        self._scheduled.clear()
