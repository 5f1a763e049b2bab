"""What every part of one worker's training has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from psruntime.config import JobConfig
from psruntime.graph.input.data_errors import DataErrors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.session.control_plane import ControlPlane
from psruntime.graph.step.train_graph import TrainGraph


@dataclass(frozen=True)
class WorkerRun:
    """The training of worker `index`.

    inputs: its batches.  control_plane: the job, as the coordinator has it.  log: writes an event with its facts.
    data_errors: what becomes of a step that fails in the user's code.  on_checkpoint: called with the seconds that it
    took to copy and write one.
    """

    graph: TrainGraph
    inputs: InputStream
    control_plane: ControlPlane
    job: JobConfig
    index: int
    log: Callable[..., None]
    data_errors: DataErrors = field(default_factory=DataErrors)
    on_checkpoint: Callable[[float], None] = lambda _: None
