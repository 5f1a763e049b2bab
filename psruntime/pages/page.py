"""A page of the dashboard: cards with a figure or a table each, below a head that all pages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from psruntime.core.members.view import Phase
from psruntime.live.history import History
from psruntime.observe.render import bound_of, mode_of, steered

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
    """The template for Jinja, with the variables `page` (a PageKind), `cards`, `theme`, `query` and `style`."""
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
{% endblock %}
{% block body %}
{% from macros import embed %}
<body class="board {{ theme }}">
<header><nav>LINKS</nav><nav class="themes">THEMES</nav></header>
<main>{{ embed(roots.head) }}
<div class="grid">{% for card in cards %}
<section class="card{% if card.wide %} wide{% endif %}"><h2>{{ card.title }}</h2><p>{{ card.note }}</p>
{{ embed(roots[card.name]) }}</section>{% endfor %}</div></main>
{{ plot_script }}
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
