"""Each page, built in this process from a history that is made up: its sources hold the right numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure, PsTraffic, WorkerTraffic
from psruntime.core.members.messages import STALENESS_LIMITS, PsStats, RowCounts, WorkerStats
from psruntime.dashboard import cluster_page
from psruntime.dashboard.history import History
from psruntime.dashboard.page import Column, Head, Page, Table, head_html, replace_data
from psruntime.dashboard.server import KINDS
from tests.observe.test_render import PS, PS_STATS, STATUS, WORKER

JOB = JobConfig(mode="bounded", bound=2, ps=2, train_steps=1000, job_id="made-up")
COUNTS = (5, 3, 2) + (0,) * (len(STALENESS_LIMITS) - 2)
PAIR = (
    replace(PS, ps_stats=replace(PS_STATS, received_of={0: 7, 1: 9}, row_counts=(RowCounts("ids", 8, admitted=3),)),
            ps_traffic=PsTraffic(10.0, 20.0, 0.25)),
    replace(PS, index=1, incarnation="01ff", ps_stats=PsStats(2000, 1, 8, 6, {"stale": 1}, 2, 1, received_of={0: 6})),
)  # fmt: skip
FAST = WorkerStats(8, 1, 3, 100.0, 0.5, staleness_counts=COUNTS)
WORKERS = (
    replace(WORKER, index=0, incarnation="a", chief=True, clock=43, lead=3, worker_stats=FAST, silent_s=0.1,
            worker_traffic=WorkerTraffic(3.0, 5.0)),
    replace(WORKER, index=1, incarnation="b", chief=False, clock=40, lead=0, silent_s=6.0,
            worker_stats=WorkerStats(9, 4, 9, 50.0, 1.5)),
)  # fmt: skip
GONE = (Departure(WORKER.role, 2, "c", None, "silent for 10.0 s", 3.0),)
NOW = replace(
    STATUS, members=(*PAIR, *WORKERS), departures=GONE, unanswered={0: 1}, reason="view <2> was prepared", max_lead=2
)


@pytest.fixture
def history() -> History:
    """Of two seconds."""
    history = History()
    history.observe(replace(NOW, global_step=490), JOB, 1000.0)
    history.observe(NOW, JOB, 1002.0)
    return history


def page_of(slug: str, history: History) -> Page:
    """Shown twice, as a browser that stays has it, and part of a document, which checks its models."""
    (kind,) = [kind for kind in KINDS if kind.slug == slug]
    page, document = kind.make(), Document()
    page.show(History())
    for card in page.cards:
        document.add_root(card.model)
    page.show(history)
    page.show(history)
    document.validate()
    document.to_json()
    return page


def data_of(page: Page, name: str) -> dict[str, Any]:
    (card,) = [card for card in page.cards if card.name == name]
    source = card.model.source if hasattr(card.model, "source") else card.model.select_one(ColumnDataSource)
    return dict(source.data)


def test_the_cluster(history: History) -> None:
    page = page_of("", history)
    squares = data_of(page, "processes")
    assert squares["process"] == ["ps 0", "ps 1", "worker 0", "worker 1", "worker 2"]
    assert squares["state"] == ["serves", "serves", "waits", "silent", "lost"]
    assert squares["border"] == [0, 0, 3, 0, 0]
    assert squares["why"][-1] == "silent for 10.0 s"
    assert len(set(zip(squares["x"], squares["y"], strict=True))) == 5
    workers = data_of(page, "workers")
    assert (workers["worker"], workers["lead"]) == ([0, 1], [3, 0])
    assert workers["lease left, s"] == pytest.approx([9.9, 4.0])
    assert workers["waits for"] == ["3 steps ahead of the slowest, bound 2", ""]
    ps = data_of(page, "ps")
    assert ps["received/s"][0] == 20.0 and math.isnan(ps["received/s"][1])
    (waiting,) = [card.model.text for card in page.cards if card.name == "waiting"]
    assert "3 steps ahead of the slowest, bound 2" in waiting


def test_more_that_are_lost_than_a_status_tells_are_squares() -> None:
    """Also when the departures that told of the first are not told any more; until somebody has the index again."""
    history = History()
    crowd = [replace(WORKERS[1], index=i, incarnation=f"{i:04}") for i in range(40)]
    lost = [replace(GONE[0], index=each.index, incarnation=each.incarnation) for each in crowd]
    for at_s, live, told in ((0, crowd, []), (1, crowd[20:], lost[4:20]), (2, crowd[36:], lost[20:36])):
        history.observe(replace(NOW, members=(*PAIR, *live), departures=tuple(told)), JOB, 1000.0 + at_s)
    squares = data_of(page_of("", history), "processes")
    assert squares["state"].count("lost") == 36
    assert squares["why"].count("the log of ps 0 has the reason") == 4
    back = replace(crowd[0], incarnation="new")
    history.observe(replace(NOW, members=(*PAIR, back, *crowd[36:]), departures=tuple(lost[20:36])), JOB, 1003.0)
    assert data_of(page_of("", history), "processes")["state"].count("lost") == 35


def test_who_waits_is_grouped_by_the_reason() -> None:
    waiting = {**dict.fromkeys(range(20), "round 7 waits for worker 21"), 20: "PREPARING: view 2 is complete"}
    assert cluster_page.waits_of(waiting) == [
        ("0, 1, 2, 3, 4, 5, 6, 7 and 12 more", 20, "round 7 waits for worker 21"),
        ("20", 1, "PREPARING: view 2 is complete"),
    ]


def test_the_race(history: History) -> None:
    page = page_of("clocks", history)
    race = data_of(page, "race")
    assert (race["clock"], race["lead"], race["who"]) == ([43, 40], [3, 0], ["0, chief", "1"])
    figure = page.cards[0].model
    assert figure.x_range.start < 40 < 43 < figure.x_range.end
    spans = [model for model in figure.center if type(model).__name__ == "Span"]
    assert [(span.location, span.visible) for span in spans] == [(40, True), (43, True)]
    assert list(data_of(page, "leads")["bound + 1"]) == [3, 3]


def test_staleness(history: History) -> None:
    data = data_of(page_of("staleness", history), "histogram")
    assert data["all"][:4] == [0.5, 0.3, 0.2, 0.0]
    assert data["count"][:3] == [5, 3, 2]
    assert sum(data["recent"]) == 0, "all that is from before the first look"
    assert data["versions"][:5] == ["0", "1", "2", "3-4", "5-8"] and data["versions"][-1] == "1024+"


def test_progress(history: History) -> None:
    page = page_of("progress", history)
    assert list(data_of(page, "loss")["mean"]) == [1.0, 1.0]
    assert (list(data_of(page, "loss")["least"]), list(data_of(page, "loss")["most"])) == ([0.5, 0.5], [1.5, 1.5])
    assert list(data_of(page, "steps")["steps/s"]) == [0.0, 5.0]
    assert list(data_of(page, "examples")["examples/s"]) == [150.0, 150.0]


def test_the_ledger(history: History) -> None:
    page = page_of("ledger", history)
    sums = data_of(page, "sums")
    assert (sums["received"], sums["+ dropped"], sums["balances"]) == ([110, 8], [10, 1], ["yes", "yes"])
    accounts = data_of(page, "accounts")
    assert (accounts["sent"], accounts["received by all"], accounts["unanswered"]) == ([8, 9], [6, 0], [1, 0])
    assert data_of(page, "fates")["dropped"] == pytest.approx([10 / 110, 1 / 8])


def test_rounds(history: History) -> None:
    page = page_of("rounds", history)
    assert data_of(page, "late")["late"] == [0.0, 1.0]
    assert "worker 1, 100% of the looks" in page.cards[0].model.text
    assert data_of(page, "workers")["now"] == ["waits", "steps"]


def test_memory_and_traffic(history: History) -> None:
    page = page_of("ps", history)
    assert data_of(page, "memory")["variables"] == [12_345_678, 2000]
    assert data_of(page, "tables")["ids"] == [3]
    traffic = data_of(page, "traffic")
    assert (traffic["sent"], traffic["sent drawn"]) == ([10.0, 0.0], [-10.0, 0.0])
    assert list(data_of(page, "received")["ps 0"]) == [20.0, 20.0]
    assert all(math.isnan(value) for value in data_of(page, "received")["ps 2"])


def columns_of(page: Page, card: str) -> dict[str, list[float]]:
    data = next(each.model for each in page.cards if each.name == card).select_one(ColumnDataSource).data
    return {name: list(values) for name, values in data.items()}


def test_curves_begin_anew_with_another_job(history: History) -> None:
    page = page_of("progress", history)
    card = next(card.name for card in page.cards if "time" in columns_of(page, card.name))
    assert len(columns_of(page, card)["time"]) == 2
    history.observe(NOW, replace(JOB, job_id="another"), 1003.0)
    page.show(history)
    history.observe(NOW, replace(JOB, job_id="another"), 1004.0)
    page.show(history)
    times = columns_of(page, card)["time"]
    assert [time - times[0] for time in times] == [0.0, 1000.0]


def test_curves_have_a_gap_where_the_coordinator_was_away(history: History) -> None:
    page = page_of("progress", history)
    card = next(card.name for card in page.cards if "time" in columns_of(page, card.name))
    history.observe_failure("coordinator a:1: down", 1003.0)
    page.show(history)
    history.observe(NOW, JOB, 1010.0)
    page.show(history)
    columns = columns_of(page, card)
    times = columns.pop("time")
    assert [time - times[0] for time in times] == [0.0, 2000.0, 10_000.0, 10_000.0]
    for values in columns.values():
        assert [math.isnan(value) for value in values] == [False, False, True, False]


def test_events_have_reasons_and_no_markup(history: History) -> None:
    history.observe(replace(NOW, members=(*PAIR, replace(WORKERS[1], chief=True)), reason="<b>"), JOB, 1003.0)
    page = page_of("events", history)
    events, gone = (card.model.text for card in page.cards)
    assert "worker 0 -&gt; worker 1" in events
    assert "silent for 10.0 s" in events and "silent for 10.0 s" in gone


def test_the_head_tells_how_old_it_is_and_who_is_gone(history: History) -> None:
    head = Head()
    head.show(History())
    assert "has not answered yet" in head.model.text
    head.show(history)
    assert "view &lt;2&gt; was prepared" in head.model.text and "global step 500 of 1,000" in head.model.text
    assert "bound 2" in head.model.text and head.model.tags == [1002.0]
    history.observe_failure("coordinator a:1: <down>", 1003.0)
    text = head_html(history)
    assert "not reachable since" in text and "&lt;down&gt;" in text and "TRAINING" in text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_hundreds_of_workers_fit_and_a_look_that_brings_nothing_sends_nothing(kind: Any) -> None:
    history = History()
    crowd = [replace(WORKERS[0], index=i, incarnation=str(i), chief=i == 0, lead=i % 4) for i in range(256)]
    history.observe(replace(NOW, members=(*PAIR, *crowd)), JOB, 1000.0)
    page, document = kind.make(), Document()
    for card in page.cards:
        document.add_root(card.model)
    page.show(history)
    sent: list[Any] = []
    document.on_change(sent.append)
    page.show(history)
    assert not sent
    heights = [card.model.height or 0 for card in page.cards]
    assert max(heights) < 1500 and all(card.model.sizing_mode == "stretch_width" for card in page.cards)


def test_only_what_has_changed_is_sent() -> None:
    source, sent = ColumnDataSource({"a": [1, 2, math.nan], "b": ["x", "y", "z"]}), []
    document = Document()
    document.add_root(source)
    document.on_change(sent.append)
    replace_data(source, {"a": [1, 5, math.nan], "b": ["x", "y", "z"]})
    (event,) = sent
    assert event.patches == {"a": [(1, 5)]}
    replace_data(source, {"a": [1], "b": ["x"]})
    assert source.data == {"a": [1], "b": ["x"]}


def test_a_table_draws_anew_when_its_data_have_changed() -> None:
    """Bokeh's grid looks at its view alone, which does not change while there are as many rows."""
    table = Table([Column("a"), Column("b", words=True)])
    tags = [list(table.model.view.tags)]
    for rows in ([(1, "x")], [(1, "x")], [(2, "x")], [(2, "x"), (3, "y")]):
        table.show(rows)
        tags.append(list(table.model.view.tags))
    assert tags[1] == tags[2]
    assert len({tuple(each) for each in tags}) == 4
