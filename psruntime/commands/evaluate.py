"""Measures the checkpoints of a folder on held-out data, without a job.

psruntime evaluate --checkpoint-dir FOLDER [--model MODULE] [--follow] [--metric METRIC] [--out FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from psruntime.config.process import EvaluatorConfig, WorkerConfig
from psruntime.config.values import whole_path
from psruntime.errors import EXIT_DONE, EXIT_FAILED, UsageError
from psruntime.model import EVAL, Context, load_model
from psruntime.observe.evaluations import as_line, text_of
from psruntime.observe.outputs import reader_is_gone
from psruntime.process import flags
from psruntime.process.process import offline

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.measured import MeasuredCheckpoints

PROG = "psruntime evaluate"
LOOK_S = 1.0  # between two looks at the folder


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the newest checkpoint, with --follow each that comes after it; returns the exit code."""
    arguments = _parser().parse_args(argv)
    return offline(PROG, lambda: _work(arguments))


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Measures the newest checkpoint of a folder by the model's metrics on its held-out data.  No job need run.",
        first=("checkpoint_dir", *flags.OF_EVALUATION),
    )
    flags.add_checkpoint_dir_flag(parser)
    parser.add_settings(WorkerConfig, only=flags.OF_EVALUATION, helps=flags.INPUT_SEED)
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument("--follow", action="store_true", help="continue with each new one, until Ctrl-C")
    most_used.add_argument(
        "--metric", default=argparse.SUPPRESS, metavar="METRIC",
        help="keep the checkpoint that is best by it in best/, as --keep-best of a job does",
    )  # fmt: skip
    most_used.add_argument(
        "--out", default="", metavar="FOLDER", help="write summaries for TensorBoard and evaluations.jsonl there"
    )
    most_used.add_argument("--json", action="store_true", help="a line of JSON on stdout for each")
    return parser


def _work(arguments: argparse.Namespace) -> int:
    folder, wanted = flags.checkpoint_folder(arguments), flags.config_of(EvaluatorConfig, arguments)
    return _measure(folder, flags.worker_config(arguments), wanted, arguments)


def _measure(folder: str, worker: WorkerConfig, wanted: EvaluatorConfig, arguments: argparse.Namespace) -> int:
    """TensorFlow is imported here only, after its environment is set."""
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True, warns=False)
    from psruntime.graph.checkpoint.listing import CheckpointList
    from psruntime.graph.checkpoint.measured import BestCheckpoint, MeasuredCheckpoints, require_metric
    from psruntime.graph.model.evaluate import CheckpointEvaluation, logged
    from psruntime.graph.model.identity import other_params

    context = Context(EVAL, 0, 1, worker.batch_size, worker.data_dir, worker.seed, worker.eval_batches)
    model = load_model(worker.model, worker.set)
    evaluation = CheckpointEvaluation(model, context, logged(_log))
    metric, names = wanted.metric_of(""), evaluation.names  # a model that fails does so before the folder is read
    if wanted.compares:
        require_metric("metric", metric.name, names)
    failed: list[str] = []  # outputs that could not be written

    def log(event: str, **facts: object) -> None:
        failed.extend([event] if event in ("summaries_failed", "best_failed") else [])
        _log(event, **facts)

    best = BestCheckpoint(evaluation, folder, metric, log) if wanted.compares else None
    lists = CheckpointList(folder)

    def show(path: str, global_step: int, values: dict[str, float]) -> None:
        facts = {"global_step": global_step, "checkpoint": path}
        sys.stdout.write(f"{as_line(facts, values) if arguments.json else text_of(global_step, values)}\n")
        sys.stdout.flush()
        for remark in filter(None, (lists.not_in(path), other_params(model, path))):
            _report(remark)

    out = whole_path(arguments.out) if arguments.out else ""
    checkpoints = MeasuredCheckpoints(evaluation, folder, out, show, log, best)
    try:
        code = _follow(checkpoints, folder, bool(out)) if arguments.follow else _newest(checkpoints, folder)
        return code or (EXIT_FAILED if failed else EXIT_DONE)
    finally:
        checkpoints.close()


def _newest(checkpoints: MeasuredCheckpoints, folder: str) -> int:
    """Measures the newest one; after one that is removed meanwhile, the next."""
    while checkpoints.global_step < 0 and not checkpoints.failure:
        if not checkpoints.measure_next():
            if checkpoints.is_unreadable:
                return EXIT_FAILED
            raise UsageError(f"{folder} has no checkpoint")
    return EXIT_FAILED if checkpoints.failure else EXIT_DONE


def _follow(checkpoints: MeasuredCheckpoints, folder: str, writes: bool) -> int:
    """writes: whether there are files of it too, so that it does not end with its reader."""
    has_reported = False
    while writes or not reader_is_gone():
        if not checkpoints.measure_next():
            if checkpoints.global_step < 0 and not has_reported:
                _report(f"waits for a checkpoint in {folder}")
                has_reported = True
            time.sleep(LOOK_S)
    return EXIT_DONE


def _log(event: str, **facts: object) -> None:
    if "reason" in facts:  # else it is shown already
        _report(f"{event.replace('_', ' ')}: {facts['reason']}")
    elif facts.get("kept"):
        _report(f"the best one so far is kept: global step {facts['global_step']}")


def _report(text: str) -> None:
    sys.stderr.write(f"{PROG}: {text}\n")
