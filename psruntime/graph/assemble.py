"""Puts the parts of a worker's training together: checkpoints, sessions, hooks, and the steps of the mode."""

from __future__ import annotations

from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.graph.checkpoint import Checkpoints
from psruntime.graph.hooks import CheckpointHook, PushHook, ViewHook
from psruntime.graph.inputs import InputStream
from psruntime.graph.loop import Steps, TrainingLoop
from psruntime.graph.place import Place
from psruntime.graph.prepare import Preparation
from psruntime.graph.round_steps import RoundSteps
from psruntime.graph.session import ViewSessionCreator
from psruntime.graph.steps import PushSteps, StepResult
from psruntime.graph.training import TrainGraph


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
) -> TrainingLoop:
    """The training loop of worker `index`, whose own server is (target, address).

    on_step: called with the result of every step.  close: as TrainingLoop.
    """
    target, address = server
    checkpoints = Checkpoints(graph, job.checkpoint_dir, job.keep, index)
    preparation = Preparation(graph, checkpoints, index, log)
    creator = ViewSessionCreator(target, address, index, graph.graph, place, preparation, log)
    checkpoint_hook = CheckpointHook(graph, checkpoints, job.save_steps, place.is_chief, log)
    stop_on_nan = job.on_nan == "stop"
    steps: Steps
    if graph.rounds is None:
        steps = PushSteps(graph, inputs, place, stop_on_nan, on_step)
        hook: ViewHook = PushHook(graph, creator, place, log, index)
    else:
        steps = RoundSteps(graph, inputs, place, creator, index, stop_on_nan, on_step)
        hook = ViewHook(graph, creator, place, log)
    return TrainingLoop(graph, creator, place, steps, [hook], checkpoint_hook, close)
