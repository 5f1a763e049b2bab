"""The metrics of each checkpoint that was measured, as a file of JSON lines beside the checkpoints.

    {"global_step": 200, "time": 1764064000.1, "metrics": {"loss": 0.31, "accuracy": 0.9}}

time: when it was measured, in seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

Evaluation = tuple[int, dict[str, float]]  # global step, metrics by name


def append(path: str, global_step: int, time_s: float, metrics: Mapping[str, float]) -> None:
    """Adds a line.

    Raises:
        OSError: the file cannot be written.
    """
    line = json.dumps({"global_step": global_step, "time": time_s, "metrics": dict(metrics)})
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read(path: str) -> list[Evaluation]:
    """By global step, without what a job did again that had gone back; nothing without a file.

    A line that is none, as a crash may leave one, is passed over.
    """
    found: list[Evaluation] = []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except OSError:
        return []
    for line in lines:
        try:
            said = json.loads(line)
            each = int(said["global_step"]), {str(name): float(value) for name, value in said["metrics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found = followed_by(found, each)
    return found


def followed_by(before: list[Evaluation], evaluation: Evaluation) -> list[Evaluation]:
    """With one more; what was measured at its step or later belongs to a past that the job has left."""
    return [*(each for each in before if each[0] < evaluation[0]), evaluation]
