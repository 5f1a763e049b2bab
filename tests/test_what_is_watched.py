"""What people watch of a job, and where it shows: a row for each fact, a column for each place.

| fact | status | progress line | JSON | metrics | dashboard's head | events | end of `run` |
|---|---|---|---|---|---|---|---|
| last metrics on held-out data | yes | yes | numbers | yes | yes | | yes |
| the best by the compared metric | yes | yes | numbers | yes | yes | | yes |
| checkpoints fail | yes | yes | yes | yes | yes | yes | |
| why they fail | yes | yes | yes | | yes | yes | |
| the training's loss | yes | yes | number | of a worker | yes | | |
| who is gone, and not who is back | yes | | all departures | | | yes | |
| why the job ends early | phase | phase | phase | | phase | phase | yes |
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from psruntime.core.members.job_status import Departure, JobStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import FailedSaves, HeldOut, Measurements, WorkerStats
from psruntime.dashboard.history import History
from psruntime.dashboard.job_events import events_between
from psruntime.dashboard.page import head_html
from psruntime.observe.metrics import of_job
from psruntime.observe.render import as_json, as_tables, progress_line, text_console
from tests.observe.test_render import JOB, PS, STATUS, WORKER

CAUSE = "checkpoint 520 was not written to /ck: No space left on device"
MEASURED = Measurements(HeldOut(480, {"loss": 0.5, "mae": 0.125, "nan": float("nan")}), HeldOut(400, {"mae": 0.0625}))
NOW = replace(STATUS, held_out=MEASURED, failed_saves=FailedSaves(3, CAUSE))


def table_text(now: JobStatus) -> str:
    out = io.StringIO()
    Console(file=out, width=1000).print(as_tables(now, JOB))
    return out.getvalue()


def metrics_text(now: JobStatus) -> str:
    registry = CollectorRegistry()
    registry.register(of_job(lambda: now, JOB))
    return generate_latest(registry).decode()


def head_text(now: JobStatus) -> str:
    history = History()
    history.observe(now, JOB, 1000.0)
    return head_html(history)


def events_text(now: JobStatus) -> str:
    return "\n".join(map(str, events_between(STATUS, now, JOB, 1000.0)))


PLACES = {
    "status": table_text,
    "progress line": lambda now: progress_line(now, JOB, 1.0),
    "metrics": metrics_text,
    "dashboard": head_text,
    "events": events_text,
}
LAST = "mae 0.1250, loss 0.5000, nan nan (global step 480)"
BEST = "best mae 0.0625 (global step 400)"
FACTS = [
    ("last", {"status": LAST, "progress line": LAST, "dashboard": LAST,
              "metrics": 'psruntime_job_held_out_metric{metric="mae",which="last"} 0.125'}),
    ("last, its step", {"metrics": 'psruntime_job_held_out_global_step{which="last"} 480'}),
    ("best", {"status": BEST, "progress line": BEST, "dashboard": BEST,
              "metrics": 'psruntime_job_held_out_metric{metric="mae",which="best"} 0.0625'}),
    ("why checkpoints fail", dict.fromkeys(["status", "progress line", "dashboard", "events"], CAUSE)),
    ("that they fail", {"metrics": "psruntime_job_failed_saves 3"}),
    ("loss", {"status": "0.2500", "progress line": "loss 0.2500", "dashboard": "loss 0.2500"}),
]  # fmt: skip


@pytest.mark.parametrize(("fact", "places"), FACTS, ids=[fact for fact, _ in FACTS])
def test_each_fact_shows_where_the_table_has_it(fact: str, places: dict[str, str]) -> None:
    for place, text in places.items():
        assert text in PLACES[place](NOW), (fact, place)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_shows_before_it_is_measured_or_fails(place: str) -> None:
    shown = PLACES[place](STATUS)
    assert not any(word in shown for word in ("held out", "best mae", "no checkpoint is", "held_out_metric{"))


def test_they_are_numbers_in_json() -> None:
    facts: dict[str, Any] = json.loads(json.dumps(as_json(NOW, JOB), allow_nan=False))
    assert facts["held_out"] == {
        "last": {"global_step": 480, "values": {"loss": 0.5, "mae": 0.125, "nan": None}},
        "best": {"global_step": 400, "values": {"mae": 0.0625}},
    }
    assert facts["failed_saves"] == {"count": 3, "cause": CAUSE}
    assert as_json(STATUS, JOB)["held_out"] == {"last": None, "best": None}


def test_who_is_back_is_not_listed_as_gone() -> None:
    back, gone = (Departure(Role.WORKER, index, "00", None, "silent", 5.0) for index in (WORKER.index, 7))
    assert "gone" not in table_text(replace(STATUS, departures=(back,)))
    text = table_text(replace(STATUS, departures=(back, gone)))
    assert "worker 7" in text.partition("gone")[2] and f"worker {WORKER.index} " not in text.partition("gone")[2]
    assert len(as_json(replace(STATUS, departures=(back, gone)), JOB)["departures"]) == 2


def test_in_a_pipe_a_member_has_one_line_of_which_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "waits for " + " and ".join(f"worker {index}" for index in range(60))
    members = (PS, *(replace(WORKER, index=i, worker_stats=WorkerStats(waiting=reason)) for i in range(3)))
    text_console().print(as_tables(replace(STATUS, members=members), JOB))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(reason)] == ["0", "1", "2"]
    assert sum(line.split()[:1] in (["ps"], ["worker"], ["traffic"]) and "…" not in line for line in lines) == 3 + 4
