"""Traces: their lanes, their files, and what they say of a step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.commands import trace
from psruntime.config.values import StepRange
from psruntime.errors import EXIT_USAGE, UsageError
from psruntime.observe.traces import (
    APPLY,
    MUTEX,
    PHASE,
    STEP,
    BadPartError,
    Head,
    Span,
    TraceFolder,
    head_of,
    lanes,
    parts_in,
    read_trace,
    spans_of,
    write_part,
)
from psruntime.study.trace_report import busy_s, report_of

times = st.integers(0, 20).map(float)
spans_of_one_task = st.lists(
    st.builds(lambda begin_s, length_s: Span("ps 0", 0, APPLY, "update", begin_s, begin_s + length_s), times, times)
)


@given(spans_of_one_task)
def test_in_a_lane_nothing_overlaps(spans: list[Span]) -> None:
    placed = list(lanes(spans))
    assert sorted(span.begin_s for _, span in placed) == sorted(span.begin_s for span in spans)
    for number, (lane, one) in enumerate(placed):
        for other_lane, other in placed[number + 1 :]:
            if lane == other_lane:
                assert other.begin_s >= one.end_s


def test_steps_that_overlap_have_lanes_of_their_own_each_with_its_phases() -> None:
    first, second = step(0, 0.0, gate=1.0, pull=5.0, push=4.0), step(0, 4.0, gate=1.0, pull=5.0, push=4.0)
    placed = list(lanes([*first, *second]))
    assert placed == [*((0, span) for span in first), *((1, span) for span in second)]


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


def of_worker(worker: int) -> list[Span]:
    return [span for span in [*SLOW, *ON_PS] if span.worker == worker]


def written(folder: Path) -> str:
    """The trace of both workers."""
    trace_folder = TraceFolder(str(folder), "7:8")
    for worker in (0, 1):
        add(trace_folder, worker, of_worker(worker), 0.001 * (worker + 1))
    assert trace_folder.update() == (2, [])
    return trace_folder.path


def add(folder: TraceFolder, worker: int, spans: list[Span], off_by_s: float = 0.0) -> None:
    begin_s, end_s = min(span.begin_s for span in spans), max(span.end_s for span in spans)
    write_part(Head(worker, "sync", off_by_s, begin_s, end_s, 3), spans, folder.parts, f"worker-{worker}")


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
    found = read_trace(written(tmp_path))
    assert (found.steps, found.modes, found.off_by_s, found.left_out) == ("7:8", ["sync"], pytest.approx(0.003), 6)
    assert len(found.spans) == len(SLOW) + len(ON_PS)
    for span in [*SLOW, *ON_PS]:
        (same,) = [s for s in found.spans if (s.task, s.worker, s.name) == (span.task, span.worker, span.name)]
        assert (same.begin_s, same.end_s) == pytest.approx((span.begin_s, span.end_s), abs=1e-6)
        assert (same.kind, same.facts) == (span.kind, span.facts)
    assert report_of(found.spans).waited_for is not None


def test_a_trace_has_a_process_for_each_task_and_a_thread_for_each_lane(tmp_path: Path) -> None:
    events = json.loads(gzip.decompress(Path(written(tmp_path)).read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(names, key=lambda pid: order[pid])] == ["worker 0", "worker 1", "ps 1"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    of_ps = [name for (pid, _), name in threads.items() if names[pid] == "ps 1"]
    assert of_ps == ["for worker 0", "for worker 0", "for worker 1"]  # two updates of one worker overlap
    timed = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in timed} == set(threads)
    assert min(event["ts"] for event in timed) == 0.0 and all(event["dur"] >= 0.0 for event in timed)


def test_a_part_is_read_as_it_was_written_and_joined_when_it_changes(tmp_path: Path) -> None:
    folder = TraceFolder(str(tmp_path), "7:8")
    assert folder.update() == (0, []) and not Path(folder.path).exists()
    add(folder, 0, of_worker(0), 0.5)
    (path,) = parts_in(folder.parts)
    assert spans_of(path) == of_worker(0)
    assert head_of(path) == Head(0, "sync", 0.5, 100.0, max(span.end_s for span in of_worker(0)), 3)
    assert folder.update() == (1, []) and folder.update() == (0, [])
    add(folder, 0, of_worker(1))
    assert folder.update() == (1, [])
    assert {span.task for span in read_trace(folder.path).spans} == {"worker 1", "ps 1"}


def test_parts_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    folder = TraceFolder(str(tmp_path), "7:8")
    add(folder, 0, of_worker(0))
    add(folder, 1, of_worker(1))
    add(folder, 7, [Span("worker 7", 7, STEP, "step 7", 100.0 - 5000, 100.0 - 601)])
    assert folder.update() == (2, [])
    add(folder, 8, [Span("worker 8", 8, STEP, "step 7", 100.0 - 500, 100.0 - 400)])
    assert folder.update() == (4, []), "there is no gap of ten minutes any more"


def test_a_part_that_is_not_whole_is_named_and_left_out(tmp_path: Path) -> None:
    folder = TraceFolder(str(tmp_path), "7:8")
    for worker in (0, 1):
        add(folder, worker, of_worker(worker))
    cut = Path(sorted(parts_in(folder.parts))[0])
    cut.write_bytes(cut.read_bytes()[:-20])
    workers, failures = folder.update()
    assert workers == 1 and len(failures) == 1 and failures[0].startswith(f"{cut} is not a part of a trace")
    cut.write_bytes(gzip.compress(b'{"worker": 1, "more": 2}\n'))
    assert folder.update()[0] == 1
    with pytest.raises(BadPartError):
        head_of(str(cut))


def test_the_command_says_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert trace.main([path]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "global steps 7:8 in mode sync; the clocks agree within 3.00 ms" in told
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
    for wrong in ("100", "a:b", "1:2:3", "-1:5", "0:5", "5:5", "7:3", "1:102", "1:²", ":"):
        with pytest.raises(UsageError, match="trace_steps must"):
            StepRange.of("trace_steps", wrong)


def test_a_trace_that_was_copied_in_part_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(written(tmp_path))
    path.write_bytes(path.read_bytes()[:-30])
    assert trace.main([str(path)]) == EXIT_USAGE
    assert capsys.readouterr().err == f"psruntime trace: {path} is not a trace of --trace-steps, or not a whole one\n"
