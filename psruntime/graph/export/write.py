"""Writes all of an export into one folder, or nothing: the SavedModel, LiteRT models beside it, and the report.

OUT/saved_model.pb, variables/, assets/   the SavedModel
OUT/model.tflite                          of its signature serving_default, in float32
OUT/model.int8.tflite                     the same, quantized
OUT/report.json                           size, latency and metrics of each
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, UsageError
from psruntime.graph.base.checkpoint_reader import escaped
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.types import Array
from psruntime.graph.export.held_out import HeldOut
from psruntime.graph.export.report import Report, Row
from psruntime.graph.export.runtimes import LiteRtRuntime, SavedModelRuntime, Size, files_in, size_of
from psruntime.graph.export.saved_model import Pruned, all_or_nothing, write_saved_model, writing
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph
from psruntime.graph.export.tflite import convert
from psruntime.graph.export.wanted import INT8, Wanted
from psruntime.model import Context, Model

CALIBRATION_BATCHES = 16  # with 64 examples each a thousand: ranges of activations hardly grow after some hundreds


@dataclass(frozen=True)
class Written:
    """bytes: of the SavedModel."""

    bytes: int
    report: Report | None


def write_export(
    model: Model, context: Context, serving: ServingGraph, checkpoint: str, folder: str, wanted: Wanted
) -> Written:
    """Writes the export of a checkpoint into a folder that is new or empty.

    context: of mode "eval", for the held-out data.

    Raises:
        CheckpointError: the checkpoint is damaged.
        PassingError: the folder cannot be written for a reason of this machine.
        UsageError: it is one of another model, the folder cannot be written, or the model is not one that can be
            pruned or converted.
    """
    with all_or_nothing(folder) as filled, ExitStack() as at_exit:
        with writing(folder):
            pruned = write_saved_model(serving, checkpoint, filled, wanted.prune)
        saved = files_in(filled)
        size = sum(map(os.path.getsize, saved))
        if not wanted.reports:
            return Written(size, None)
        size_of_checkpoint = _size_of_checkpoint(checkpoint)  # now: a conversion takes minutes, and it may be removed
        held_out = HeldOut(model, context, checkpoint, serving.signatures[DEFAULT][0])
        at_exit.callback(held_out.close)
        contents, calibrated = _converted(filled, held_out, wanted)
        for name, content in contents.items():
            with writing(folder), open(os.path.join(filled, name), "wb") as file:
                file.write(content)
        report = _report(held_out, size_of_checkpoint, filled, saved, contents, pruned, calibrated)
        with writing(folder), open(os.path.join(filled, "report.json"), "w") as text:
            text.write(json.dumps(report.as_json(), indent=1) + "\n")
        return Written(size, report)


def _converted(saved_model: str, held_out: HeldOut, wanted: Wanted) -> tuple[dict[str, bytes], int]:
    """(LiteRT models by the names of their files, batches that int8 was calibrated on)."""
    if not wanted.tflite:
        return {}, 0
    contents = {"model.tflite": convert(saved_model)}
    if not wanted.quantize:
        return contents, 0
    batches: list[dict[str, Array]] = []
    if wanted.quantize == INT8:
        if held_out.why_not:
            raise UsageError(f"--quantize int8 measures ranges on the training data, but {held_out.why_not}")
        batches = held_out.calibration(CALIBRATION_BATCHES)
    contents[f"model.{wanted.quantize}.tflite"] = convert(saved_model, wanted.quantize, batches)
    return contents, len(batches)


def _report(
    held_out: HeldOut, size_of_checkpoint: Size, folder: str, saved: Iterable[str], contents: dict[str, bytes],
    pruned: list[Pruned], calibrated: int,
) -> Report:  # fmt: skip
    rows = [Row("checkpoint", size_of_checkpoint, held_out.of_checkpoint())]
    served = SavedModelRuntime(folder)
    try:
        measured = None if held_out.why_not else held_out.of(served)
    finally:
        served.close()
    rows.append(Row("SavedModel", size_of(saved), measured))
    for name, content in contents.items():
        measured = None if held_out.why_not else held_out.of(LiteRtRuntime(content))
        rows.append(Row(name, size_of([os.path.join(folder, name)]), measured))
    left_out = {"measurement": held_out.why_not} if held_out.why_not else held_out.left_out
    return Report(rows, held_out.examples, left_out, pruned, calibrated)


def _size_of_checkpoint(checkpoint: str) -> Size:
    """The size of the checkpoint's files, with the optimizer's slots.

    Raises:
        CheckpointError: it is gone, or cannot be read.
    """
    try:
        prefix = escaped(checkpoint)
        files = tf1.gfile.Glob(f"{prefix}.index") + tf1.gfile.Glob(f"{prefix}.data-*")
        size = size_of(files or tf1.gfile.Glob(checkpoint))  # the oldest format has no index
    except tf1.errors.OpError as error:
        raise CheckpointError(f"checkpoint {checkpoint}: {first_line(error)}") from error
    if not size.bytes:
        raise CheckpointError(f"checkpoint {checkpoint} is gone")
    return size
