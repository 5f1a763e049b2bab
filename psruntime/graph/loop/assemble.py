"""Puts the parts of a worker's training together: checkpoints, sessions, hooks, and the steps of the mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from psruntime.config.schedule import SYNC
from psruntime.core.accounting.update_outcome import SentUpdate
from psruntime.errors import PsRuntimeError
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.hooks.checkpoint_hook import CheckpointHook
from psruntime.graph.hooks.model_hooks import StepsOnly
from psruntime.graph.hooks.replica_hook import ReplicaHook
from psruntime.graph.hooks.summary_hook import SummaryHook
from psruntime.graph.hooks.trace_hook import TraceHook
from psruntime.graph.loop.async_loop import AsyncLoop
from psruntime.graph.loop.local_rounds import LocalRounds
from psruntime.graph.loop.local_training import LocalTraining
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.round_loop import RoundLoop
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.loop.training_loop import Steps, TrainingLoop
from psruntime.graph.session.session import ViewSessionCreator, WorkerServer
from psruntime.graph.session.step_result import StepResult
from psruntime.graph.session.view_hook import ViewHook
from psruntime.graph.session.worker_run import WorkerRun


def assemble(
    run: WorkerRun,
    built: LoopGraph,
    server: WorkerServer,
    on_step: Callable[[StepResult], None],
    close: Callable[[int], None],
    saved: Callable[[str, int], None] | None = None,
    on_update: Callable[[SentUpdate], None] | None = None,
    writer: SummaryWriter | None = None,
    alone: LoopGraph | None = None,
) -> TrainingLoop:
    """The training loop of a worker.

    built: the graph of `run`, with what is in it beside the steps.
    on_step: called with the result of every step.  close: as in TrainingLoop.  saved: as in CheckpointHook.
    on_update: as in AsyncLoop.  writer: of the summaries; None: there are none.
    alone: the graph of steps by itself; None: the job has no local stage.
    """
    graph, checkpoints, replicas = run.graph, built.checkpoints, built.replicas
    if run.inputs.shards is not None:
        run.inputs.take_shards_from(run.control_plane.shards)
    has_rounds = graph.rounds is not None

    def is_left() -> bool:
        with suppress(PsRuntimeError):  # the membership has ended
            return (run.control_plane.mode == SYNC) != has_rounds and not checkpoint_hook.is_writing
        return False

    creator = ViewSessionCreator(
        graph.graph, run.control_plane, built.preparation, run.log, partial(built.sessions.open, server, is_left),
        built.initialise, has_rounds,
    )  # fmt: skip
    view = ViewHook(run, creator)

    def global_step() -> int:
        return view.global_step

    def incarnation() -> int:
        assert creator.assignment is not None
        return creator.assignment.incarnation

    def has_stopped() -> bool:
        for hook in users:
            if hook.failure:
                raise hook.failure
        return any(hook.stop_requested for hook in users) or (training is not None and training.has_stopped)

    def stepped(result: StepResult) -> None:
        summaries.step(result)
        trace.step(result)
        on_step(result)

    checkpoint_hook = CheckpointHook(run, checkpoints, global_step, incarnation, saved)
    users = [StepsOnly(hook, graph.is_step, global_step, run.log) for hook in graph.model.spec.hooks]
    summaries = SummaryHook(run, writer, global_step)
    trace = TraceHook(run, global_step)
    hooks: list[Any] = [*users, summaries, trace]
    if replicas:
        hooks.append(ReplicaHook(run, replicas, global_step, incarnation))
    hooks.append(checkpoint_hook)
    runner = StepRunner(graph, view, hooks)
    run.control_plane.while_paused(runner.on_pause)
    training = LocalTraining(run, built, alone, server, runner, on_step) if alone and graph.rounds else None
    steps: Steps
    if graph.rounds is None:
        steps = AsyncLoop(run, creator, runner, view, stepped, has_stopped, on_update)
    else:
        local = LocalRounds(training, run.inputs) if training else None
        steps = RoundLoop(run, creator, runner, stepped, has_stopped, on_update, local)

    def leave() -> None:
        steps.leave()
        trace.leave()
        checkpoint_hook.leave()

    return TrainingLoop(run, creator, steps, [view, runner, *hooks], checkpoint_hook.closing, close, leave)
