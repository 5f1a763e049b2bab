"""What a page of the dashboard is made of: cards with a figure or a table each, below a head that all pages share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from psruntime.core.members.view import Phase
from psruntime.dashboard.history import History
from psruntime.observe.render import bound_of, held_out_text, mode_of, saves_fail, steered

ROW_HEIGHT, HEAD_HEIGHT = 26, 32  # pixels
MOST_ROWS = 14  # that are seen at a time; one scrolls to the others
MOST_LINES = 200


@dataclass(frozen=True)
class Column:
    """width: pixels at least.  words: whether it has texts, aligned left, instead of numbers, aligned right."""

    name: str
    width: int = 80
    words: bool = False


class Table:
    """One table, sorted by a click on a head.  Numbers may be NaN, which is shown as -; format: of numbers by name."""

    def __init__(self, columns: Sequence[Column], formats: Mapping[str, str] | None = None) -> None:
        from bokeh.models import ColumnDataSource, DataTable

        self.columns = columns
        self._shown = 0  # how often its rows have changed
        numbers = [i for i, each in enumerate(columns, 1) if i > 1 and not each.words]
        right = "".join(f".slick-header-column:nth-child({i}) .slick-column-name {{ float: right }}\n" for i in numbers)
        self.source = ColumnDataSource({column.name: [] for column in columns})
        self.model = DataTable(
            source=self.source, columns=[_column(each, (formats or {}).get(each.name, "0,0"), "right" if i else "left")
                for i, each in enumerate(columns)],
            sizing_mode="stretch_width", height=_height(1), row_height=ROW_HEIGHT, index_position=None,
            autosize_mode="none", selectable=False, reorderable=False, stylesheets=[_STYLE + right],
        )  # fmt: skip

    def show(self, rows: Sequence[Sequence[Any]]) -> None:
        """A value for each column in every row."""
        names = [column.name for column in self.columns]
        by_column = zip(*rows, strict=True) if rows else ([] for _ in names)
        data = {name: list(values) for name, values in zip(names, by_column, strict=True)}
        if replace_data(self.source, data):
            self._shown += 1
            self.model.view.tags = [self._shown]  # a grid is redrawn when its view changes, not when its data do
        height = _height(len(rows))
        if self.model.height != height:
            self.model.height = height


def replace_data(source: Any, data: dict[str, list[Any]]) -> bool:
    """Replaces the data of a source; with as many rows as before, only the changes are sent.

    Returns whether anything has changed.
    """
    patches = _patches(source.data, data)
    if patches is None:
        source.data = data
    elif patches:
        source.patch(patches)
    return patches != {}


def _patches(before: Mapping[str, Any], now: Mapping[str, list[Any]]) -> dict[str, list[tuple[int, Any]]] | None:
    """The changes in the form of Bokeh's sources; None if the number of rows has changed."""
    if any(len(before[name]) != len(values) for name, values in now.items()):
        return None
    changes = {name: _changes(before[name], values) for name, values in now.items()}
    return {name: patch for name, patch in changes.items() if patch}


def _changes(before: Sequence[Any], now: Sequence[Any]) -> list[tuple[int, Any]]:
    pairs = enumerate(zip(before, now, strict=True))
    return [(i, new) for i, (old, new) in pairs if old != new and not (old != old and new != new)]  # NaN is not NaN


def _height(rows: int) -> int:
    return HEAD_HEIGHT + ROW_HEIGHT * min(max(rows, 1), MOST_ROWS) + 6


def _column(column: Column, number: str, align: str) -> Any:
    from bokeh.models import NumberFormatter, StringFormatter, TableColumn

    formatter = (
        StringFormatter(nan_format="-")
        if column.words
        else NumberFormatter(format=number, nan_format="-", text_align=align)
    )
    return TableColumn(field=column.name, title=column.name, width=column.width, formatter=formatter)


_STYLE = """
:host { border: 0; background: transparent; color: var(--text); font-size: 13px }
.slick-header, .slick-header-columns { background: transparent !important; border: 0 }
.slick-header-column, .slick-header-column.ui-state-default { background: transparent !important; color: var(--soft);
  border: 0 !important; border-bottom: 1px solid var(--line) !important; font-weight: 600 }
.slick-row, .slick-row.odd, .slick-row.even, .slick-row:hover { background: transparent !important; color: var(--text) }
.slick-cell, .slick-cell.selected { border: 0 !important; border-bottom: 1px solid var(--line) !important;
  background: transparent !important; color: var(--text); font-variant-numeric: tabular-nums; line-height: 22px }
.slick-viewport, .slick-pane, .grid-canvas { background: transparent !important }
"""


class Lines:
    """A short table of text, for reasons, which may be long: lines break where the screen ends.

    The first MOST_LINES rows are shown; texts of members are shown as they are, without markup.
    """

    def __init__(self, *columns: str, empty: str = "nothing") -> None:
        from bokeh.models import Div

        self._columns, self._empty = columns, empty
        self.model = Div(sizing_mode="stretch_width", stylesheets=[_LINES_STYLE])

    def show(self, rows: Sequence[Sequence[object]]) -> None:
        """A value for each column in every row."""
        text = self._html(rows[:MOST_LINES]) if rows else f"<p>{escape(self._empty)}</p>"
        if text != self.model.text:
            self.model.text = text

    def _html(self, rows: Sequence[Sequence[object]]) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self._columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_LINES_STYLE = """
:host { color: var(--text); font-size: 13px; max-height: 640px; overflow-y: auto } p { margin: 0; color: var(--soft) }
table { border-collapse: collapse; width: 100% }
th { color: var(--soft); font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; overflow-wrap: anywhere }
th:not(:last-child), td:not(:last-child) { overflow-wrap: normal }
tbody tr { border-top: 1px solid var(--line) } td:first-child { font-variant-numeric: tabular-nums }
"""


THEMES = ("light", "dark")
PHASE_COLOURS = {Phase.TRAINING: "good", Phase.DONE: "good", Phase.FAILED: "bad"}


@dataclass(frozen=True)
class Card:
    """model: of Bokeh.  note: how to read it.  wide: over the whole width of the page."""

    name: str
    title: str
    note: str
    model: Any
    wide: bool = False


@dataclass(frozen=True)
class Page:
    """show: updates the models of the cards."""

    cards: Sequence[Card]
    show: Callable[[History], None]


@dataclass(frozen=True)
class PageKind:
    """slug: its path on the server, empty for the first.  make: builds one for one browser."""

    slug: str
    title: str
    make: Callable[[], Page]


class Head:
    """The lines at the top of every page: the state of the job, and its age.

    The tags of its model are the time of the status that is shown, in seconds since 1970, for programs.
    """

    def __init__(self) -> None:
        from bokeh.models import Div

        self.model = Div(name="head", sizing_mode="stretch_width", stylesheets=[_HEAD_STYLE], tags=[0.0])

    def show(self, history: History) -> None:
        self.model.text = head_html(history)
        self.model.tags = [history.at_s]


def head_html(history: History) -> str:
    """The HTML of the head.  Texts of members and the coordinator are shown as they are, without markup."""
    status, job = history.status, history.job
    gone = history.gone_since_s
    warning = ""
    if status and status.failed_saves.count:
        warning = f'<p class="bad">{escape(saves_fail(status.failed_saves))}</p>'
    if gone is not None:
        when = f"since {time_text(gone)}"
        warning = f'<p class="bad">The coordinator is not reachable {when}: {escape(history.gone_reason)}</p>'
    if status is None or job is None:
        return warning or "<p>The coordinator has not answered yet.</p>"
    if gone is not None and status.phase.over:
        warning = f'<p class="soft">The job is over; its coordinator left at {time_text(gone)}.</p>'
    limit = "" if job.train_steps is None else f" of {job.train_steps:,}"
    bound = bound_of(status, job)
    facts = [
        f"job {job.job_id}", f"mode {mode_of(status, job)}" + ("" if bound is None else f", bound {bound}"),
        f"view {status.view.number}", f"global step {status.global_step:,}{limit}",
        *([f"loss {loss:.4f}"] if (loss := history.samples[-1].loss) == loss else []),  # not NaN, of no step yet
        *filter(None, [held_out_text(status.held_out)]),
        f"{len(history.ps)} of {job.ps} ps", f"{len(history.workers)} workers", f"as of {time_text(history.at_s)}",
    ]  # fmt: skip
    listed = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    more = "".join(f"<p>{escape(line)}</p>" for line in steered(status, job))
    kind = PHASE_COLOURS.get(status.phase, "change")
    phase = f'<b class="phase {kind}">{escape(str(status.phase))}</b> {escape(status.reason)}'
    return f'{warning}<p>{phase}</p><p class="facts">{listed}</p>{more}'


def time_text(at_s: float) -> str:
    """The time of day in this machine's time zone."""
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")


def template_of(kinds: Sequence[PageKind]) -> str:
    """The template for Jinja, with variables: `page` (a PageKind), `cards`, `theme`, `query`, `style`, `nonce`."""
    links = "".join(
        f'<a href="/{kind.slug}{{{{ query }}}}"{{% if page.slug == "{kind.slug}" %}} aria-current="page"{{% endif %}}>'
        f"{kind.title}</a>"
        for kind in kinds
    )
    themes = "".join(
        f'<a href="?theme={theme}"{{% if theme == "{theme}" %}} aria-current="true"{{% endif %}}>{theme}</a>'
        for theme in THEMES
    )
    return _TEMPLATE.replace("LINKS", links).replace("THEMES", themes)


_TEMPLATE = """
{% block title %}{{ page.title }} - psruntime{% endblock %}
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{{ style }}</style>
<script {{ nonce }}>
const address = new URL(location)
if (address.searchParams.has("token")) { address.searchParams.delete("token"); history.replaceState(null, "", address) }
</script>
{% endblock %}
{% block js_resources %}{{ bokeh_js | replace("<script", "<script " ~ nonce) }}{% endblock %}
{% block body %}
{% from macros import embed %}
<body class="board {{ theme }}">
<header><nav>LINKS</nav><nav class="themes">THEMES</nav></header>
<main>{{ embed(roots.head) }}
<div class="grid">{% for card in cards %}
<section class="card{% if card.wide %} wide{% endif %}"><h2>{{ card.title }}</h2><p>{{ card.note }}</p>
{{ embed(roots[card.name]) }}</section>{% endfor %}</div></main>
{{ plot_script | replace("<script", "<script " ~ nonce) }}
</body>
{% endblock %}
"""

STYLE = """
body.board { margin: 0 auto; padding: 24px; height: auto; box-sizing: border-box }
header { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 8px 16px; margin-bottom: 14px }
nav { display: flex; flex-wrap: wrap; gap: 4px }
nav a { color: var(--soft); text-decoration: none; padding: 5px 10px; border-radius: 7px }
nav a:hover { background: var(--line) }
nav a[aria-current] { color: var(--text); background: var(--line); font-weight: 600 }
.wide { grid-column: 1 / -1 }
.card p { font-size: 13px; margin-bottom: 8px }
@media (max-width: 600px) { body.board { padding: 12px } .card { padding: 10px 8px } nav a { padding: 5px 8px } }
"""

_HEAD_STYLE = """
:host { color: var(--text); font-size: 15px; line-height: 1.45 }
p { margin: 0 0 5px; overflow-wrap: anywhere } .soft, .facts { color: var(--soft) }
.facts span { display: inline-block; margin-right: 16px }
.phase { padding: 1px 8px; border-radius: 6px; color: #fff; margin-right: 4px }
.good { background: #00805f } .change { background: #a86400 } .phase.bad { background: #b3261e }
p.bad { background: #b3261e; color: #fff; padding: 5px 10px; border-radius: 6px }
"""
