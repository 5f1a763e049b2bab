"""The part of one worker in a trace, as a file: its steps, and what the ps did for them, on the clock of ps 0."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from psruntime.tracing.spans import Span


@dataclass(frozen=True)
class Part:
    """run: of the job, which one it is.  worker: its index.  off_by_s: how far its clocks may be from that of ps 0.

    left_out: spans too short to keep.
    """

    run: int
    worker: int
    off_by_s: float
    left_out: int
    spans: list[Span]


def write_part(part: Part, folder: str) -> None:
    """Adds the part to those in the folder, which is made."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"worker-{part.worker}.part.gz")
    new = f"{path}.{os.getpid()}"
    try:
        with gzip.open(new, "wt", compresslevel=1) as file:
            json.dump(asdict(part), file)
        os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)


def parts_in(folder: str) -> dict[str, int]:
    """The files of parts -> when each was written, in ns; to be compared with an earlier look."""
    found = {}
    for path in Path(folder).glob("*.part.gz"):
        found[str(path)] = path.stat().st_mtime_ns
    return dict(sorted(found.items()))


def read_part(path: str) -> Part:
    """The part in the file."""
    with gzip.open(path, "rt") as file:
        read = json.load(file)
    return Part(**{**read, "spans": [Span(**span) for span in read["spans"]]})
