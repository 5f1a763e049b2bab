"""Metrics for Prometheus over HTTP: metric families by name, of every process, a ps and the job, and their endpoint.

Names and units follow https://prometheus.io/docs/practices/naming: base units, and _total where a number only grows.
The endpoint is http://HOST:PORT/metrics, or https with mutual TLS.
"""

from __future__ import annotations

import errno
import os
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from psruntime.config import JobConfig
from psruntime.config.schedule import BOUNDED, MODES
from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import BytesMoved, PsStats
from psruntime.core.members.view import Phase
from psruntime.errors import UnreachableError, UsageError
from psruntime.observe.http_server import serve
from psruntime.observe.log import Log

Row = tuple[Mapping[str, object], float]  # labels, value


class Families:
    """A collector: `read` returns the families at each reading."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on the job, so names are not checked in advance."""
        return ()


def gauge(name: str, text: str, *rows: Row) -> Metric:
    """A number that goes up and down.  rows: all with the same labels."""
    return _filled(GaugeMetricFamily, f"psruntime_{name}", text, rows)


def counter(name: str, text: str, *rows: Row) -> Metric:
    """A number that only grows, but for a restart of its process.  name: without _total, which is added."""
    return _filled(CounterMetricFamily, f"psruntime_{name}", text, rows)


def state(name: str, text: str, label: str, values: Iterable[str], now: str) -> Metric:
    """1 for the value of now, 0 for every other."""
    return gauge(name, text, *(({label: value}, float(value == now)) for value in values))


def _filled(kind: Any, name: str, text: str, rows: Iterable[Row]) -> Metric:
    rows = list(rows)
    labels = list(rows[0][0]) if rows else []
    family = kind(name, text, labels=labels)
    for given, value in rows:
        family.add_metric([str(given[label]) for label in labels], value)
    made: Metric = family
    return made


ALERTED = (  # exported from the start, as 0: Prometheus sees no increase in a number that starts with 1
    "batch_skipped", "checkpoint_failed", "checkpoint_overdue", "crash", "cut_off", "defect", "member_lost",
    "no_workers", "record_failed", "refused", "relieved", "rounds_log_failed", "slow_round", "unbalanced",
    "unreachable",
)  # fmt: skip


def of_process(role: str, index: int, events: Callable[[], Mapping[str, int]]) -> Families:
    """events: entries of its log up to now, by event; docs/operations.md has them."""
    own = {"role": role, "index": index}

    def read() -> Iterable[Metric]:
        yield gauge("process_info", "The process, by its labels; always 1.", (own, 1))
        counts = {**dict.fromkeys(ALERTED, 0), **events()}
        rows = (({**own, "event": event}, count) for event, count in counts.items())
        yield counter("log_events", "Entries of the log, by event.", *rows)

    return Families(read)


def of_ps(index: int, stats: Callable[[], PsStats]) -> Families:
    """stats: returns the last measurements of ps `index`."""
    return Families(lambda: _read(index, stats()))


def moved(role: str, index: int, bytes_moved: BytesMoved | None) -> Iterable[Metric]:
    """Bytes over the connections of TensorFlow's server; nothing where the system has no counts."""
    if bytes_moved:
        where = {"role": role, "index": index}
        yield counter(
            "sent_bytes", "Bytes sent over the connections of TensorFlow's server.", (where, bytes_moved.sent)
        )
        yield counter(
            "received_bytes",
            "Bytes received over the connections of TensorFlow's server.",
            (where, bytes_moved.received),
        )


def _read(index: int, stats: PsStats) -> Iterable[Metric]:
    ps = {"ps": index}
    yield counter(
        "ps_updates_received", "Updates of buckets that arrived: applied, dropped and pending.", (ps, stats.received)
    )
    applied = stats.applied + stats.rolled_back  # so a rollback does not reduce it
    yield counter("ps_updates_applied", "Updates applied, rolled back ones included.", (ps, applied))
    dropped = [({**ps, "cause": cause}, count) for cause, count in stats.dropped.items()]
    yield counter("ps_updates_dropped", "Updates refused, by cause.", *dropped)
    yield gauge("ps_updates_pending", "Contributions to rounds that have not closed.", (ps, stats.pending))
    yield counter(
        "ps_updates_rolled_back", "Applied updates that a return to an older state undid.", (ps, stats.rolled_back)
    )
    yield counter(
        "ps_updates_down_weighted", "Applied updates whose learning rate was lowered for their staleness.",
        (ps, stats.down_weighted),
    )  # fmt: skip
    received_of = [({**ps, "worker": worker}, count) for worker, count in stats.received_of.items()]
    yield counter("ps_worker_updates_received", "Updates of a worker that every bucket has received.", *received_of)
    yield gauge("ps_max_staleness_versions", "Largest staleness of an applied update.", (ps, stats.max_staleness))
    yield gauge("ps_held_bytes", "Bytes of variables and optimizer slots.", (ps, stats.bytes_held))
    yield gauge("ps_buckets", "Buckets, each with a ledger of its own.", (ps, stats.buckets))
    yield from moved("ps", index, stats.moved)
    tables = [({**ps, "table": counts.table}, counts) for counts in stats.row_counts]
    yield gauge("ps_table_rows", "Rows that a dynamic table has room for.", *((of, c.rows) for of, c in tables))
    yield gauge("ps_table_ids", "Ids that have a row.", *((of, c.known) for of, c in tables))
    gradients = [
        ({**of, "outcome": outcome}, getattr(c, outcome))
        for of, c in tables for outcome in ("found", "admitted", "refused")
    ]  # fmt: skip
    yield counter("ps_table_row_gradients", "Rows of gradients: found, admitted or refused.", *gradients)
    taken = [({**of, "cause": cause}, getattr(c, cause)) for of, c in tables for cause in ("expired", "evicted")]
    yield counter("ps_table_rows_removed", "Rows taken back: expired or evicted.", *taken)


def of_certificate(role: str, index: int, expires_s: Callable[[], float]) -> Families:
    """expires_s: of the certificate that this process has now."""
    own = {"role": role, "index": index}
    text = "When the certificate of this process expires, in seconds since 1970."
    return Families(lambda: [gauge("certificate_expires_timestamp_seconds", text, (own, expires_s()))])


def of_job(status: Callable[[], JobStatus], job: JobConfig) -> Families:
    """status: calls the coordinator; a reading while it does not answer has no metrics of the job."""

    def read() -> Iterable[Metric]:
        try:
            now = status()
        except UnreachableError:
            return ()
        return [*_whole(now, job), *_members(now)]

    return Families(read)


def _whole(status: JobStatus, job: JobConfig) -> Iterable[Metric]:
    settings = status.steering.settings
    mode = settings.mode or job.mode
    yield gauge("job_info", "The job, by its labels; always 1.", ({"job_id": job.job_id}, 1))
    yield state(
        "job_phase",
        "1 for the phase of the job, 0 for the others.",
        "phase",
        [p.value for p in Phase],
        status.phase.value,
    )
    yield state("job_mode", "1 for the mode in force, 0 for the others.", "mode", MODES, mode)
    yield gauge("job_paused", "1 while an operator has paused the job.", ({}, settings.paused))
    yield gauge("job_view", "Number of the view.", ({}, status.view.number))
    yield gauge("job_global_step", "Updates in the variables; less after a rollback.", ({}, status.global_step))
    if job.train_steps is not None:
        yield gauge("job_train_steps", "Global step at which the job ends.", ({}, job.train_steps))
    yield counter("job_steps_lost", "Global steps lost to rollbacks.", ({}, status.steps_lost))
    yield gauge("job_balanced", "1 while the ledgers account for every update that arrived.", ({}, status.balanced))
    yield gauge("job_lease_seconds", "The lease: a member that is silent for longer is lost.", ({}, job.lease_s))
    yield gauge("job_min_workers", "Workers without which training does not begin.", ({}, job.min_workers))
    yield gauge("job_expected_ps", "Number of ps; all must be there to train.", ({}, job.ps))
    yield gauge("job_floor_steps", "The slowest live clock.", ({}, status.floor))
    bound = job.bound if settings.bound is None else settings.bound
    if mode == BOUNDED and bound is not None:
        yield gauge("job_bound_steps", "Largest lead at which a step may begin.", ({}, bound))
    yield gauge("job_max_lead_steps", "Largest lead at which a step began, as far as is known.", ({}, status.max_lead))
    if status.saved_step is not None:
        yield gauge("job_checkpoint_global_step", "Global step of the newest checkpoint.", ({}, status.saved_step))
    if status.saved_ago_s is not None:
        yield gauge(
            "job_checkpoint_age_seconds",
            "Time since the coordinator learned of the newest checkpoint.",
            ({}, status.saved_ago_s),
        )
    failed = status.failed_saves.count
    yield gauge("job_failed_saves", "Tries to write a checkpoint that failed since the newest was.", ({}, failed))
    measured = [({"which": which}, each) for which, each in vars(status.held_out).items() if each]
    yield gauge(
        "job_held_out_global_step", "Global step of the last and the best measurement on held-out data.",
        *((of, each.global_step) for of, each in measured),
    )  # fmt: skip
    values = (({**of, "metric": name}, value) for of, each in measured for name, value in each.values.items())
    yield gauge("job_held_out_metric", "Metrics on held-out data of the last and the best measurement.", *values)
    if shards := status.shards:
        yield gauge("job_epoch", "The present epoch, from 1.", ({}, shards.epoch))
        yield gauge("job_epoch_shards", "Data shards in an epoch.", ({}, shards.of))
        yield gauge("job_epoch_shards_done", "Data shards of the present epoch that are done.", ({}, shards.done))
        yield counter("job_shards_handed_out_again", "Data shards that were handed out again.", ({}, shards.again))


def _members(status: JobStatus) -> Iterable[Metric]:
    roles = [({"role": role.value}, sum(m.role is role for m in status.members)) for role in Role]
    yield gauge("job_members", "Live members.", *roles)
    of = [({"role": m.role.value, "index": m.index}, m) for m in status.members]
    yield gauge(
        "job_member_silent_seconds", "Time since the last message of a member.", *((o, m.silent_s) for o, m in of)
    )
    yield gauge("job_member_heavy", "1 for a ps that moves more than 1.5 times its share.", *(
        (o, m.ps_traffic.heavy) for o, m in of if m.ps_traffic
    ))  # fmt: skip
    workers = [({"worker": m.index}, m) for m in status.members if m.role is Role.WORKER]
    yield gauge("job_worker_chief", "1 for the chief.", *((of, m.chief) for of, m in workers))
    yield gauge("job_worker_clock_steps", "Clock of a worker.", *((of, m.clock) for of, m in workers))
    yield gauge("job_worker_lead_steps", "Steps ahead of the slowest.", *((of, m.lead) for of, m in workers))
    waiting = [(of, bool(m.worker_stats and m.worker_stats.waiting)) for of, m in workers]
    yield gauge("job_worker_waiting", "1 while a worker does not step.", *waiting)
    unanswered = [({"worker": worker}, count) for worker, count in status.unanswered.items()]
    yield gauge("job_worker_updates_unanswered", "Updates sent that some bucket has not received.", *unanswered)


def open_endpoint(
    role: str, index: int, address: tuple[str, int], tls: Callable[[], ssl.SSLContext] | None, log: Log
) -> Endpoint:
    """Serves the metrics that every process has; others are added later.  address, tls: as of Endpoint.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """
    endpoint = Endpoint(*address, tls)
    endpoint.add(of_process(role, index, lambda: log.counts))
    log("metrics", url=endpoint.url)
    return endpoint


class Endpoint:
    """Serves the metrics in its registry at `host:port`; port 0 lets the system choose, and `port` is that.

    tls: returns that of a server that asks for certificates, at each connection; None: it serves every caller.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """

    def __init__(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, without use
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        try:
            self._server = serve(host.strip("[]"), port, make_wsgi_app(self.registry), tls)
        except OSError as error:
            raise UsageError(_refusal(f"{host}:{port}", error)) from None
        self.port = self._server.server_port
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}/metrics"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def add(self, collector: Families) -> None:
        """Serves this collector, too; several threads call it, at each reading."""
        self.registry.register(collector)

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


def _refusal(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"address {address} is in use; choose another port with --metrics-port"
    return f"address {address} cannot be listened at: {os.strerror(error.errno) if error.errno else error}"
