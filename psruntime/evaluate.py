"""Measures the checkpoints of a folder on held-out data, without a job.

psruntime evaluate --checkpoint-dir FOLDER [--model MODULE] [--follow] [--json]

The values are also written to `eval` in that folder, as an evaluator does.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from psruntime import flags
from psruntime.config import JobConfig, WorkerConfig
from psruntime.errors import EXIT_DONE, EXIT_FAILED, PsRuntimeError, UsageError
from psruntime.model import EVAL, Context, load_model
from psruntime.process import usage_error

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.measured import MeasuredCheckpoints

PROG = "psruntime evaluate"
LOOK_S = 1.0  # between two looks at the folder


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the newest checkpoint, with --follow each that comes after it; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        folder = flags.config_of(JobConfig, arguments).checkpoint_dir
        if not folder:
            raise UsageError("--checkpoint-dir is missing: the folder of the checkpoints")
        return _measure(folder, flags.worker_config(arguments), arguments)
    except UsageError as error:
        return usage_error(PROG, error)
    except PsRuntimeError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return error.exit_code or EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Measures the newest checkpoint of a folder by the model's metrics on its held-out data.  No job need run.",
        first=("checkpoint_dir", "model", "data_dir", "batch_size"),
    )
    parser.add_settings(JobConfig, only=("checkpoint_dir",))
    parser.add_settings(WorkerConfig, only=("model", "data_dir", "batch_size", "seed"))
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument("--follow", action="store_true", help="go on with each new one, until Ctrl-C")
    most_used.add_argument("--json", action="store_true", help="a line of JSON on stdout for each")
    return parser


def _measure(folder: str, worker: WorkerConfig, arguments: argparse.Namespace) -> int:
    """TensorFlow is imported here only, after its environment is set."""
    from psruntime.graph.base import environment

    environment.prepare()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of what is old, which is no user's business
    from psruntime.graph.checkpoint.measured import MeasuredCheckpoints
    from psruntime.graph.model.evaluate import CheckpointEvaluation

    context = Context(EVAL, 0, 1, worker.batch_size, worker.data_dir, worker.seed)
    evaluation = CheckpointEvaluation(load_model(worker.model), context)
    _ = evaluation.names  # a model that fails does so before anything is looked for

    def tell(path: str, global_step: int, values: dict[str, float]) -> None:
        if arguments.json:
            line = json.dumps({"global_step": global_step, "checkpoint": path, "metrics": values})
        else:
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            line = f"held out, at global step {global_step}: {metrics}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def log(event: str, **facts: object) -> None:
        sys.stderr.write(f"{PROG}: {event.replace('_', ' ')}: {facts.get('reason', '')}\n")

    checkpoints = MeasuredCheckpoints(evaluation, folder, tell, log)
    try:
        return _follow(checkpoints) if arguments.follow else _newest(checkpoints, folder)
    finally:
        checkpoints.close()


def _newest(checkpoints: MeasuredCheckpoints, folder: str) -> int:
    if not checkpoints.measure_next():
        raise UsageError(f"{folder} has no checkpoint")
    return EXIT_FAILED if checkpoints.failure else EXIT_DONE


def _follow(checkpoints: MeasuredCheckpoints) -> int:
    while True:
        if not checkpoints.measure_next():
            time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
