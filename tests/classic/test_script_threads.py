"""The session of a script from several threads: who may do what, and what becomes of a lost session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.hooks import StepHook, Tally
from psruntime.classic.script_session import ScriptSession
from psruntime.classic.shared_session import SharedSession
from psruntime.errors import JobFailedError
from psruntime.graph.session.session import ViewSession
from tests.classic.test_script_folders import STOCK
from tests.support.joined_script import JoinedScript
from tests.support.local_cluster import LocalCluster
from tests.support.polling import poll_until


class Threads:
    """What runs in them, and their errors."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[..., Any], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


class Script:
    """`w` is the number of steps; a queue that nothing fills."""

    def __init__(self, cluster: LocalCluster, steps: int = 1_000_000) -> None:
        cluster.forget(0)
        self.graph, self.member = tf1.Graph(), JoinedScript(cluster, steps)
        with self.graph.as_default():
            with tf1.device(tf1.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")):
                self.w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
                self.step = tf1.train.get_or_create_global_step()
                self.queue = tf1.FIFOQueue(4, tf1.float32, [[]], shared_name=f"of {id(self)}")
                self.put, self.take, self.end = (
                    self.queue.enqueue(1.0), self.queue.dequeue(), self.queue.close(cancel_pending_enqueues=True),
                )  # fmt: skip
                self.train = tf1.train.GradientDescentOptimizer(-1.0).minimize(self.w, self.step)
            counting = StepCounting(self.graph)
            self.session: ScriptSession = self.member.open(replace(STOCK, scaffold=tf1.train.Scaffold()), counting)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.session.run(self.train)

    def poll(self, until: threading.Event) -> None:
        last = 0
        while not until.is_set():
            assert last <= (last := int(self.session.run(self.step)))
            assert not self.session.should_stop()

    def lose(self) -> None:
        """As a lost ps does."""
        self.session._tf_sess().close()


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    return LocalCluster(1)


@pytest.fixture
def threads() -> Iterator[Threads]:
    yield Threads()


def test_each_step_of_each_thread_is_counted_and_nothing_else(cluster: LocalCluster, threads: Threads) -> None:
    script, done = Script(cluster), threading.Event()
    threads.start(script.poll, done)
    steppers = [threads.start(script.steps, 20) for _ in range(3)]
    for thread in steppers:
        thread.join(60)
    done.set()
    threads.join()
    assert not threads.errors and script.session.run([script.step, script.w]) == [60, 60]
    assert script.member.done == 60 and script.session.graph is script.graph
    script.session.close()


def test_a_lost_session_is_replaced_once(cluster: LocalCluster, threads: Threads) -> None:
    script, done = Script(cluster), threading.Event()
    for _ in range(2):
        threads.start(script.poll, done)
    for round_ in (1, 2, 3):
        script.lose()
        script.steps(2)
        opened = [event for event in script.member.events if event.startswith("session")]
        assert len(opened) == 1 + round_
    done.set()
    threads.join()
    assert not threads.errors and script.session.run(script.w) == script.member.done == 6
    script.session.close()


def test_a_closed_queue_is_no_lost_session(cluster: LocalCluster, threads: Threads) -> None:
    script = Script(cluster)
    for _ in range(4):
        script.session.run(script.put)
    waiting = threads.start(script.session.run, script.put)
    script.session.run(script.step)
    script.session.run(script.end)
    waiting.join(60)
    threads.start(script.session.run, script.put)
    threads.join()
    assert [type(error) for error in threads.errors] == [tf1.errors.CancelledError] * 2
    assert len([event for event in script.member.events if event.startswith("session")]) == 1
    script.session.close()


def test_another_thread_closes_it(cluster: LocalCluster, threads: Threads) -> None:
    script = Script(cluster)
    script.steps(2)
    threads.start(script.session.close)
    poll_until(script.session.should_stop, 30, "the end")
    with pytest.raises((tf1.errors.OutOfRangeError, RuntimeError), match=r"no further step|is closed"):
        script.steps(1)
    threads.join()
    assert not threads.errors and script.member.finished and script.member.done == 2
    with pytest.raises(RuntimeError, match="the session is closed"):
        script.session.run(script.step)
    assert script.session.should_stop()
    with pytest.raises(RuntimeError, match="the session is closed"):
        script.session.close()


def test_a_block_whose_session_another_thread_closes_ends_without_an_error(
    cluster: LocalCluster, threads: Threads
) -> None:
    script = Script(cluster)
    with script.session as session:
        threads.start(session.close)
        while not session.should_stop():
            session.run(script.train)
    threads.join()
    assert not threads.errors and script.member.left[0][1] == "the job is done"


def test_an_error_of_the_job_ends_every_thread_with_its_code(
    cluster: LocalCluster, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(cluster)

    def fails(_: Any) -> bool:
        raise JobFailedError("ps 0 is gone")

    monkeypatch.setattr(script.member, "is_current", fails)
    threads.start(script.session.run, script.step)
    threads.join()
    assert [error.code for error in threads.errors if isinstance(error, SystemExit)] == [1]
    with pytest.raises(SystemExit) as ended:
        script.steps(1)
    assert ended.value.code == 1
    assert [event for event in script.member.events if "gone" in event] == [
        "error {'reason': JobFailedError('ps 0 is gone')}"
    ]


class Gate:
    """A control plane whose gate is open for `room` steps more."""

    def __init__(self, room: int) -> None:
        self.room, self.asked, self.stepped_at = room, list[int](), list[int]()
        self.drains = False

    def is_current(self, _: Any) -> bool:
        return True

    def may_step(self, under_way: int = 0) -> bool:
        self.asked.append(under_way)
        if under_way == 0:
            poll_until(lambda: self.room > 0 or self.drains, 30, "room")
        if self.drains or self.room == 0:
            return False
        self.room -= 1
        return True

    def stepped(self, global_step: int) -> None:
        self.stepped_at.append(global_step)


class Counting:
    def reads(self, fetches: Any) -> list[Any]:
        return list(fetches)

    def require_room(self, global_step: int) -> None:
        pass


def hook_at(gate: Gate) -> StepHook:
    sessions = type("Sessions", (), {"assignment": None})()
    return StepHook(Counting(), sessions, gate, Tally(), lambda *_, **__: None)  # type: ignore[arg-type]


def context(*fetches: str) -> Any:
    return tf1.train.SessionRunContext(tf1.train.SessionRunArgs(list(fetches)), None)


def values(*results: int) -> Any:
    return tf1.train.SessionRunValues(list(results) or None, None, None)


def test_a_step_that_may_not_begin_beside_another_waits_for_its_end(threads: Threads) -> None:
    gate = Gate(room=1)
    hook = hook_at(gate)
    assert hook.before_run(context()) is None and not gate.asked, "no step"
    hook.before_run(context("train"))
    other = threads.start(hook.before_run, context("train"))
    poll_until(lambda: 1 in gate.asked, 30, "the other's question")
    assert other.is_alive() and gate.asked == [0, 1]
    gate.room = 1
    hook.after_run(None, values())
    assert other.is_alive(), "the end of a run that is no step is none"
    hook.after_run(None, values(7))
    threads.join()
    assert gate.asked == [0, 1, 0] and gate.stepped_at == [7] and not threads.errors


def test_a_failed_step_is_under_way_no_more(threads: Threads) -> None:
    gate = Gate(room=3)
    hook = hook_at(gate)
    hook.before_run(context("train"))
    hook.before_run(context("train"))  # it is repeated
    hook.failed()
    hook.before_run(context("train"))
    assert gate.asked == [0, 0, 0]


def test_who_closes_waits_for_the_steps_of_others(threads: Threads) -> None:
    gate = Gate(room=5)
    hook, began, go_on = hook_at(gate), threading.Event(), threading.Event()

    def step() -> None:
        hook.before_run(context("train"))
        began.set()
        go_on.wait(30)
        hook.after_run(None, values(1))

    threads.start(step)
    began.wait(30)
    closing = threads.start(hook.take_no_more, 30.0)
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    threads.join()
    with pytest.raises(tf1.errors.OutOfRangeError):
        hook.before_run(context("train"))
    assert hook.before_run(context()) is None and gate.stepped_at == [1] and not threads.errors


def test_a_session_that_cannot_be_opened_at_once() -> None:
    """A hook that finds the session lost is called again with the next."""

    class Creator:
        opened = 0

        def create_session(self) -> Any:
            self.opened += 1
            return ViewSession()

    class Hook(tf1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            if creator.opened < 3:
                raise tf1.errors.UnavailableError(None, None, "gone")

    creator = Creator()
    with tf1.Graph().as_default():
        one, hooks = tf1.constant(1), [Hook()]
        shared = SharedSession(creator, hooks, hooks, [], 1.0).create_session()
        assert shared.run(one) == 1 and creator.opened == 3
        shared.close()
        with pytest.raises(RuntimeError, match="the session is closed"):
            shared.run(one)
