"""Exports a checkpoint for serving: a SavedModel, which TensorFlow and TensorFlow Serving load, and LiteRT models.

psruntime export --checkpoint-dir FOLDER --out FOLDER [--model MODULE] [--tflite [--quantize int8]] [--prune F] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psruntime.config.process import WorkerConfig
from psruntime.config.values import whole_path
from psruntime.errors import EXIT_DONE, CheckpointError
from psruntime.graph.export import QUANTIZED, Wanted
from psruntime.model import EVAL, Context, Model, load_model
from psruntime.process import flags
from psruntime.process.process import offline

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.listing import CheckpointList
    from psruntime.graph.export.serving_graph import ServingGraph
    from psruntime.graph.export.write import Written

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
        first=("checkpoint_dir", *flags.OF_EVALUATION),
    )
    flags.add_checkpoint_dir_flag(parser)
    parser.add_settings(WorkerConfig, only=flags.OF_EVALUATION, helps=flags.INPUT_SEED)
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--out", required=True, metavar="FOLDER", help="where to; it must be new or empty (required)"
    )
    most_used.add_argument("--json", action="store_true", help="print what was written as one JSON object on stdout")
    most_used.add_argument(
        "--tflite", action="store_true", help="also write model.tflite, for LiteRT (TensorFlow Lite)"
    )
    most_used.add_argument(
        "--quantize", default="", choices=QUANTIZED, help="with --tflite: also write model.float16.tflite, with "
        "weights of 16 bits, or model.int8.tflite, with weights and activations of 8 bits",
    )  # fmt: skip
    most_used.add_argument(
        "--prune", default=None, type=_fraction, metavar="FRACTION", help="set this fraction of the entries of each "
        "kernel to zero, the smallest",
    )  # fmt: skip
    most_used.add_argument(
        "--report", action="store_true", help="measure size, latency and metrics of what was written, and of the "
        "checkpoint, also into report.json; --tflite and --prune do so too",
    )  # fmt: skip
    return parser


def _fraction(word: str) -> float:
    try:
        fraction = float(word)
    except ValueError:
        fraction = math.nan
    if not 0 < fraction < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, got '{word}'")
    return fraction


def _export(folder: str, worker: WorkerConfig, arguments: argparse.Namespace) -> int:
    """TensorFlow is imported here only, after its environment is set."""
    wanted = Wanted(arguments.tflite, arguments.quantize, arguments.prune, arguments.report)
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True, warns=False)
    from psruntime.graph.checkpoint.listing import CheckpointList, step_of
    from psruntime.graph.export.runtimes import require_lite_rt
    from psruntime.graph.export.saved_model import require_new
    from psruntime.graph.export.serving_graph import build_serving_graph
    from psruntime.graph.export.tflite import require_convertible

    out = whole_path(arguments.out)
    require_new(out)
    if wanted.tflite:
        require_lite_rt()
    checkpoints = CheckpointList(folder)
    checkpoints.require_newest()
    context = Context(EVAL, 0, 1, worker.batch_size, worker.data_dir, worker.seed, worker.eval_batches)
    model = load_model(worker.model, worker.set)
    serving = build_serving_graph(model, context)
    if wanted.tflite:
        require_convertible(serving)
    newest, written = _write(model, context, serving, checkpoints, out, wanted)
    facts = {"out": out, "checkpoint": newest, "global_step": step_of(newest), "bytes": written.bytes}
    if arguments.json:
        more = {"signatures": _as_json(serving), "left_out": serving.left_out}
        reported = {"report": written.report.as_json()} if written.report else {}
        sys.stdout.write(json.dumps({**facts, **more, **reported}) + "\n")
    else:
        sys.stdout.write(_as_text(facts, serving) + (written.report.as_text() if written.report else ""))
    return EXIT_DONE


def _write(
    model: Model, context: Context, serving: ServingGraph, checkpoints: CheckpointList, out: str, wanted: Wanted
) -> tuple[str, Written]:
    """(the checkpoint, its export).  After one that is removed meanwhile, the next."""
    from psruntime.graph.export.write import write_export

    newest = checkpoints.require_newest()
    while True:
        try:
            checkpoints.require(newest)
            written = write_export(model, context, serving, newest, out, wanted)
        except CheckpointError:
            before, newest = newest, checkpoints.require_newest()
            if newest == before:
                raise
            continue
        if missing := checkpoints.not_in(newest):
            sys.stderr.write(f"{PROG}: {missing}\n")
        return newest, written


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
