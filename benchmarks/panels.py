"""What a plot of a benchmark's result shows: panels of bars or lines, with their texts.  Nothing is drawn here.

A result has its figures itself or, of several workloads, under "each": ours, and beside it, if there is one, the peer,
their spread and the ratio.  A panel has those of one unit.  Two benchmarks have results of another form: scaling, where
each is a number of workers, and coordinator, which has no peer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psruntime.observe.render import bytes_text

OURS, PEER = "psruntime", "peer"
DECADES = 20.0  # the largest over the smallest, from which on a scale is logarithmic


class NotAResult(Exception):
    """A file is none, or not one of a benchmark; the text says why, as the end of a sentence that names it."""


@dataclass(frozen=True)
class Value:
    """low, high: of the runs."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One workload.  values: by series, whose names are the same in all rows.  note: behind the bars.

    due: what is promised, drawn as a mark.
    """

    label: str
    values: dict[str, Value]
    note: str = ""
    due: float | None = None


@dataclass(frozen=True)
class Panel:
    """lines: the labels of the rows are numbers, of what `along` says, and lines go over them."""

    rows: list[Row]
    unit: str
    is_log: bool
    along: str = ""

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.values))


@dataclass(frozen=True)
class Figure:
    title: str
    panels: list[Panel]
    footer: str


def figure_of(result: Mapping[str, Any]) -> Figure:
    """The plot of a result.

    Raises:
        NotAResult: it is not that of a benchmark.
    """
    title = with_sizes(text_at(result, "workload"))
    if "answers" in result:
        panels, runs = [answers_panel(result)], 0
    else:
        each = result.get("each", [result])
        if not isinstance(each, list) or not each or not all(isinstance(one, dict) for one in each):
            raise NotAResult("has something else than results under 'each'")
        runs = max(int(number_at(one, "runs")) for one in each)
        units = list(dict.fromkeys(text_at(one, "unit") for one in each))
        panels = [panel_of([one for one in each if one["unit"] == unit], unit) for unit in units]
        if "each" in result and all("workload" in one for one in each):
            title = ": ".join(filter(None, [title, ", ".join(shared([parts_of(one) for one in each]))]))
    footer = f"Median of {runs} runs; the lines go from the lowest to the highest." if runs > 1 else ""
    if runs == 1:
        footer = "One run."
    if result.get("quick"):
        footer += " A quick run: it shows that the benchmark works, not what is true of a quiet machine."
    return Figure(title, panels, footer.strip())


def panel_of(each: Sequence[Mapping[str, Any]], unit: str) -> Panel:
    peers = {str(one.get("peer_is", PEER)) for one in each}
    name = peers.pop() if len(peers) == 1 else PEER
    along = "workers" if all(isinstance(one.get("workers"), int) and "workload" not in one for one in each) else ""
    texts = [str(one["workers"]) for one in each] if along else labels(each)
    rows = [row_of(one, text, name) for one, text in zip(each, texts, strict=True)]
    return Panel(rows, unit, spans_decades(rows), along)


def row_of(one: Mapping[str, Any], label: str, peer: str) -> Row:
    spread = one.get("spread", {})
    if not isinstance(spread, dict):
        raise NotAResult("has something else than the lowest and the highest under 'spread'")
    values = {OURS: value_of(one, "ours", spread)}
    if one.get("peer") is not None:
        values[peer] = value_of(one, "peer", spread)
    note = f"{number_at(one, 'ratio'):.3g}x" if one.get("ratio") is not None else ""
    return Row(label, values, note, number_at(one, "due") if "due" in one else None)


def value_of(one: Mapping[str, Any], name: str, spread: Mapping[str, Any]) -> Value:
    value = number_at(one, name)
    ends = spread.get(name, [value, value])
    if not isinstance(ends, list) or len(ends) != 2:
        raise NotAResult(f"has no lowest and highest of '{name}' under 'spread'")
    low, high = (number_at({name: end}, name) for end in ends)
    return Value(value, min(low, value), max(high, value))


def answers_panel(result: Mapping[str, Any]) -> Panel:
    """Of the coordinator: how long it takes to answer, by kind of call."""
    answers = result["answers"]
    if not isinstance(answers, dict) or not answers or not all(isinstance(one, dict) for one in answers.values()):
        raise NotAResult("has something else than times by kind of call under 'answers'")
    rows = []
    for kind, one in answers.items():
        times = {name: number_at(one, name) for name in ("p50", "p99", "max")}
        rows.append(Row(kind, {name: Value(time, time, time) for name, time in times.items()}))
    return Panel(rows, f"{text_at(result, 'unit')} until a call is answered", spans_decades(rows))


def labels(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells each workload from the others: its parts between commas that not all of them have."""
    parts = [parts_of(one) for one in each]
    common = shared(parts)
    texts = [", ".join(part for part in own if part not in common) for own in parts]
    is_told = ["ours_is" in one and "peer_is" in one for one in each]
    beside = [f"{o['ours_is']} beside {o['peer_is']}" if told else "" for o, told in zip(each, is_told, strict=True)]
    return ["\n".join(filter(None, pair)) for pair in zip(texts, beside, strict=True)]


def parts_of(one: Mapping[str, Any]) -> list[str]:
    return with_sizes(text_at(one, "workload")).split(", ")


def shared(parts: Sequence[Sequence[str]]) -> list[str]:
    """Those that all workloads have."""
    return [part for part in parts[0] if all(part in own for own in parts)]


def with_sizes(text: str) -> str:
    """Large numbers of bytes as people say them."""
    return re.sub(r"\b(\d{4,}) bytes", lambda found: bytes_text(int(found[1])), text)


def spans_decades(rows: Sequence[Row]) -> bool:
    values = [value.value for row in rows for value in row.values.values()]
    return min(values) > 0 and max(values) / min(values) >= DECADES


def text_at(one: Mapping[str, Any], name: str) -> str:
    value = one.get(name)
    if not isinstance(value, str):
        raise NotAResult(f"is not the result of a benchmark: '{name}' is {'missing' if value is None else 'no text'}")
    return value


def number_at(one: Mapping[str, Any], name: str) -> float:
    value = one.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotAResult(f"is not the result of a benchmark: '{name}' is {'missing' if value is None else 'no number'}")
    return float(value)
