"""Writes all of an export into one folder, or nothing: the SavedModel, LiteRT models beside it, and the report.

OUT/saved_model.pb, variables/, assets/   the SavedModel
OUT/model.tflite                          of its signature serving_default, in float32
OUT/model.int8.tflite                     the same, quantized
OUT/report.json                           size, latency and metrics of the checkpoint, and of each exported model
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, UsageError, some
from psruntime.faults import first_line
from psruntime.graph.base.checkpoint_reader import escaped
from psruntime.graph.base.types import Array
from psruntime.graph.export import INT8, Wanted
from psruntime.graph.export.held_out import Difference, HeldOut, Measured
from psruntime.graph.export.runtimes import THREADS, Latency, LiteRtRuntime, SavedModelRuntime, Size, files_in, size_of
from psruntime.graph.export.saved_model import Pruned, all_or_nothing, write_saved_model, writing
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph
from psruntime.graph.export.tflite import convert
from psruntime.model import Context, Model


@dataclass(frozen=True)
class Row:
    """The checkpoint, or one exported model.  measured: None where the held-out data do not fit it."""

    name: str
    size: Size
    measured: Measured | None


@dataclass(frozen=True)
class Report:
    """rows: the checkpoint first.  batch: examples in the batch that was timed; 0 if that is unknown.
    left_out: metric that was not measured -> why.  pruned: the kernels.  calibrated: batches that the ranges of int8
    were measured on.
    """

    rows: Sequence[Row]
    batch: int
    left_out: dict[str, str] = field(default_factory=dict)
    pruned: Sequence[Pruned] = ()
    calibrated: int = 0

    def as_json(self) -> dict[str, Any]:
        """For JSON; a value that is not finite is null."""
        return {
            "threads": THREADS,
            "batch": self.batch,
            "rows": [_as_json(row) for row in self.rows],
            "left_out": self.left_out,
            "pruned": [asdict(each) for each in self.pruned],
            "calibration_batches": self.calibrated,
        }

    def as_text(self) -> str:
        """A table for people, with notes below it."""
        metrics = self.rows[0].measured.metrics if self.rows[0].measured else {}
        batch = f"ms for {self.batch}" if self.batch else "ms a batch"
        table = [["", "bytes", "gzip", "ms for 1", batch, *metrics]]
        table += [_cells(row, list(metrics)) for row in self.rows]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
        lines = [
            "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(
                zip(cells, widths, strict=True))).rstrip()
            for cells in table
        ]  # fmt: skip
        lines.append(f"ms: median / 90th percentile of calls that follow each other, {THREADS} thread")
        for row in self.rows:
            for name, difference in row.measured.differences.items() if row.measured else ():
                lines.append(f"{row.name}: {name} {_told(difference)}")
        lines += [f"no {name}: {why}" for name, why in self.left_out.items()]
        if self.pruned:
            zeros, entries = (sum(getattr(each, what) for each in self.pruned) for what in ("zeros", "entries"))
            names = some([each.name for each in self.pruned], MOST_NAMES)
            lines.append(f"pruned: {zeros} of {entries} entries are zero in {names}")
        if self.calibrated:
            lines.append(f"int8: ranges of activations from {self.calibrated} batches of the training data")
        return "\n".join(lines) + "\n"


MOST_NAMES = 4  # of kernels in a line


def _cells(row: Row, metrics: Sequence[str]) -> list[str]:
    sizes = [row.name, f"{row.size.bytes:,}", f"{row.size.gzip_bytes:,}"]
    if row.measured is None:
        return [*sizes, "-", "-", *("-" for _ in metrics)]
    values = row.measured.metrics
    times = [_time(row.measured.one), _time(row.measured.batch)]
    return [*sizes, *times, *(f"{values[name]:.4f}" if name in values else "-" for name in metrics)]


def _time(of: Latency | None) -> str:
    return f"{of.median_ms:.3f} / {of.p90_ms:.3f}" if of else "-"


def _told(difference: Difference) -> str:
    if difference.largest is None:
        return f"{difference.unequal} of {difference.entries} differ from the checkpoint's"
    return f"at most {difference.largest:.1e} off the checkpoint's"


def _as_json(row: Row) -> dict[str, Any]:
    measured = asdict(row.measured) if row.measured else {}
    return {"name": row.name, **asdict(row.size), **_finite(measured)}


def _finite(facts: Any) -> Any:
    """The same with None for each number that is not finite: JSON has none."""
    if isinstance(facts, dict):
        return {name: _finite(each) for name, each in facts.items()}
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts


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
