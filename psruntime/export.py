"""Exports a checkpoint for serving: a SavedModel, which TensorFlow, TensorFlow Serving and others load.

psruntime export --checkpoint-dir FOLDER --out FOLDER [--model MODULE] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psruntime import flags
from psruntime.config import JobConfig, WorkerConfig, whole_path
from psruntime.errors import EXIT_DONE, CheckpointError
from psruntime.model import EVAL, Context, load_model
from psruntime.process import offline

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.listing import CheckpointList
    from psruntime.graph.export.serving_graph import ServingGraph

PROG = "psruntime export"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes a SavedModel of the newest checkpoint; no job need run.  Returns the exit code."""
    arguments = _parser().parse_args(argv)
    return offline(PROG, lambda: _export(flags.checkpoint_folder(arguments), flags.worker_config(arguments), arguments))


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Writes a SavedModel of the newest checkpoint of a folder: from the features of the model to its predictions. "
        "No job need run.",
        first=("checkpoint_dir", "model", "data_dir"),
    )
    parser.add_settings(JobConfig, only=("checkpoint_dir",))
    parser.add_settings(WorkerConfig, only=("model", "data_dir", "batch_size", "seed"))
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--out", required=True, metavar="FOLDER", help="where to; it must be new or empty (required)"
    )
    most_used.add_argument("--json", action="store_true", help="say what was written as one JSON object on stdout")
    return parser


def _export(folder: str, worker: WorkerConfig, arguments: argparse.Namespace) -> int:
    """TensorFlow is imported here only, after its environment is set."""
    from psruntime.graph.base import environment

    environment.prepare(warns=False)
    from psruntime.graph.checkpoint.listing import CheckpointList, step_of
    from psruntime.graph.export.saved_model import require_new
    from psruntime.graph.export.serving_graph import build_serving_graph

    out = whole_path(arguments.out)
    require_new(out)
    checkpoints = CheckpointList(folder)
    checkpoints.require_newest()
    context = Context(EVAL, 0, 1, worker.batch_size, worker.data_dir, worker.seed)
    serving = build_serving_graph(load_model(worker.model), context)
    newest, size = _write(serving, checkpoints, out)
    facts = {"out": out, "checkpoint": newest, "global_step": step_of(newest), "bytes": size}
    if arguments.json:
        sys.stdout.write(json.dumps({**facts, "signatures": _as_json(serving), "left_out": serving.left_out}) + "\n")
    else:
        sys.stdout.write(_as_text(facts, serving))
    return EXIT_DONE


def _write(serving: ServingGraph, checkpoints: CheckpointList, out: str) -> tuple[str, int]:
    """(the checkpoint, bytes that were written).  One that is removed meanwhile is followed by the next."""
    from psruntime.graph.export.saved_model import write_saved_model

    newest = checkpoints.require_newest()
    while True:
        try:
            checkpoints.require(newest)
            size = write_saved_model(serving, newest, out)
        except CheckpointError:
            before, newest = newest, checkpoints.require_newest()
            if newest == before:
                raise
            continue
        if missing := checkpoints.not_in(newest):
            sys.stderr.write(f"{PROG}: {missing}\n")
        return newest, size


def _as_json(serving: ServingGraph) -> dict[str, Any]:
    return {
        name: {"inputs": _described(given), "outputs": _described(outputs)}
        for name, (given, outputs) in serving.signatures.items()
    }


def _described(tensors: dict[str, Any]) -> dict[str, str]:
    return {name: f"{tensor.dtype.name} {tensor.shape}" for name, tensor in tensors.items()}


def _as_text(facts: dict[str, Any], serving: ServingGraph) -> str:
    lines = [f"wrote {facts['out']}, {facts['bytes'] / 1e6:.1f} MB, of {facts['checkpoint']}"]
    for name, (given, outputs) in serving.signatures.items():
        sides = (", ".join(f"{key} {what}" for key, what in _described(side).items()) for side in (given, outputs))
        lines.append(f"signature {name}: {' -> '.join(sides)}")
    if serving.left_out:
        lines.append(f"no signature for tf.Examples: {serving.left_out}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
