"""The report of an export: size, latency and metrics of the checkpoint, and of each exported model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from psruntime.errors import some
from psruntime.graph.export.held_out import Difference, Measured
from psruntime.graph.export.runtimes import THREADS, Latency, Size
from psruntime.graph.export.saved_model import Pruned


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
