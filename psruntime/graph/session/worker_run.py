"""What every part of one worker's training has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from psruntime.config import JobConfig
from psruntime.core.accounting.update_outcome import SentUpdate
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.input.data_errors import DataErrors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.session.control_plane import ControlPlane
from psruntime.graph.session.step_result import StepResult
from psruntime.graph.step.train_graph import TrainGraph


@dataclass(frozen=True)
class Observers:
    """What is called with the results of the training.

    on_step: with the result of every step.  on_checkpoint: with the seconds that it took to copy and write one.
    on_saved: with the path of each checkpoint that is written here, and its global step.
    on_update: with every update and what became of it; None: updates are not recorded.
    summaries: the writer of the summaries; None: there are none.
    """

    on_step: Callable[[StepResult], None] = lambda _: None
    on_checkpoint: Callable[[float], None] = lambda _: None
    on_saved: Callable[[str, int], None] = lambda *_: None
    on_update: Callable[[SentUpdate], None] | None = None
    summaries: SummaryWriter | None = None


@dataclass(frozen=True)
class WorkerRun:
    """The training of worker `index`.

    inputs: its batches.  control_plane: the job, as the coordinator has it.  log: writes an event with its facts.
    data_errors: what becomes of a step that fails in the user's code.
    """

    graph: TrainGraph
    inputs: InputStream
    control_plane: ControlPlane
    job: JobConfig
    index: int
    log: Callable[..., None]
    data_errors: DataErrors = field(default_factory=DataErrors)
    observers: Observers = field(default_factory=Observers)
