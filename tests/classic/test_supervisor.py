"""psruntime.Supervisor: each argument and method of tf.train.Supervisor, on the chief and on others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic import supervisor as module
from psruntime.classic.supervisor import Supervisor
from tests.support.joined_script import JoinedScript
from tests.support.local_cluster import LocalCluster
from tests.support.polling import poll_until

QUEUES = count()  # of the one worker: a queue outlives its session


class Graph:
    """Of a script: `w` falls by 1 a step, from 1; a local variable and a queue of its own."""

    def __init__(self) -> None:
        with tf1.device(tf1.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")):
            self.w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
            self.local = tf1.get_local_variable("local", [], initializer=tf1.ones_initializer())
            self.step = tf1.Variable(0, name="global_step", trainable=False)
            self.queue = tf1.FIFOQueue(4, tf1.float32, [[]], shared_name=f"numbers {next(QUEUES)}")
            self.runner = tf1.train.QueueRunner(self.queue, [self.queue.enqueue(tf1.ones([]))])
            self.number, self.put = self.queue.dequeue(), self.queue.enqueue(1.0)
            self.given = tf1.placeholder(tf1.float32, [], name="given")
            self.set_w = self.w.assign(self.given)
            self.product = self.w * self.given
            tf1.summary.scalar("loss", self.w)
            self.train = tf1.train.GradientDescentOptimizer(1.0).minimize(self.w, global_step=self.step)


class Scripts:
    """Scripts of one cluster, one after the other; each has a job of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> None:
        self._monkeypatch, self._cluster = monkeypatch, cluster
        self.opened: list[tuple[Any, JoinedScript]] = []

    def supervisor(self, build: Callable[[Graph], dict[str, Any]] = lambda _: {}, **job: Any) -> Supervisor:
        """One with arguments that `build` gives for the graph.  job: of JoinedScript."""
        self._cluster.forget(0)
        self.graph, self.member = tf1.Graph(), JoinedScript(self._cluster, **job)

        def join(name: str, place: Any, stock: Any, counting: Any, serves: Any) -> Any:
            self.stock = stock
            return self.member.open(stock, counting, serves)

        self._monkeypatch.setattr(module, "join_script", join)
        with self.graph.as_default():
            self.of = Graph()
            return Supervisor(coordinator="here:1", index=0, **build(self.of))


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    return LocalCluster(1)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> Iterator[Scripts]:
    yield Scripts(monkeypatch, cluster)


def tags(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.glob("events.*"):
        with suppress(tf1.errors.DataLossError):  # the last event is being written
            for event in tf1.train.summary_iterator(str(path)):
                found |= {value.tag for value in event.summary.value}
    return found


def saved(folder: Path, basename: str = "model.ckpt") -> list[int]:
    return sorted(int(path.stem.rsplit("-", 1)[1]) for path in folder.glob(f"{basename}-*.index"))


def filled(of: Graph, value: float) -> dict[str, Any]:
    return {"init_op": tf1.group(of.step.initializer, of.set_w), "init_feed_dict": {of.given: value}}


# The value of w and of the local variable once there is a session.
INITIAL: dict[str, tuple[Callable[[Graph], dict[str, Any]], tuple[float, float]]] = {
    "defaults": (lambda of: {}, (1, 1)),
    "init_op": (lambda of: {"init_op": tf1.global_variables_initializer()}, (1, 1)),
    "init_op, init_feed_dict": (lambda of: filled(of, 7.0), (7, 1)),
    "init_fn": (lambda of: {"init_fn": lambda session: session.run(of.set_w, {of.given: 5.0})}, (5, 1)),
    "init_fn alone": (
        lambda of: {
            "init_op": None,
            "init_fn": lambda session: session.run([of.set_w, of.step.initializer], {of.given: 3.0}),
        },
        (3, 1),
    ),
    "local_init_op": (lambda of: {"local_init_op": tf1.assign(of.local, 4.0)}, (1, 4)),
    "ready_op": (lambda of: {"ready_op": tf1.report_uninitialized_variables([of.w])}, (1, 1)),
    "no ready_op": (lambda of: {"ready_op": None, "ready_for_local_init_op": None}, (1, 1)),
    "ready_for_local_init_op": (
        lambda of: {"ready_for_local_init_op": tf1.report_uninitialized_variables([of.w])}, (1, 1),
    ),
    "no saver": (lambda of: {"saver": None}, (1, 1)),
    "global_step": (lambda of: {"global_step": of.step}, (1, 1)),
    "no global_step": (lambda of: {"global_step": None}, (1, 1)),
    "others": (
        lambda of: {
            "is_chief": False, "recovery_wait_secs": 1, "stop_grace_secs": 9, "local_init_run_options": None,
            "session_manager": None, "summary_op": None, "summary_writer": None,
        },
        (1, 1),
    ),
}  # fmt: skip


@pytest.mark.long
def test_each_argument_of_what_a_session_begins_with(scripts: Scripts) -> None:
    for name, (build, expected) in INITIAL.items():
        supervisor = scripts.supervisor(build)
        with supervisor.managed_session("grpc://unused") as session:
            of = scripts.of
            assert tuple(session.run([of.w, of.local])) == expected, name
            for number in (1, 2):
                assert session.run([of.train, of.step])[1] in (number - 1, number), name
            assert session.run([of.step, of.w]) == [2, expected[0] - 2], name
        assert scripts.member.done == 2 and scripts.member.finished, name
        assert scripts.member.left[-1][1] == "the job is done", name


def test_the_copies_of_a_worker_outlive_a_lost_session(scripts: Scripts) -> None:
    """As of an agent that acts by a copy of what the ps have, and neither saves nor initialises it."""
    sync: list[Any] = []

    def build(of: Graph) -> dict[str, Any]:
        shared = tf1.global_variables()
        with tf1.device("/job:worker/task:0/cpu:0"):
            copy = tf1.get_variable(f"copy_{next(QUEUES)}", [], initializer=tf1.zeros_initializer())
        sync.extend([copy.assign(of.w), copy])
        return {
            "saver": tf1.train.Saver(shared), "init_op": tf1.variables_initializer(shared),
            "ready_op": tf1.report_uninitialized_variables(shared),
        }  # fmt: skip

    with scripts.supervisor(build).managed_session() as session:
        session.run(sync[0])
        session.run(scripts.of.train)
        session._monitored.with_raw(lambda raw: raw).close()
        assert session.run([sync[1], scripts.of.w]) == [1, 0]
    assert len([event for event in scripts.member.events if event.startswith("session")]) == 2


def test_services_of_a_chief(scripts: Scripts, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    every = {"logdir": str(folder), "save_model_secs": 0.1, "save_summaries_secs": 0.1, "checkpoint_basename": "m"}
    supervisor = scripts.supervisor(lambda _: every)
    assert supervisor.save_path == f"{folder}/m" and supervisor.is_chief
    with supervisor.managed_session() as session:
        for _ in range(3):
            session.run(scripts.of.train)
        poll_until(lambda: 3 in saved(folder, "m"), 30, "a checkpoint of the service")
        poll_until(
            lambda: (session.run(scripts.of.train), "global_step/sec" in written(supervisor, folder))[1], 30, "speed"
        )
        supervisor.summary_computed(session, tf1.Summary(value=[tf1.Summary.Value(tag="own", simple_value=1.0)]))
        steps = int(session.run(scripts.of.step))
    assert saved(folder, "m")[-1] == steps, "the last checkpoint"
    assert {"loss", "own", "global_step/sec"} <= tags(folder)
    later = scripts.supervisor(lambda _: every)
    with later.managed_session() as session:
        assert session.run(scripts.of.step) == steps, "it continues"
    assert any("restored" in event for event in scripts.member.events)


def written(supervisor: Supervisor, folder: Path) -> set[str]:
    if supervisor.summary_writer.is_open:
        supervisor.summary_writer.flush()
    return tags(folder)


SILENT: dict[str, dict[str, Any]] = {
    "not the chief": {}, "save_model_secs=0": {"save_model_secs": 0}, "no saver": {"saver": None},
}  # fmt: skip


@pytest.mark.parametrize("case", SILENT)
def test_who_saves_nothing(case: str, scripts: Scripts, tmp_path: Path) -> None:
    folder, chief = tmp_path / "run", case != "not the chief"
    given = {"logdir": str(folder), "save_model_secs": 0.1, "save_summaries_secs": 0, **SILENT[case]}
    supervisor = scripts.supervisor(lambda _: given, chief=True)
    with supervisor.managed_session() as session:
        scripts.member.chief = chief
        session.run(scripts.of.train)
        session.serve()
    assert len(saved(folder)) <= (case == "not the chief"), "of a chief before it was no longer one"
    assert not tags(folder)


def test_a_successor_takes_up_the_services(scripts: Scripts, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = {"logdir": str(folder), "save_model_secs": 60, "is_chief": False}
    supervisor = scripts.supervisor(lambda _: given)
    assert not supervisor.is_chief
    session = supervisor.prepare_or_wait_for_session(start_standard_services=False)
    session.run(scripts.of.train)
    assert not saved(folder) and supervisor.start_standard_services(session) != []
    poll_until(lambda: saved(folder) == [1], 30, "its checkpoint")
    assert supervisor.is_chief and supervisor.start_standard_services(session) == []
    supervisor.stop()
    session.close()
    assert not supervisor.is_chief


def test_methods_by_which_a_script_stops(scripts: Scripts) -> None:
    supervisor = scripts.supervisor()
    session = supervisor.prepare_or_wait_for_session(config=tf1.ConfigProto(), max_wait_secs=60)
    assert supervisor.prepare_or_wait_for_session() is session and isinstance(session, tf1.Session)
    assert not supervisor.should_stop()
    seen: list[int] = []
    looper = supervisor.loop(0.01, lambda s, key: seen.append(int(s.run(key))), (session,), {"key": scripts.of.step})
    session.run(scripts.of.train)
    poll_until(lambda: 1 in seen, 30, "the loop")
    waiter = threading.Thread(target=supervisor.wait_for_stop)
    waiter.start()
    supervisor.request_stop()
    waiter.join(30)
    assert supervisor.should_stop() and not waiter.is_alive()
    supervisor.stop()
    assert not looper.is_alive() and scripts.member.left == []
    assert session.run(scripts.of.step) == 1, "`stop` closes no session"
    session.close()
    session.close()
    assert [reason for _, reason in scripts.member.left] == ["the job is done"]
    with pytest.raises(SystemExit):
        supervisor.prepare_or_wait_for_session()
    assert Supervisor.Stop is Supervisor.stop and Supervisor.PrepareSession is Supervisor.prepare_or_wait_for_session


def test_a_second_thread_that_closes_waits_for_the_first_and_its_step(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = scripts.supervisor().prepare_or_wait_for_session()
    of, member, others_stopped = scripts.of, scripts.member, threading.Event()
    own_end = member.await_end
    monkeypatch.setattr(member, "await_end", lambda assignment: (others_stopped.wait(30), own_end(assignment))[1])
    done: list[str] = []

    def start(what: str, function: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: (function(), done.append(what)))
        thread.start()
        return thread

    def step() -> None:
        session.run([of.number, of.train])  # nothing is in the queue yet

    threads = [start("step", step)]
    poll_until(lambda: session._monitored._step_hook._under_way, 30, "the step")
    threads += [start("close", session.close)]
    poll_until(session.should_stop, 30, "the end")
    threads += [start("close again", session.close)]
    assert done == [] and not member.finished
    session.run(of.put)
    threads[0].join(30)
    assert done == ["step"] and member.done == 1
    others_stopped.set()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == ["close", "close again", "step"] and member.finished


def test_the_end_of_the_job_stops_the_script(scripts: Scripts) -> None:
    supervisor, own = scripts.supervisor(steps=3), 0
    with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            session.run(scripts.of.train)
            own += 1
        with pytest.raises(tf1.errors.OutOfRangeError):
            session.run(scripts.of.train)
        assert session.run(scripts.of.step) == 3, "what is no step runs on"
    assert own == 3


@pytest.mark.parametrize("collected", [True, False])
def test_queue_runners(collected: bool, scripts: Scripts) -> None:
    """They fill on over a lost session, and their end is no lost session."""
    supervisor = scripts.supervisor()
    if collected:
        with scripts.graph.as_default():
            tf1.train.add_queue_runner(scripts.of.runner)
    session = supervisor.prepare_or_wait_for_session()
    threads = supervisor.start_queue_runners(session, [scripts.of.runner])
    assert bool(threads) is not collected, "they run once"
    assert [session.run(scripts.of.number) for _ in range(9)] == [1.0] * 9
    lost = session._monitored.with_raw(lambda raw: raw)
    lost.close()
    assert [session.run(scripts.of.number) for _ in range(9)] == [1.0] * 9
    assert session._monitored.with_raw(lambda raw: raw) is not lost
    opened = len([event for event in scripts.member.events if event.startswith("session")])
    supervisor.stop()
    with pytest.raises(tf1.errors.OutOfRangeError):
        for _ in range(9):
            session.run(scripts.of.number)
    assert opened == len([event for event in scripts.member.events if event.startswith("session")]) == 2
    session.close()


def fails(where: str, supervisor: Supervisor, session: Any) -> None:
    def fail() -> None:
        raise ValueError("mine")

    if where == "the block":
        fail()
    if where == "a loop":
        supervisor.loop(None, fail)
    if where == "request_stop":
        try:
            fail()
        except ValueError as error:
            supervisor.request_stop(error)
    supervisor.coord.wait_for_stop(30)


@pytest.mark.parametrize("where", ["the block", "a loop", "request_stop"])
def test_an_error_is_raised_at_the_end_and_holds_nobody_up(where: str, scripts: Scripts) -> None:
    supervisor = scripts.supervisor()
    with pytest.raises(ValueError, match="mine"), supervisor.managed_session() as session:
        fails(where, supervisor, session)
    assert scripts.member.left[0] == ("error", "ValueError") and not scripts.member.finished


def test_the_end_of_the_input_is_no_error(scripts: Scripts) -> None:
    with scripts.supervisor().managed_session():
        raise tf1.errors.OutOfRangeError(None, None, "no more data")
    assert scripts.member.finished


def test_the_session_is_one_of_tensorflow(scripts: Scripts, tmp_path: Path) -> None:
    supervisor = scripts.supervisor()
    with supervisor.prepare_or_wait_for_session() as session:
        of = scripts.of
        assert tf1.get_default_session() is session and tf1.get_default_graph() is session.graph
        assert of.w.eval() == 1 and tf1.train.global_step(session, of.step) == 0  # by the default session, and by this
        session.make_callable(of.train)()
        assert scripts.member.done == 1, "a step by a callable is one"
        double = session.make_callable(of.product, [of.given])
        assert double(2.0) == 0 and scripts.member.done == 1
        assert session.list_devices() and session.sess_str and session.graph_def.node
        path = supervisor.saver.save(session, str(tmp_path / "mine"), global_step=of.step)
        session.run(of.set_w, {of.given: 8.0})
        supervisor.saver.restore(session, path)
        assert session.run(of.w) == np.float32(0)
        assert tf1.train.start_queue_runners(session, supervisor.coord) == []
    assert scripts.member.finished


def test_mistakes_are_one_line(scripts: Scripts, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        scripts.supervisor(lambda _: {"session_manager": tf1.train.SessionManager()})
    assert ended.value.code == 2
    assert "psruntime.Supervisor: session_manager is not for a job" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="requires a summary writer"):
        scripts.supervisor().summary_computed(None, None)
    with pytest.raises(SystemExit), scripts.supervisor(lambda _: {"logdir": "nowhere"}).managed_session() as session:
        raise SystemExit(3)
    assert session.is_closed


def test_a_checkpoint_is_waited_for(scripts: Scripts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = scripts.supervisor(lambda _: {"logdir": str(tmp_path)})
    with pytest.raises(SystemExit):
        supervisor.prepare_or_wait_for_session(wait_for_checkpoint=True, max_wait_secs=0)
    assert "has had no checkpoint for 0 s (max_wait_secs)" in capsys.readouterr().err
