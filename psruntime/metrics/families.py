"""Metric families by name, made at each reading from the current values.

Names and units follow https://prometheus.io/docs/practices/naming: base units, and _total where a number only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Row = tuple[Mapping[str, object], float]  # labels, value


class Families:
    """A collector: `read` returns the families at each reading."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on the job, so names are not checked in advance."""
        return ()


def gauge(name: str, text: str, *rows: Row) -> Metric:
    """A number that goes up and down.  rows: all with the same labels."""
    return _filled(GaugeMetricFamily, f"psruntime_{name}", text, rows)


def counter(name: str, text: str, *rows: Row) -> Metric:
    """A number that only grows, but for a restart of its process.  name: without _total, which is added."""
    return _filled(CounterMetricFamily, f"psruntime_{name}", text, rows)


def state(name: str, text: str, label: str, values: Iterable[str], now: str) -> Metric:
    """1 for the value of now, 0 for every other."""
    return gauge(name, text, *(({label: value}, float(value == now)) for value in values))


def _filled(kind: Any, name: str, text: str, rows: Iterable[Row]) -> Metric:
    rows = list(rows)
    labels = list(rows[0][0]) if rows else []
    family = kind(name, text, labels=labels)
    for given, value in rows:
        family.add_metric([str(given[label]) for label in labels], value)
    made: Metric = family
    return made
