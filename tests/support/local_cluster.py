"""ps and worker servers in one process, and a control plane that says yes: the graph side without a coordinator."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.job import as_trained_alone
from psruntime.config.schedule import Schedule
from psruntime.core.accounting.accounts import SentUpdate
from psruntime.core.members.messages import Assignment, Ending, Prepared
from psruntime.core.members.view import PsEntry, View
from psruntime.core.plan.plan import Plan, make_plan
from psruntime.core.rounds import round_messages
from psruntime.core.rounds.round_messages import Action, Applied, Broken, CutOff
from psruntime.core.rounds.rounds import Rounds
from psruntime.graph.base.server import start_server
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.input.batches import DataErrors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.training_loop import TrainingLoop
from psruntime.graph.model.gradients import ONE_TOWER, Towers
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.graph.session.ps_state import LedgerReader, PsState
from psruntime.graph.session.session import WorkerServer, open_session
from psruntime.graph.session.worker_run import Observers, StepResult, WorkerRun
from psruntime.graph.step.build import build_training
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.model import Context, Model, ModelSpec
from tests.support.shards import LocalShards
from tests.support.stock import contents

INCARNATION = 77


@dataclass
class LocalControlPlane:
    """The control plane of one worker that is always the chief; `steps` steps and the job is over."""

    view: View
    steps: int
    incarnation: int = INCARNATION
    prepare: bool = True
    finished: bool = False
    done: int = 0
    pushed: int = 0
    prepared_at: list[int] = field(default_factory=list)
    steps_lost: int = 0
    rounds: Rounds = field(default_factory=Rounds)
    closed: int = 0
    saved_step: int | None = None  # of a checkpoint that somebody has written
    seen_step: int = 0
    shards: LocalShards = field(default_factory=LocalShards)
    waited: list[str] = field(default_factory=list)  # what `waits_for_shard` was told
    mode: str = "async"
    bound: int | None = None
    learning_rate_scale: float = 1.0
    schedule: Schedule | None = None

    def await_view(self) -> Assignment:
        steps = {"saved_step": self.saved_step, "seen_step": self.seen_step}
        return Assignment(self.view, self.incarnation, self.prepare, **steps)

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        self.prepare = False
        self.rounds.begin(prepared.global_step, prepared.attempt)
        self.prepared_at.append(prepared.global_step)
        self.steps_lost += prepared.steps_lost

    def no_session(self, assignment: Assignment, why: str) -> None:
        self.back_off(f"no session on view {assignment.view.number}: {why}")

    def entered(self, assignment: Assignment) -> None:
        pass

    def is_current(self, assignment: Assignment) -> bool:
        return assignment.view == self.view and assignment.incarnation == self.incarnation

    def is_chief(self) -> bool:
        return True

    def wants_checkpoint(self) -> bool:
        return False

    def while_paused(self, act: Callable[[], None]) -> None:
        self.act_in_pause = act

    def may_step(self, under_way: int = 0) -> bool:
        await_writes()
        return self.done + under_way < self.steps

    def count_push(self) -> None:
        self.pushed += 1

    def stepped(self, global_step: int) -> None:
        self.done += 1

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        self.waited.append(reason)

    def next_action(
        self, assignment: Assignment, report: Any, starved: round_messages.Starved | None = None
    ) -> Action | None:
        assert not isinstance(report, Broken), report
        await_writes()
        self.rounds.enter(assignment.incarnation, 0)
        self.rounds.set_starved(assignment.incarnation, starved.since if starved else None)
        if isinstance(report, CutOff):
            self.rounds.cut_off(assignment.incarnation, report)
        elif report:
            is_close = isinstance(report, Applied)
            past = self.rounds.close(report) if is_close else self.rounds.contribute(assignment.incarnation, report)
            self.closed += past is not None
        self.rounds.limit = self.rounds.global_step + self.steps - self.closed
        if self.closed == self.steps:
            return None
        self.rounds.open_next(1)
        return self.rounds.action_of(assignment.incarnation, chief=0)

    def fails(self, reason: str) -> None:
        pass

    def await_end(self, assignment: Assignment) -> Ending:
        return Ending.OVER if self.finished else Ending.CLOSE

    def saves(self, under_way: bool) -> None:
        pass

    def saved(self, global_step: int) -> None:
        pass

    def save_failed(self, cause: str) -> None:
        pass

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:
        raise AssertionError(obstacle)

    def closed_part(self) -> None:
        pass

    def report_finished(self, assignment: Assignment) -> None:
        self.finished = True

    def back_off(self, why: str) -> None:
        raise AssertionError(why)


def await_writes() -> None:
    """Steps are so short here that a checkpoint would be due again before it is written."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


Server = tuple[Any, str]  # and its address
Idle = dict[tuple[str, int], list[Server]]
idle: Idle = {}  # servers of clusters that nobody uses any more
idle_as_built: Idle = {}  # those that were started where graphs run as they are built


def _server(role: str, index: int, cpus: int = 1) -> Server:
    """An empty server.  TensorFlow's never end, and each takes threads, so they are used again."""
    if cpus > 1 or not idle.get((role, index)):
        server: Server = start_server(role, index, "127.0.0.1", 0, "lo", cpus)
        return server
    server, address = idle[role, index].pop()
    tf1.Session.reset(server.target)
    return server, address


def _numbered(servers: list[Server]) -> list[tuple[str, int, Server]]:
    return [("ps", index, server) for index, server in enumerate(servers)]


class LocalCluster:
    """`num_ps` ps and one worker, index 0, with so many CPU devices, all in this process."""

    def __init__(self, num_ps: int, max_staleness: int | None = None, max_workers: int = 8, cpus: int = 1) -> None:
        self.max_workers = max_workers
        self.max_staleness = max_staleness
        self.ps = [_server("ps", i) for i in range(num_ps)]
        self.worker, self.address = _server("worker", 0, cpus)
        self.server = WorkerServer(0, self.worker.target, self.address)
        for role, index, server in [("worker", 0, (self.worker, self.address)), *_numbered(self.ps)]:
            weakref.finalize(self, idle.setdefault((role, index), []).append, server)
        self.states = [PsState(server.target, i, max_workers) for i, (server, _) in enumerate(self.ps)]
        self.fence({0: INCARNATION})
        self.view = View(1, tuple(PsEntry(i, address, i + 1) for i, (_, address) in enumerate(self.ps)))

    def fence(self, admitted: dict[int, int]) -> None:
        for state in self.states:
            state.write_admitted(admitted, self.max_staleness)

    def forget(self, ps: int) -> None:
        """The ps comes back empty."""
        tf1.Session.reset(self.ps[ps][0].target)
        self.states[ps] = PsState(self.ps[ps][0].target, ps, self.max_workers)
        self.states[ps].write_admitted({0: INCARNATION}, None)

    def session(self, graph: Any) -> Any:
        return open_session(self.server, graph, self.view)

    def session_of(self, worker: int, graph: Any) -> Any:
        """Of another worker than 0, which has a server of its own."""
        server, address = _server("worker", worker)
        weakref.finalize(self, idle.setdefault(("worker", worker), []).append, (server, address))
        return open_session(WorkerServer(worker, server.target, address), graph, self.view)

    def ledgers(self, plan: Plan) -> dict[str, Any]:
        """Bucket name -> ledger, read on each ps."""
        return {
            name: ledger
            for i, (server, _) in enumerate(self.ps)
            for name, ledger in LedgerReader(server.target, i, plan, self.max_workers).ledgers().items()
        }


@dataclass
class Run:
    """A training run on a LocalCluster, and what it left behind.

    skipped: "input" or "step" for each batch that was passed over.  updates: what a record would be made of.
    """

    cluster: LocalCluster
    job: JobConfig
    graph: TrainGraph
    control_plane: LocalControlPlane
    results: list[StepResult] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    updates: list[SentUpdate] = field(default_factory=list)
    checkpoints: Checkpoints = field(init=False)
    built: LoopGraph = field(init=False)

    def saved(self) -> dict[str, Any]:
        """Every tensor of the newest checkpoint."""
        path = self.checkpoints.latest()
        assert path is not None
        return contents(path)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.events if name == event]


def train(
    cluster: LocalCluster,
    model: Model,
    steps: int,
    close: Callable[[int], None] = lambda _: None,
    make_control_plane: Callable[[View, int], LocalControlPlane] = LocalControlPlane,
    saved: Callable[[str, int], None] = lambda *_: None,
    towers: Towers = ONE_TOWER,
    batch_size: int = 8,
    built: LoopGraph | None = None,
    **settings: Any,
) -> Run:
    """Trains `steps` steps in this thread; without summaries, unless they are asked for, since they take time.

    built: that of an earlier run of this mode.
    """
    defaults = {"ps": len(cluster.ps), "max_workers": cluster.max_workers, "summary_steps": 0}
    job = JobConfig(**{**defaults, **settings})
    events: list[tuple[str, dict[str, Any]]] = []
    skipped: list[str] = []

    def log(event: str, **facts: Any) -> None:
        events.append((event, facts))

    def data_errors(source: str) -> DataErrors:
        return DataErrors(job.on_data_error == "skip", log, lambda: skipped.append(source))

    context, shares = Context("train", 0, 1, batch_size, "", 3), job.batch_policy == "throughput"
    inputs = InputStream(model, context, job.local_steps * towers.count, data_errors("input"), shares)
    plan = make_plan(record_specs(model, inputs, "train"), job.ps, *job.plan_sizes)
    schedule = Schedule.of(job.schedule)
    has_local = schedule is not None and schedule.has_local
    graph = built.train if built else build_training(model, inputs, plan, job, 0, towers, has_local)
    warm_start = WarmStart(job, 0, log) if job.warm_start else None
    if warm_start:
        warm_start.check(graph)
    control_plane = make_control_plane(cluster.view, steps)
    control_plane.mode = job.mode
    run = Run(cluster, job, graph, control_plane, events=events, skipped=skipped)
    writer = SummaryWriter(job.checkpoint_dir, log) if job.checkpoint_dir else None
    observers = Observers(run.results.append, on_saved=saved, on_update=run.updates.append, summaries=writer)
    worker_run = WorkerRun(graph, inputs, control_plane, job, 0, log, data_errors("step"), observers)
    run.built = built or LoopGraph.around(graph, job, 0, log, inputs.shards is not None, warm_start)
    alone = None
    if has_local:
        control_plane.schedule, own_job = schedule, as_trained_alone(job)
        own_graph = build_training(model, inputs, plan, own_job, 0, towers, has_local)
        alone = LoopGraph.around(own_graph, own_job, 0, log)
    run.checkpoints = run.built.checkpoints
    try:
        TrainingLoop(worker_run, run.built, cluster.server, close, alone).run()
    finally:
        inputs.close()
        if writer:
            writer.close()
    return run


def graph_of(worker: int, run: Run, model: Model) -> TrainGraph:
    """The graph of another worker of the job that was run."""
    inputs = InputStream(model, Context("train", worker, 2, 8, "", 3), run.job.local_steps)
    inputs.close()
    return build_training(model, inputs, run.graph.plan, run.job, worker)


def linear_model(optimizer: Callable[[Any], Any], learning_rate: Any = 0.1, name: str = "tests.linear") -> Model:
    """A two-layer regression on fixed data; 8 examples a batch, the batches in a fixed order."""

    def input_fn(context: Context) -> Any:
        generator = tf1.data.Dataset.range(1000)

        def example(i: Any) -> tuple[Any, Any]:
            x = tf1.random.stateless_uniform([5], seed=[tf1.cast(i, tf1.int32), 1])
            return x, tf1.reduce_sum(x * x)

        return generator.map(example).batch(context.batch_size)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        initializer = tf1.glorot_uniform_initializer(seed=5)
        hidden = tf1.get_variable("hidden/kernel", [5, 16], initializer=initializer)
        bias = tf1.get_variable("hidden/bias", [16], initializer=tf1.zeros_initializer())
        out = tf1.get_variable("out", [16, 1], initializer=initializer)
        prediction = tf1.matmul(tf1.nn.tanh(tf1.matmul(features, hidden) + bias), out)[:, 0]
        loss = tf1.reduce_mean(tf1.square(prediction - labels))
        return ModelSpec(loss, optimizer, learning_rate)

    return Model(name, input_fn, model_fn)


def with_spec(model: Model, **changes: Any) -> Model:
    """The model with other entries in what its model_fn returns."""

    def model_fn(*arguments: Any) -> ModelSpec:
        return replace(model.model_fn(*arguments), **changes)

    return replace(model, model_fn=model_fn)
