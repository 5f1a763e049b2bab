"""From records to the page of a comparison."""

from __future__ import annotations

import math
import re

import pytest

from psruntime.errors import UsageError
from psruntime.observe.records import Record
from psruntime.study.comparison import CHARTS, POINTS, Training, best_of, curve, page_of, rows_of, training_of

BEGAN = 1.8e9


def record(
    worker: int, step: int, at_s: float, staleness: int | None = 0, outcome: str = "applied", **more: float
) -> Record:
    told = {"loss": 2.0, "waited_s": 0.0, **more}
    return Record(
        worker, step, "1-a", step, outcome, applied=1, dropped=0, staleness=staleness, weight=1.0, examples=64,
        time=BEGAN + at_s, train_s=at_s, mode="async", **told,
    )  # fmt: skip


def of_updates() -> Training:
    """Of two workers, in 10 s, one refused; worker 1 waits a minute before its first and 2.5 s before the others."""
    records = [record(0, step, step - 1.0, staleness=step % 2, loss=1 / step) for step in range(1, 11)]
    records += [
        record(1, 20, 2.0, waited_s=60.0),
        record(1, 21, 6.0, 3, waited_s=2.5),
        record(1, 22, 10.0, waited_s=2.5),
    ]
    records.append(record(0, 11, 9.5, None, "stale"))
    return training_of("bounded 2", records, {"accuracy": 0.9})


def test_the_numbers_of_a_training() -> None:
    training = of_updates()
    assert (training.steps, training.seconds, training.steps_per_s) == (13, 10.0, 1.3)
    assert (training.examples, training.dropped) == (13 * 64, 1)
    assert training.staleness == pytest.approx({0: 7 / 13, 1: 5 / 13, 3: 1 / 13})
    assert training.mean_staleness == pytest.approx(8 / 13)
    assert training.waited == pytest.approx({0: 0.0, 1: 0.5}), "the wait for the beginning of the job does not count"
    assert training.loss_by_step[0] == (1, 1.0) and training.loss_by_time[0] == (0.0, 1.0)


def test_a_round_of_several_workers_is_one_step() -> None:
    records = [record(w, n, n + w / 10, outcome="contributed") for n in (1, 2, 3) for w in (0, 1)]
    training = training_of("sync", records, {})
    assert (training.steps, training.examples) == (3, 6 * 64)
    before = [record(w, n, (n - 9) / 10) for n in (1, 2) for w in (0, 1)]
    assert training_of("async:4, sync", [*before, *records], {}).steps == 4 + 3, "with a schedule: updates, then rounds"


def test_nothing_that_was_trained_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="the record of 'async' has no update; give more --train-steps"):
        training_of("async", [record(0, 1, 1.0, None, "stale")], {})


def test_a_curve_has_few_points_and_no_peak_of_a_single_update() -> None:
    points = [(float(step), 100.0 if step == 500 else 1.0) for step in range(1000)]
    found = curve(reversed(points))
    assert len(found) <= POINTS and {y for _, y in found} == {1.0}
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert curve([(1.0, 2.0)]) == [(1.0, 2.0)] and curve([]) == []


def test_the_best_has_the_least_held_out_loss() -> None:
    trainings = [
        training_of(name, [record(0, 1, 0)], {} if loss is None else {"loss": loss, "accuracy": 1 - index})
        for index, (name, loss) in enumerate({"a": math.nan, "b": 0.5, "c": 0.25, "d": None, "e": 0.75}.items())
    ]
    best = best_of(trainings)
    assert best and best.name == "c"
    assert best_of([trainings[0], trainings[3]]) is None


def test_the_table_has_a_row_for_each_mode_and_a_column_for_each_metric() -> None:
    columns, rows = rows_of([of_updates(), training_of("async", [record(0, 1, 0), record(0, 2, 1)], {"loss": 0.5})])
    assert columns[-2:] == ["held-out accuracy", "held-out loss"]
    assert [row[0] for row in rows] == ["bounded 2", "async"]
    assert [row[-2:] for row in rows] == [["0.9000", "-"], ["-", "0.5000"]]
    assert all(len(row) == len(columns) for row in rows)


def test_the_page_needs_nothing_else_and_shows_every_chart() -> None:
    pytest.importorskip("bokeh")
    hostile = training_of("<b>&", [record(0, 1, 0), record(0, 2, 1, 700)], {})
    page = page_of([of_updates(), hostile], "model by mode", "2 workers")
    frame = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.S)
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"'](?!data:,)", frame), "it loads something"
    assert "<b>&" not in frame and "&lt;b&gt;&amp;" in frame
    for title, what in CHARTS.values():
        assert f"<h2>{title}</h2><p>{what}</p><div" in page
    assert page.count("prefers-color-scheme: dark") == 1
    for label in (
        "seconds since the first update",
        "staleness, versions",
        "global steps per second",
        "4-7",
        "32+",
        "worker 1",
    ):
        assert label in page
