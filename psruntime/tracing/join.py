"""The folder of the parts of a trace, and the file that they are joined to."""

from __future__ import annotations

import os
from typing import NamedTuple

from psruntime.tracing.chrome import write_trace
from psruntime.tracing.parts import BadPartError, Head, head_of, parts_in, spans_of

FOLDER = "trace"  # beside the checkpoints
APART_S = 600.0  # between parts of one run, at most


class Joined(NamedTuple):
    """workers: the number of those with steps in the file; 0: it is unchanged.  failures: parts that are left out."""

    workers: int
    failures: list[str]


class TraceFolder:
    """The trace of some steps, FIRST:LAST.  parts: folder of its parts.  path: the joined file."""

    def __init__(self, checkpoint_dir: str, steps: str) -> None:
        self._steps = steps
        self.parts = os.path.join(checkpoint_dir, FOLDER, f"steps-{steps.replace(':', '-')}")
        self.path = f"{self.parts}.json.gz"
        self._joined: dict[str, int] = {}

    def update(self) -> Joined:
        """Writes the file again if there are parts that it has not.

        Parts that end ten minutes before all later ones begin are of an earlier run of the job, and left out.

        Raises:
            OSError: the file cannot be written.
        """
        found = parts_in(self.parts)
        if found == self._joined:
            return Joined(0, [])
        self._joined = found
        heads: dict[str, Head] = {}
        failures = []
        for path in found:
            try:
                heads[path] = head_of(path)
                spans_of(path)
            except BadPartError as error:
                heads.pop(path, None)
                failures.append(str(error))
        heads = _of_the_last_run(heads)
        if heads:
            write_trace(heads, self._steps, self.path)
        return Joined(len({head.worker for head in heads.values()}), failures)


def _of_the_last_run(heads: dict[str, Head]) -> dict[str, Head]:
    kept: dict[str, Head] = {}
    begin_s = float("inf")
    for path, head in sorted(heads.items(), key=lambda item: item[1].end_s, reverse=True):
        if kept and head.end_s < begin_s - APART_S:
            break
        kept[path] = head
        begin_s = min(begin_s, head.begin_s)
    return dict(sorted(kept.items()))
