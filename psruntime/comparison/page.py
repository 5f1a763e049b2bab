"""The page of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from psruntime.comparison.charts import charts_of
from psruntime.comparison.summary import Training
from psruntime.pages.drawing import STYLE, colour_of

COLUMNS = ("mode", "global steps", "time", "steps/s", "examples", "refused", "mean staleness")
CHARTS = {
    "steps": ("Loss over steps", "median of the batches; a step of mode sync is a round"),
    "time": ("Loss over time", "the same, by the clock"),
    "staleness": ("Staleness", "share of the updates, by how many others came between pull and update"),
    "speed": ("Steps per second", "updates, in mode sync rounds"),
    "waiting": ("Waiting", "share of its time that a worker waited for others"),
}
_STYLE = f"""{STYLE}
.modes {{ display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 14px 0 18px; padding: 0; list-style: none }}
.grid .card:last-child {{ grid-column: 1 / -1 }}
.table {{ overflow-x: auto }} table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th {{ font-weight: 600; color: var(--soft) }} th, td {{ text-align: right; padding: 6px 10px; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; min-width: 9em }}
tbody tr {{ border-top: 1px solid var(--line) }}
"""


def page_of(trainings: Sequence[Training], title: str, how: str) -> str:
    """The HTML of the page.  how: the command and its settings, in a line."""
    script, charts, head = charts_of(trainings)
    chips = "".join(f"<li>{_chip(number)}{escape(each.name)}</li>" for number, each in enumerate(trainings))
    cards = "".join(
        f'<section class="card"><h2>{CHARTS[name][0]}</h2><p>{CHARTS[name][1]}</p>{charts[name]}</section>'
        for name in CHARTS
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style>\n{head}\n</head><body><h1>{escape(title)}</h1><p>{escape(how)}</p>"
        f'<ul class="modes">{chips}</ul><section class="card table">{_table(trainings)}</section>'
        f'<div class="grid">{cards}</div>\n{script}\n</body></html>\n'
    )


def rows_of(trainings: Sequence[Training]) -> tuple[list[str], list[list[str]]]:
    """(columns, a row for each training): numbers, and the metrics on held-out data."""
    metrics = list(dict.fromkeys(metric for each in trainings for metric in each.held_out))
    rows = []
    for t in trainings:
        measured = [f"{t.held_out[metric]:.4f}" if metric in t.held_out else "-" for metric in metrics]
        rows.append([
            t.name, f"{t.steps:,}", f"{t.seconds:.1f} s", f"{t.steps_per_s:,.0f}", f"{t.examples:,}",
            str(t.dropped), f"{t.mean_staleness:.1f}", *measured,
        ])  # fmt: skip
    return [*COLUMNS, *(f"held-out {metric}" for metric in metrics)], rows


def _table(trainings: Sequence[Training]) -> str:
    columns, rows = rows_of(trainings)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_chip(n) if i == 0 else ''}{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for n, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _chip(number: int) -> str:
    return f'<span class="chip" style="background:{colour_of(number)}"></span>'
