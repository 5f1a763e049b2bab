"""What Prometheus reads of a process, by its own parser; the documented list of it; who may read it."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import CAUSES
from psruntime.core.members.job_status import JobStatus, MemberStatus, PsTraffic
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import (
    BytesMoved,
    GpuMemory,
    HeldOut,
    Measurements,
    PsStats,
    RowCounts,
    WorkerStats,
)
from psruntime.core.members.view import Phase, View
from psruntime.core.shards.shard_messages import ShardsStatus
from psruntime.errors import UnreachableError, UsageError
from psruntime.observe.log import Log
from psruntime.observe.meter import GATE, PHASES, ROUND, in_order
from psruntime.observe.metrics import Endpoint, of_certificate, of_job, of_ps, open_endpoint
from psruntime.observe.worker_metrics import EvaluatorMetrics, WorkerMetrics
from tests.support import docs
from tests.support.certificates import Authority

TABLE = RowCounts("users", 100, found=7, admitted=5, refused=2, expired=1, evicted=1)
PS = PsStats(
    4000, 3, received=20, applied=14, dropped={"stale": 3, "fenced": 1}, max_staleness=9, pending=1, rolled_back=1,
    received_of={0: 6, 4: 5}, moved=BytesMoved(70, 80), row_counts=(TABLE,), down_weighted=2,
)  # fmt: skip
GPUS = (GpuMemory(0, "a GPU", 3000, 8000), GpuMemory(2, "a GPU", 4000, 8000))
WORKER = WorkerStats(pushes=21, loss=0.5, waiting="the others", moved=BytesMoved(5, 6), skipped=2, gpus=GPUS)
JOB = JobConfig(mode="bounded", bound=4, ps=1, min_workers=1, max_workers=8, train_steps=900)
MEMBERS = (
    MemberStatus(Role.PS, 0, "a:1", "a:2", "0" * 10, 9.0, 0.5, ps_stats=PS, ps_traffic=PsTraffic(1.0, 2.0, 0.9, True)),
    MemberStatus(Role.WORKER, 4, "b:1", "b:2", "1" * 10, 9.0, 1.5, chief=True, clock=31, lead=3, worker_stats=WORKER),
)
STATUS = JobStatus(
    Phase.TRAINING, "view 3 was prepared", View(3), 28, 700, 12, MEMBERS, 5, unanswered={4: 1},
    shards=ShardsStatus(2, 5, 9, 1), saved_step=650, saved_ago_s=33.0,
    held_out=Measurements(HeldOut(600, {"loss": 0.5})),
)  # fmt: skip


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0)
    yield endpoint
    endpoint.close()


def read(url: str, tls: ssl.SSLContext | None = None) -> dict[tuple[str, ...], float]:
    """(name of a sample, its labels' values in the order of their names) -> value; only those of psruntime."""
    with urllib.request.urlopen(url, timeout=10, context=tls) as answer:
        text = answer.read().decode()
    return {
        (
            sample.name.removeprefix("psruntime_"),
            *(sample.labels[label] for label in sorted(sample.labels)),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("psruntime_")
    }


def test_a_ps_tells_its_ledger(endpoint: Endpoint) -> None:
    endpoint.add(of_ps(2, lambda: PS))
    told = read(endpoint.url)
    assert told["ps_updates_received_total", "2"] == 20
    ways = [told["ps_updates_applied_total", "2"], told["ps_updates_pending", "2"]]
    dropped = {cause: told["ps_updates_dropped_total", cause, "2"] for cause in PS.dropped}
    assert dropped == PS.dropped and sum(ways) + sum(dropped.values()) == 20
    assert told["ps_worker_updates_received_total", "2", "4"] == 5
    assert told["sent_bytes_total", "2", "ps"] == 70
    assert (
        told["ps_table_ids", "2", "users"] == 3 and told["ps_table_row_gradients_total", "refused", "2", "users"] == 2
    )


def test_ps_0_tells_the_status_of_the_job(endpoint: Endpoint) -> None:
    endpoint.add(of_job(lambda: STATUS, JOB))
    told = read(endpoint.url)
    assert [p for p in Phase if told["job_phase", p.value]] == [Phase.TRAINING]
    assert (told["job_mode", "bounded"], told["job_mode", "sync"], told["job_bound_steps",]) == (1, 0, 4)
    assert (told["job_global_step",], told["job_steps_lost_total",]) == (700, 12)
    assert (told["job_checkpoint_global_step",], told["job_checkpoint_age_seconds",]) == (650, 33)
    assert (told["job_members", "ps"], told["job_members", "worker"]) == (1, 1)
    assert (told["job_member_silent_seconds", "4", "worker"], told["job_member_silent_seconds", "0", "ps"]) == (
        1.5,
        0.5,
    )
    assert (told["job_worker_waiting", "4"], told["job_worker_lead_steps", "4"]) == (1, 3)


def test_without_a_coordinator_the_rest_is_told(endpoint: Endpoint) -> None:
    def status() -> JobStatus:
        raise UnreachableError("gone")

    endpoint.add(of_job(status, JOB))
    endpoint.add(of_ps(0, lambda: PS))
    told = read(endpoint.url)
    assert told["ps_updates_received_total", "0"] == 20
    assert not any(name.startswith("job_") for name, *_ in told)


def test_a_worker_tells_its_steps(endpoint: Endpoint) -> None:
    metrics = WorkerMetrics(endpoint, 4, lambda: WORKER)
    metrics.step(0.75, 64, 3, 0, in_order(GATE, 10.0, 10.5, 11.0, 12.0, 14.0, 18.0))
    metrics.step(0.50, 64, 0, 2, in_order(ROUND, 20.0, 20.0, 20.0, 20.0, 20.0, 20.5))
    told = read(endpoint.url)
    assert [told["worker_steps_total", "4"], told["worker_examples_total", "4"], told["worker_loss", "4"]] == [
        2,
        128,
        0.5,
    ]
    assert {phase: told["worker_step_phase_seconds_sum", phase, "4"] for phase in PHASES} == {
        "gate": 0.5, "round": 0.0, "input": 0.5, "pull": 1.0, "compute": 2.0, "push": 4.5,
    }  # fmt: skip
    assert told["worker_step_seconds_sum", "4"] == 8.5
    assert [told["worker_update_staleness_versions_bucket", le, "4"] for le in ("0.0", "2.0", "4.0")] == [1, 1, 2]
    assert (told["worker_updates_sent_total", "4"], told["worker_updates_dropped_total", "4"]) == (21, 2)
    assert told["worker_batches_skipped_total", "4"] == 2
    assert (told["worker_gpu_memory_bytes", "0", "4"], told["worker_gpu_memory_bytes", "2", "4"]) == (3000, 4000)


def test_a_worker_without_gpus_tells_of_none(endpoint: Endpoint) -> None:
    WorkerMetrics(endpoint, 4, WorkerStats)
    assert not any(name == "worker_gpu_memory_bytes" for name, *_ in read(endpoint.url))


def test_an_evaluator_tells_what_it_measured_last(endpoint: Endpoint) -> None:
    metrics = EvaluatorMetrics(endpoint)
    assert read(endpoint.url) == {("evaluator_checkpoints_measured_total",): 0}
    metrics.measured(200, {"loss": 0.5})
    metrics.measured(400, {"loss": 0.25, "accuracy": 0.9})
    told = read(endpoint.url)
    assert told["evaluator_checkpoints_measured_total",] == 2 and told["evaluator_global_step",] == 400
    assert (told["evaluator_metric", "loss"], told["evaluator_metric", "accuracy"]) == (0.25, 0.9)


def test_marks_that_clocks_put_in_another_order_are_put_right() -> None:
    times = in_order(GATE, 10.0, 10.5, 11.0, 10.9, 19.0, 12.0)
    assert [(name, end - begin) for name, begin, end in times.phases] == [
        ("gate", 0.5), ("input", 0.5), ("pull", 0.0), ("compute", 1.0), ("push", 0.0),
    ]  # fmt: skip


def test_every_entry_of_the_log_is_counted_and_those_of_alerts_from_the_start(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as out:
        log = Log("worker", 1, descriptor=out.fileno())
    endpoint = open_endpoint("worker", 1, ("127.0.0.1", 0), None, log)
    try:
        log("retry", reason="x")
        log("retry", reason="y")
        told = read(endpoint.url)
    finally:
        endpoint.close()
    assert told["log_events_total", "retry", "1", "worker"] == 2
    assert told["log_events_total", "member_lost", "1", "worker"] == 0
    assert f"metrics url={endpoint.url}" in (tmp_path / "log").read_text()


def test_a_port_that_is_taken_is_a_mistake_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"address 127.0.0.1:{port} is in use; .* with --metrics-port"):
            Endpoint("127.0.0.1", port)


def test_with_tls_only_who_has_a_certificate_of_the_ca_reads(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path)
    endpoint = Endpoint("127.0.0.1", 0, ours.security().web)
    try:
        endpoint.add(of_ps(0, lambda: PS))
        context = ssl.create_default_context(cafile=str(ours.ca_file))
        for files, refused in ((None, True), (others.files(), True), (ours.files(), False)):
            if files:
                context.load_cert_chain(files.tls_cert, files.tls_key)
            if refused:
                with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
                    read(endpoint.url, context)
            else:
                assert read(endpoint.url, context)["ps_updates_received_total", "0"] == 20
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            read(endpoint.url.replace("https", "http"))
    finally:
        endpoint.close()


def documented_metrics() -> dict[str, set[str]]:
    """Name -> labels: those of its row, and its own in braces."""
    found = {}
    for of, metrics in docs.table("docs/observing.md", "metrics"):
        for name, own in re.findall(r"`(\w+)(?:\{(.+?)\})?`", metrics):
            found[f"psruntime_{name}"] = set(re.findall("`(.+?)`", of)) | set(own.replace(",", " ").split())
    return found


def test_the_documented_metrics_are_those_that_are_told(endpoint: Endpoint, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as out:
        log = Log("ps", 0, descriptor=out.fileno())
    own = open_endpoint("ps", 0, ("127.0.0.1", 0), None, log)
    try:
        own.add(of_certificate("ps", 0, lambda: 2e9))
        own.add(of_ps(0, lambda: PS))
        own.add(of_job(lambda: STATUS, JOB))
        WorkerMetrics(own, 4, lambda: WORKER).step(0.5, 8, 0, 0, None)
        EvaluatorMetrics(own).measured(400, {"loss": 0.25})
        with urllib.request.urlopen(own.url, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    finally:
        own.close()
    families = [family for family in families if family.name.startswith("psruntime_")]
    told = {
        family.name + ("_total" if family.type == "counter" else ""): {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in families
    }
    assert documented_metrics() == told
    assert all(family.documentation for family in families)
    assert set(PS.dropped) <= set(CAUSES)


def test_alerts_and_dashboard_name_metrics_that_there_are() -> None:
    documented = set(documented_metrics())
    known = documented | {f"{name}_{part}" for name in documented for part in ("bucket", "sum", "count")}
    alerts = (docs.ROOT / "launch/grafana/alerts.yml").read_text()
    for text in (alerts, (docs.ROOT / "launch/grafana/psruntime.json").read_text()):
        named = set(re.findall(r"psruntime_\w+", text))
        assert named and named <= known
    rows = docs.table("docs/observing.md", "alerts")
    assert [name for row in rows for name in re.findall("`(.+?)`", row[0])] == re.findall(r"- alert: (\w+)", alerts)
