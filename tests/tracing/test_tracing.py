"""Traces: their lanes, their files, and what they say of a step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime import trace
from psruntime.errors import EXIT_USAGE, UsageError
from psruntime.step_range import StepRange
from psruntime.tracing.chrome import read_trace, write_trace
from psruntime.tracing.parts import Part, parts_in, read_part, write_part
from psruntime.tracing.report import busy_s, report_of
from psruntime.tracing.spans import APPLY, MUTEX, PHASE, STEP, Span, lanes

times = st.integers(0, 20).map(float)
spans_of_one_task = st.lists(
    st.builds(lambda begin_s, length_s: Span("ps 0", 0, APPLY, "update", begin_s, begin_s + length_s), times, times)
)


@given(spans_of_one_task)
def test_in_a_lane_spans_lie_beside_or_within_each_other(spans: list[Span]) -> None:
    placed = lanes(spans)
    assert sorted(span.begin_s for _, span in placed) == sorted(span.begin_s for span in spans)
    for number, (lane, one) in enumerate(placed):
        for other_lane, other in placed[number + 1 :]:
            if lane == other_lane:
                assert other.begin_s >= one.end_s or other.end_s <= one.end_s


@given(spans_of_one_task)
def test_time_is_busy_if_a_span_is_under_way(spans: list[Span]) -> None:
    moments = [half / 2 for half in range(90)]
    under_way = [any(span.begin_s <= moment < span.end_s for span in spans) for moment in moments]
    assert busy_s(spans) == pytest.approx(sum(under_way) / 2)


def step(worker: int, begin_s: float, **phases_s: float) -> list[Span]:
    spans, at_s, task = [], begin_s, f"worker {worker}"
    for phase, length_s in phases_s.items():
        spans.append(Span(task, worker, PHASE, phase, at_s, at_s + length_s))
        at_s += length_s
    return [Span(task, worker, STEP, "step 7", begin_s, at_s, {"loss": 0.5}), *spans]


SLOW = [*step(0, 100.0, round=0.06, compute=0.04), *step(1, 100.0, round=0.01, compute=0.09)]
ON_PS = [
    Span("ps 1", 0, MUTEX, "lock", 100.0, 100.002),
    Span("ps 1", 0, APPLY, "update", 100.002, 100.006),
    Span("ps 1", 0, APPLY, "other", 100.004, 100.008),
    Span("ps 1", 1, APPLY, "update", 100.002, 100.006),
]
FACTS = {"steps": "7:8", "mode": "sync"}


def parts() -> list[Part]:
    of = {worker: [span for span in [*SLOW, *ON_PS] if span.worker == worker] for worker in (0, 1)}
    return [Part(5, worker, 0.001 * (worker + 1), 3, spans) for worker, spans in of.items()]


def test_a_report_says_who_waits_and_for_whom() -> None:
    found = report_of([*SLOW, *ON_PS])
    assert [(time.worker, time.steps, time.step_s) for time in found.workers] == [
        (0, 1, pytest.approx(0.1)),
        (1, 1, pytest.approx(0.1)),
    ]
    assert found.workers[0].phases == pytest.approx({"round": 0.06, "compute": 0.04})
    assert found.waited_for and found.waited_for.worker == 1
    (ps,) = found.ps
    assert ps.kinds[APPLY] == pytest.approx((0.006 + 0.004) / 2) and ps.kinds[MUTEX] == pytest.approx(0.001)
    assert report_of(step(0, 1.0, round=0.1) + step(1, 1.0, round=0.09, compute=0.01)).waited_for is None
    assert report_of(step(0, 1.0, compute=0.1)).waited_for is None


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "steps.json.gz")
    write_trace(parts(), FACTS, path)
    found = read_trace(path)
    assert found.facts == {**FACTS, "begin_s": 100.0, "off_by_s": 0.002, "left_out": 6}
    assert len(found.spans) == len(SLOW) + len(ON_PS)
    for written in [*SLOW, *ON_PS]:
        (same,) = [s for s in found.spans if (s.task, s.worker, s.name) == (written.task, written.worker, written.name)]
        assert (same.begin_s, same.end_s) == pytest.approx((written.begin_s, written.end_s), abs=1e-6)
        assert (same.kind, same.facts) == (written.kind, written.facts)


def test_a_trace_has_a_process_for_each_task_and_a_thread_for_each_lane(tmp_path: Path) -> None:
    path = tmp_path / "steps.json.gz"
    write_trace(parts(), FACTS, str(path))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(names.values()) == ["worker 0", "worker 1", "ps 1"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    of_ps = [name for (pid, _), name in threads.items() if names[pid] == "ps 1"]
    assert of_ps == ["for worker 0", "for worker 0", "for worker 1"]  # two updates of one worker overlap
    timed = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in timed} == set(threads)
    assert min(event["ts"] for event in timed) == 0.0 and all(event["dur"] >= 0.0 for event in timed)


def test_a_part_is_read_as_it_was_written_and_seen_when_it_changes(tmp_path: Path) -> None:
    assert not parts_in(str(tmp_path / "none"))
    for part in parts():
        write_part(part, str(tmp_path / "parts"))
    before = parts_in(str(tmp_path / "parts"))
    assert [read_part(path) for path in before] == parts()
    write_part(parts()[0], str(tmp_path / "parts"))
    assert parts_in(str(tmp_path / "parts")) != before


def test_the_command_says_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "steps.json.gz")
    write_trace(parts(), FACTS, path)
    assert trace.main([path]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "global steps 7:8 in mode sync; the clocks agree within 2.00 ms" in told
    assert (
        "worker 0 waits 60% of its step for others; worker 1 waits least, 10%, and spends 90.0 of 100.0 ms on" in told
    )
    assert trace.main([path, "--json"]) == 0
    told_json = json.loads(capsys.readouterr().out)
    assert told_json["waited_for"]["worker"] == 1 and told_json["steps"] == "7:8"


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "cannot read"), ("{}", "is not a trace of"), ("[1]", "is not a trace of"), ("", "is not a")],
)
def test_what_is_no_trace_is_refused_in_a_line(
    text: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    assert trace.main([str(path)]) == EXIT_USAGE
    told = capsys.readouterr().err
    assert told.startswith("psruntime trace: ") and why in told and told.count("\n") == 1


def test_a_range_of_steps_is_two_numbers() -> None:
    assert StepRange.of("trace_steps", "") == (0, 0)
    assert StepRange.of("trace_steps", "100:110") == (100, 110)
    for wrong in ("100", "a:b", "1:2:3", "-1:5", "0:5", "5:5", "7:3", "1:1002", "1:²", ":"):
        with pytest.raises(UsageError, match="trace_steps must"):
            StepRange.of("trace_steps", wrong)
