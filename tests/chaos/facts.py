"""What became of a job, as plain data for a report."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any


def facts_of(result: Any) -> dict[str, Any]:
    """The fields of a dataclass; asdict would count the pairs of a Counter."""
    values = {each.name: getattr(result, each.name) for each in fields(result)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}
