"""All that a worker builds before it joins: what the user's model has a part in, so that its mistakes show first."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.job import as_started_so, as_trained_alone
from psruntime.config.process import ProcessConfig, WorkerConfig
from psruntime.config.schedule import LOCAL
from psruntime.config.settings import param_words
from psruntime.core.plan.plan import make_plan, report
from psruntime.graph.base.server import gpu_count, limit_gpus
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.base.types import Array
from psruntime.graph.checkpoint.measured import require_metric
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.input.batches import DataErrors
from psruntime.graph.input.input_stream import InputStream, require_fit
from psruntime.graph.loop.loop_graphs import LoopGraph, LoopGraphs
from psruntime.graph.model.evaluate import CheckpointEvaluation, PulledEvaluation
from psruntime.graph.model.gradients import find_towers
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.graph.session.summary_hook import Progress
from psruntime.graph.step.build import build_training
from psruntime.graph.step.setup import log_plan
from psruntime.model import EVAL, TRAIN, Context, Model, ModelSpec, input_seed, load_model
from psruntime.observe.records import Recorder
from psruntime.process.machine import gpus, smallest_memory


class Built:
    """The graphs of a worker's training, its input, and the files that it writes.

    model_fn is called for each of these graphs, in this order:

    1. Mode train, a scratch graph, to learn its variables; the plan is made from them.
    2. Mode train, on the parameters that a step pulls: the training graph.  With --schedule another one, if it has
       both mode sync and one of the others; otherwise that is built when an operator wants such a mode.  With a
       local stage one more.
    3. Mode eval, on pulled parameters, for the evaluation at the end (`evaluation`).
    4. Mode eval, on variables of its own, to measure checkpoints (`of_checkpoints`); only if the job does.

    Worker 0 builds the last two as well, for what is wrong with them; another when it has to evaluate.

    began_at: the global step of the job when this process began: another one reads in another order.
    log: writes an event with its facts.  at_exit: what has to be closed at the end of the process.
    tensors: of a step's plan, for the status.  alone: the graph of steps that a worker takes by itself, or None.

    Raises:
        UsageError, UserCodeError: the model, its input, or a setting of this process is wrong.
    """

    def __init__(
        self,
        where: ProcessConfig,
        worker: WorkerConfig,
        job: JobConfig,
        began_at: int,
        log: Callable[..., None],
        at_exit: ExitStack,
    ) -> None:
        self.where, self.job, self.began_at = where, job, began_at
        self._worker, self._log = worker, log
        self.progress = Progress(log)
        self.warm_start = WarmStart(job, where.index, log) if job.warm_start else None
        self.summaries = self._summary_writer(at_exit)
        self.owner = self._folder_owner()

        self.gpu_limits = _limited_gpus(worker)
        self._model = slowed(load_model(worker.model, worker.set), worker.slowdown)
        self.towers = find_towers(worker.device_names, max(1, len(self.gpu_limits)))
        minibatches, shares = job.local_steps * self.towers.count, job.has_shares
        self.inputs = InputStream(self._model, self._context(TRAIN), minibatches, self.data_errors(), shares)
        require_fit(job, self.inputs)
        self.specs = record_specs(self._model, self.inputs, TRAIN)  # 1
        self._plan = make_plan(self.specs, job.ps, *job.plan_sizes)
        schedule = job.mode_schedule
        self._has_local = schedule is not None and schedule.has_local
        self.graphs = LoopGraphs(self._build_graph)
        self.train = self.graphs.of(job.mode).train  # 2
        for stage in schedule.stages if schedule else ():  # a model that does not fit one of them ends here
            self.graphs.of(stage.mode)
        self.alone = self.graphs.of(LOCAL) if self._has_local else None
        self.of_checkpoints = CheckpointEvaluation(self._model, self._context(EVAL))
        if where.index == 0:
            _ = self.evaluation  # 3
            if job.measures:
                require_metric("keep_best", job.best_metric.name, self.of_checkpoints.names)  # 4
        self.tensors = report(self._plan, minibatches, job.top_k is not None).tensors
        log_plan(self.train, job.plan == "packed", log)
        self.recorder = (
            Recorder(worker.record, where.index, job, log, " ".join(param_words(worker.set))) if worker.record else None
        )
        if self.recorder:
            at_exit.callback(self.recorder.close)

    @cached_property
    def evaluation(self) -> PulledEvaluation:
        """That of the final variables.

        Raises:
            UsageError: the model or the input cannot be built.
        """
        return PulledEvaluation(self._model, self._context(EVAL), self._plan, self.job.max_workers)

    def data_errors(self) -> DataErrors:
        """What becomes of bad batches, for one source of errors."""
        return DataErrors(self.job.skips_bad_batches, self._log, self.progress.skip)

    def check_warm_start(self, has_begun: Callable[[], bool]) -> None:
        """Raises UsageError if the job has yet to begin with a checkpoint that does not fit."""
        if self.warm_start:
            self.warm_start.check(self.train, has_begun)

    def _build_graph(self, mode: str) -> LoopGraph:
        """That of the steps of this mode, with any bound; or LOCAL."""
        index, inputs, log = self.where.index, self.inputs, self._log
        job = as_trained_alone(self.job) if mode == LOCAL else as_started_so(self.job, mode, 0)
        train = build_training(self._model, inputs, self._plan, job, index, self.towers, self._has_local)
        if mode == LOCAL:
            return LoopGraph.around(train, job, index, lambda *_, **__: None)
        return LoopGraph.around(train, job, index, log, inputs.shards is not None, self.warm_start, self.owner)

    def _folder_owner(self) -> FolderOwner | None:
        job = self.job
        if not job.checkpoint_dir:
            return None
        return FolderOwner(job.checkpoint_dir, job.job_id, self.where.coordinator, job.lease_s, self._log)

    def _summary_writer(self, at_exit: ExitStack) -> SummaryWriter | None:
        """Writes to a run of TensorBoard: that of the job, or one of this worker."""
        job = self.job
        if not job.checkpoint_dir or not job.summary_steps:
            return None
        run = "" if job.summary_workers == "chief" else os.path.join("workers", str(self.where.index))
        writer = SummaryWriter(os.path.join(job.checkpoint_dir, run), self._log)
        at_exit.callback(writer.close)
        return writer

    def _context(self, mode: str) -> Context:
        worker, index = self._worker, self.where.index
        seed = input_seed(worker.seed, index, self.began_at if mode == TRAIN else 0)
        size, data_dir, batches = worker.batch_size, worker.data_dir, worker.eval_batches
        return Context(mode, index, self.job.min_workers, size, data_dir, seed, batches)


def _limited_gpus(worker: WorkerConfig) -> tuple[int, ...]:
    """Limits what this process may take of each GPU, if it sees any; returns the limits, in bytes."""
    if not worker.gpu_memory or not gpu_count():
        return ()
    limits = worker.gpu_limit.limits(smallest_memory(gpus()))
    limit_gpus(limits)
    return limits


MEASURED_STEPS = 9  # last steps, whose median is the time of a step


def slowed(model: Model, times: float) -> Model:
    """The model with training steps that take `times` as long as they did before, as on a slow machine; 1: as it is.

    The wait is between pull and push, where a slow processor spends its time: other workers continue meanwhile, and the
    update is as stale as that of a slow machine.  It uses no processor time.
    """
    if times == 1:
        return model
    pause = _Slowdown(times)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        spec = model.model_fn(features, labels, mode)
        if mode != TRAIN or not isinstance(spec, ModelSpec):
            return spec
        loss = tf1.convert_to_tensor(spec.loss)
        paused = tf1.numpy_function(pause, [loss], tf1.bool)  # after the loss is computed; the push waits for it
        with tf1.control_dependencies([paused]):
            return replace(spec, loss=tf1.identity(loss), hooks=[*spec.hooks, pause])

    return replace(model, model_fn=model_fn)


class _Slowdown(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Measures steps, and is called within each."""

    def __init__(self, times: float) -> None:
        self._more = times - 1
        self._own_s: deque[float] = deque(maxlen=MEASURED_STEPS)  # of steps, without the pauses
        self._paused_s = 0.0

    def __call__(self, _loss: Array) -> bool:
        self._paused_s = self._more * statistics.median(self._own_s) if self._own_s else 0.0
        time.sleep(self._paused_s)
        return True

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:  # noqa: ARG002
        self._began_s = time.monotonic()

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        self._own_s.append(max(0.0, time.monotonic() - self._began_s - self._paused_s))
