"""Puts the parts of a worker's training together: checkpoints, sessions, hooks, and the steps of the mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psruntime.config import JobConfig
from psruntime.graph.base.data_errors import DataErrors
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.checkpoint_hook import CheckpointHook
from psruntime.graph.loop.control_plane import Place
from psruntime.graph.loop.hooks import StepsOnly, ViewHook
from psruntime.graph.loop.push_steps import PushSteps, StepResult
from psruntime.graph.loop.replica_hook import ReplicaHook
from psruntime.graph.loop.round_steps import RoundSteps
from psruntime.graph.loop.session import ViewSessionCreator
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.loop.summaries import SummaryHook
from psruntime.graph.loop.training_loop import Steps, TrainingLoop
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.step.train_graph import TrainGraph


def assemble(
    graph: TrainGraph,
    inputs: InputStream,
    job: JobConfig,
    index: int,
    place: Place,
    server: tuple[str, str],
    on_step: Callable[[StepResult], None],
    close: Callable[[int], None],
    log: Callable[..., None],
    saved: Callable[[str, int], None] | None = None,
    on_skip: Callable[[], None] = lambda: None,
) -> TrainingLoop:
    """The training loop of worker `index`, whose own server is (target, address).

    on_step: called with the result of every step.  close: as TrainingLoop.  saved: as CheckpointHook.  on_skip:
    called for every batch that the model could not process and that was passed over.
    """
    target, address = server
    checkpoints = Checkpoints(graph, job.checkpoint_dir, job.keep, index)
    replicas = Replicas(graph) if job.replicate_every else None
    preparation = Preparation(graph, checkpoints, replicas, index, job.on_ps_loss == "partial", log)
    creator = ViewSessionCreator(target, address, index, graph.graph, place, preparation, log)

    view = ViewHook(graph, creator, place, log)

    def global_step() -> int:
        return view.global_step

    def require_chief(session: Any) -> None:
        assert creator.assignment is not None
        preparation.require_admitted(session, creator.assignment.incarnation)

    checkpoint_hook = CheckpointHook(
        graph, checkpoints, job.save_steps, global_step, place.is_chief, require_chief, place.pause,
        job.drain_timeout_s / 2, saved, log,
    )  # fmt: skip
    stop_on_nan = job.on_nan == "stop"
    data_errors = DataErrors(job.on_data_error == "skip", log, on_skip)
    of_steps = graph.is_step
    users = [StepsOnly(hook, of_steps, global_step, log) for hook in graph.model.spec.hooks]
    hooks: list[Any] = [
        *users,
        SummaryHook(graph, job.checkpoint_dir, job.summary_steps, global_step, place.is_chief, of_steps, log),
    ]
    if replicas:
        admitted = preparation.require_admitted
        every, now = job.replicate_every, lambda: creator.assignment
        hooks.append(ReplicaHook(graph, replicas, every, global_step, place.is_chief, now, admitted, log))
    hooks.append(checkpoint_hook)
    runner = StepRunner(graph, view, hooks)

    def has_stopped() -> bool:
        return any(hook.stop_requested for hook in users)

    steps: Steps
    if graph.rounds is None:
        steps = PushSteps(
            graph, inputs, place, creator, runner, view, index, job.pipeline, stop_on_nan, data_errors, on_step,
            has_stopped,
        )  # fmt: skip
    else:
        steps = RoundSteps(graph, inputs, place, creator, runner, index, stop_on_nan, data_errors, on_step, has_stopped)
    closing = checkpoint_hook.closing
    return TrainingLoop(graph, creator, place, steps, [view, runner, *hooks], closing, close)
