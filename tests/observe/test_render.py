"""The status as tables, as a line, and as JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

from rich.console import Console

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure, JobStatus, MemberStatus, PsTraffic, WorkerTraffic
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import (
    BytesMoved,
    FailedSaves,
    GpuMemory,
    LeaveKind,
    PsStats,
    RowCounts,
    WorkerStats,
)
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.shards.shard_messages import ShardsStatus
from psruntime.core.steering.commands import Overrides, SteeringStatus
from psruntime.observe.render import as_json, as_tables, progress_line

PS_STATS = PsStats(12_345_678, 4, 110, 100, {"stale": 9, "fenced": 1, "repeated": 0}, 7)
PS = MemberStatus(Role.PS, 0, "10.0.0.1:1", "10.0.0.1:2", "00ff", 9.0, 0.5, ps_stats=PS_STATS)
WORKER = MemberStatus(
    Role.WORKER, 3, "10.0.0.2:1", "10.0.0.2:2", "0010", 9.0, 1.5, chief=True, clock=42, lead=2,
    worker_stats=WorkerStats(50, 1, 6, 1234.5, 0.25, "PREPARING: view 2 is complete"),
)  # fmt: skip
STATUS = JobStatus(Phase.TRAINING, "why", View(2, (PsEntry(0, "10.0.0.1:1", 255),)), 40, 500, 12, (PS, WORKER))
JOB = JobConfig(train_steps=1000)


def test_tables_show_what_an_operator_asks_for() -> None:
    out = io.StringIO()
    Console(file=out, width=160).print(as_tables(STATUS, JOB))
    text = out.getvalue()
    for piece in (
        "TRAINING", "why", "global step 500 of 1000", "12 steps lost", "10.0.0.1:1", "12.3 MB", "stale 9, fenced 1",
        "3 (chief)", "42", "1234", "0.2500", "PREPARING: view 2 is complete",
    ):  # fmt: skip
        assert piece in text, piece


def test_the_epoch_is_shown_with_its_shards() -> None:
    def head(shards: ShardsStatus, job: JobConfig) -> str:
        out = io.StringIO()
        Console(file=out, width=160).print(as_tables(replace(STATUS, shards=shards), job))
        return out.getvalue()

    assert "epoch 3 of 5: 7 of 12 shards done, 1 handed out again" in head(
        ShardsStatus(3, 7, 12, 1), JobConfig(epochs=5)
    )
    text = head(ShardsStatus(6, 0, 12, 0), JobConfig(epochs=5))
    assert "epoch 6: 0 of 12 shards done" in text and "again" not in text
    assert as_json(replace(STATUS, shards=ShardsStatus(3, 7, 12, 1)), JOB)["shards"]["done"] == 7


def test_what_a_member_said_is_shown_as_it_is() -> None:
    """The tables know a markup, and one that is wrong would end the command."""
    worker = replace(WORKER, worker_stats=WorkerStats(waiting="[/b] of [red]worker[/red] 1"))
    ps = replace(PS, address="[::1]:7", ps_stats=replace(PS_STATS, dropped={"[/]": 1}))
    out = io.StringIO()
    Console(file=out, width=160).print(as_tables(replace(STATUS, reason="[/i]", members=(ps, worker)), JOB))
    for piece in ("[/b] of [red]worker[/red] 1", "[::1]:7", "[/] 1", "[/i]"):
        assert piece in out.getvalue(), piece


def test_in_mode_bounded_the_leads_are_shown_with_their_largest() -> None:
    worker = replace(WORKER, worker_stats=WorkerStats(max_lead=3, waiting="3 steps ahead of worker 1, bound 2"))
    status, job = replace(STATUS, members=(PS, worker), max_lead=1), JobConfig(mode="bounded", bound=2)
    out = io.StringIO()
    Console(file=out, width=160).print(as_tables(status, job))
    for piece in ("largest lead 1 of 2", "lead/max", "2/3", "3 steps ahead of worker 1, bound 2"):
        assert piece in out.getvalue(), piece
    assert as_json(status, job)["max_lead"] == 1
    assert as_json(status, job)["workers"][0]["worker_stats"]["max_lead"] == 3


def shown(status: JobStatus, job: JobConfig = JOB) -> str:
    """As text, with one space between words."""
    out = io.StringIO()
    Console(file=out, width=200).print(as_tables(status, job))
    return re.sub(" +", " ", out.getvalue())


def test_shares_are_shown_where_rounds_have_them() -> None:
    job = JobConfig(mode="sync", batch_policy="throughput")
    status = replace(STATUS, members=(PS, replace(WORKER, share=48), replace(WORKER, index=5, chief=False)))
    text = shown(status, job)
    assert "worker share examples/s" in text and "3 (chief) 48 1234" in text and "5 - 1234" in text
    assert [worker["share"] for worker in as_json(status, job)["workers"]] == [48, 0]
    assert "worker examples/s" in shown(status, JobConfig(mode="sync"))


def test_traffic_is_shown_for_each_ps_and_worker() -> None:
    ps = replace(PS, ps_traffic=PsTraffic(1_500_000.0, 2_500_000.0, 0.51))
    worker = replace(
        WORKER, worker_stats=WorkerStats(loss=0.25, step_tensors=321), worker_traffic=WorkerTraffic(40_000.4, 50_000.2)
    )
    text = shown(replace(STATUS, members=(ps, worker)))
    assert "traffic in out share tensors/step" in text
    assert "ps 0 2.5 MB/s 1.5 MB/s 51%" in text and "worker 3 50.0 kB/step 40.0 kB/step 321" in text
    assert "carries" not in text


def test_memory_of_gpus_is_shown_once_a_worker_reports_some() -> None:
    gib = 1 << 30
    one = GpuMemory(0, "NVIDIA H100 80GB HBM3", int(20.1 * gib), int(79.6 * gib))
    two = GpuMemory(3, "NVIDIA H100 80GB HBM3", 300 << 20, int(79.6 * gib))
    first, second, third = (
        replace(WORKER, index=index, worker_stats=WorkerStats(loss=0.25, gpus=gpus))
        for index, gpus in enumerate(((one,), (one, two), ()))
    )
    text = shown(replace(STATUS, members=(first, second, third)))
    assert "loss GPU silent waiting for" in text
    assert "0.2500 0: 20.1 of 79.6 GiB 1.5 s" in text
    assert "0.2500 0: 20.1 of 79.6 GiB, 3: 0.3 of 79.6 GiB 1.5 s" in text
    assert "0.2500 - 1.5 s" in text
    assert "GPU" not in shown(replace(STATUS, members=(third,)))
    facts = json.loads(json.dumps(as_json(replace(STATUS, members=(first, third)), JOB)))
    assert facts["workers"][0]["worker_stats"]["gpus"] == [
        {"index": 0, "name": one.name, "held_bytes": one.held_bytes, "total_bytes": one.total_bytes}
    ]
    assert facts["workers"][1]["worker_stats"]["gpus"] == []


def test_what_is_not_known_is_no_number() -> None:
    text = shown(STATUS)
    assert "ps 0 - - -" in text and "worker 3 - - -" in text
    one_of_two = replace(PS, ps_traffic=PsTraffic(1.0, 2.0))
    assert "ps 0 2 B/s 1 B/s -" in shown(replace(STATUS, members=(one_of_two,)))


def test_a_ps_that_carries_too_much_is_named() -> None:
    heavy = replace(PS, ps_traffic=PsTraffic(9e6, 9e6, 0.9, heavy=True))
    text = shown(replace(STATUS, members=(heavy,)), replace(JOB, ps=2))
    assert "ps 0 carries 1.8 times its share of the traffic of 2 ps" in text
    facts = as_json(replace(STATUS, members=(heavy,)), JOB)
    assert facts["ps"][0]["ps_traffic"] == {"sent_per_s": 9e6, "received_per_s": 9e6, "share": 0.9, "heavy": True}


def test_the_progress_line() -> None:
    line = progress_line(STATUS, JOB, steps_per_s=4.0)
    assert line == "TRAINING step 500/1000  loss 0.2500  1234 examples/s  2:05 left  1 worker"
    endless = progress_line(STATUS, JobConfig(), steps_per_s=4.0)
    assert endless == "TRAINING step 500  loss 0.2500  1234 examples/s  1 worker"
    third = replace(STATUS, shards=ShardsStatus(3, 7, 12, 1))
    assert progress_line(third, JobConfig(epochs=5), 4.0).startswith("TRAINING step 500  epoch 3 of 5  loss 0.2500  ")
    assert " epoch 3  loss " in progress_line(third, JobConfig(), 4.0)
    assert "epoch" not in progress_line(third, JobConfig(epochs=2), 4.0), "they are done"
    forming = JobStatus(Phase.FORMING, "waiting for ps 1 of 2", View(), 0, 0, 0, ())
    assert progress_line(forming, JOB, 0.0) == "FORMING step 0/1000  waiting for ps 1 of 2"


def test_the_progress_line_says_nothing_twice() -> None:
    """The reason of DONE is the global step; that of FAILED may be why no checkpoint was written."""
    done = JobStatus(Phase.DONE, "global step 1001", View(), 0, 1001, 0, ())
    assert progress_line(done, JOB, 0.0) == "DONE step 1001/1000"
    failed = replace(done, phase=Phase.FAILED, reason="worker 0: disk full", failed_saves=FailedSaves(3, "disk full"))
    assert progress_line(failed, JOB, 0.0) == "FAILED step 1001/1000  worker 0: disk full"


def test_who_is_gone_and_what_was_passed_over_is_shown() -> None:
    gone = (
        Departure(Role.WORKER, 0, "00aa", LeaveKind.ERROR, "InvalidArgumentError: [b]ids[/b]", 12.0),
        Departure(Role.PS, 1, "00bb", None, "silent for 3.2 s", 75.0),
    )
    worker = replace(WORKER, worker_stats=WorkerStats(skipped=41))
    text = shown(replace(STATUS, members=(worker,), departures=gone))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "worker 0 0:12 left (error) InvalidArgumentError: [b]ids[/b]" in lines
    assert "ps 1 1:15 lost silent for 3.2 s" in lines
    assert "skipped" in text and " 41 " in text
    assert "skipped" not in shown(STATUS) and "gone" not in shown(STATUS)
    facts = json.loads(json.dumps(as_json(replace(STATUS, departures=gone), JOB)))
    assert facts["departures"][0] == {
        "role": "worker", "index": 0, "incarnation": "00aa", "kind": "error",
        "reason": "InvalidArgumentError: [b]ids[/b]", "ago_s": 12.0,
    }  # fmt: skip
    assert facts["departures"][1]["kind"] is None


def test_the_progress_line_says_why_nobody_trains() -> None:
    alone = replace(STATUS, reason="view 2 was prepared; no worker is live; worker 0 left", members=(PS,))
    assert progress_line(alone, JOB, 0.0).endswith("no worker is live; worker 0 left")


def test_json_is_complete_and_plain() -> None:
    facts = json.loads(json.dumps(as_json(STATUS, JOB)))
    assert facts["phase"] == "TRAINING"
    assert facts["job"]["train_steps"] == 1000
    assert facts["ps"][0]["ps_stats"]["dropped"] == {"stale": 9, "fenced": 1, "repeated": 0}
    assert facts["ps"][0]["incarnation"] == "00ff"
    assert facts["view"] == {"number": 2, "ps": [{"index": 0, "address": "10.0.0.1:1"}]}
    assert facts["workers"][0]["worker_stats"]["staleness_p99"] == 6
    assert facts["workers"][0]["worker_traffic"] is None and facts["ps"][0]["ps_stats"]["moved"] is None
    stats = WorkerStats(moved=BytesMoved(2**60, 5))
    moving = replace(WORKER, worker_stats=stats, worker_traffic=WorkerTraffic(1.5, 2.5))
    worker = as_json(replace(STATUS, members=(moving,)), JOB)["workers"][0]
    assert worker["worker_stats"]["moved"] == {"sent": 2**60, "received": 5}
    assert worker["worker_traffic"] == {"sent_per_step": 1.5, "received_per_step": 2.5}


def test_the_rows_of_a_dynamic_table_are_summed_over_the_ps() -> None:
    counts = RowCounts("users", 64, found=90, admitted=40, refused=7, expired=2, evicted=3)
    others = [replace(PS, index=i, ps_stats=replace(PS_STATS, row_counts=(counts,))) for i in range(2)]
    text = shown(replace(STATUS, members=tuple(others)))
    assert re.search(r"users 70 128 180 80 14 4 6", text), text
    assert "dynamic table" not in shown(STATUS)


STEERED = SteeringStatus(
    Overrides(3, 480, 2, 0.5, paused=True), ("bound 7", "save"), "waits for worker 3 to end its step"
)


def test_what_an_operator_has_changed_is_shown_with_what_is_about_to_be() -> None:
    def head(steering: SteeringStatus, job: JobConfig) -> str:
        out = io.StringIO()
        Console(file=out, width=160).print(as_tables(replace(STATUS, steering=steering), job))
        return out.getvalue()

    bounded = JobConfig(mode="bounded", bound=4)
    text = head(STEERED, bounded)
    assert "by control: bound 2, learning rates times 0.5, paused; the latest change from global step 480\n" in text
    assert "control: bound 7, then save to take effect: waits for worker 3 to end its step\n" in text
    assert "largest lead 0 of 2" in text
    assert "control" not in head(SteeringStatus(), bounded)
    resumed = head(SteeringStatus(Overrides(4, 490, 4)), bounded)
    assert "by control" not in resumed and "largest lead 0 of 4" in resumed, "it is as it was started"
    assert "paused by control" in progress_line(replace(STATUS, steering=STEERED), bounded, 3.0)
    data = json.loads(json.dumps(as_json(replace(STATUS, steering=STEERED), bounded)))["steering"]
    assert data["settings"] == {
        "revision": 3, "from_global_step": 480, "bound": 2, "learning_rate_scale": 0.5, "paused": True,
        "mode": "", "automatic": False,
    }  # fmt: skip
    assert data["pending"] == ["bound 7", "save"]


def test_a_schedule_is_shown_with_what_comes_next() -> None:
    job = JobConfig(schedule="async:400, bounded 4:2000, sync")

    def head(step: int, settings: Overrides) -> str:
        out = io.StringIO()
        status = replace(STATUS, global_step=step, steering=SteeringStatus(settings))
        Console(file=out, width=160).print(as_tables(status, job))
        return out.getvalue()

    followed = Overrides(1, 400, 4, mode="bounded", automatic=True)
    text = head(500, followed)
    assert "mode bounded," in text and "by control" not in text
    assert "schedule: bounded 4 until global step 2400, then sync\n" in text
    text = head(500, replace(followed, revision=2, mode="sync", bound=None, automatic=False))
    assert "schedule: left by control; psruntime control mode schedule follows it again\n" in text
    assert "by control: mode sync; the latest change from global step 400\n" in text


def test_an_adaptive_bound_is_shown_with_its_reason() -> None:
    job = JobConfig(mode="bounded", bound="auto:1-8")  # type: ignore[arg-type]

    def head(steering: SteeringStatus) -> str:
        out = io.StringIO()
        Console(file=out, width=160).print(as_tables(replace(STATUS, steering=steering), job))
        return out.getvalue()

    chosen = Overrides(1, 400, 6, mode="bounded", automatic=True)
    assert "bound: auto:1-8, 1 now\n" in head(SteeringStatus(replace(chosen, revision=0, bound=1)))
    text = head(SteeringStatus(chosen, bound_reason="by the last 50 steps of each worker"))
    assert "bound: auto:1-8, 6 now: by the last 50 steps of each worker\n" in text and "by control" not in text
    assert "largest lead 0 of 6" in text
    text = head(SteeringStatus(replace(chosen, bound=3, automatic=False)))
    assert "bound: auto:1-8, left by control; psruntime control bound auto chooses again\n" in text
    assert "by control: bound 3; the latest change from global step 400\n" in text


def test_down_weighted_updates_are_shown_where_there_are_any() -> None:
    def text(down_weighted: int) -> str:
        out = io.StringIO()
        ps = replace(PS, ps_stats=replace(PS_STATS, down_weighted=down_weighted))
        Console(file=out, width=160).print(as_tables(replace(STATUS, members=(ps, WORKER)), JOB))
        return out.getvalue()

    assert "down-weighted" not in text(0)
    header, row = (line for line in text(31).splitlines() if "down-weighted" in line or "10.0.0.1:1 " in line)
    assert header.split()[:5] == ["ps", "address", "bytes", "updates", "down-weighted"]
    assert row.split()[4:6] == ["100", "31"]
    assert as_json(replace(STATUS, members=(PS,)), JOB)["ps"][0]["ps_stats"]["down_weighted"] == 0
