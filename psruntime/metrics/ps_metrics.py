"""The metrics of a ps: its ledger, its variables, and its traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from psruntime.core.members.messages import BytesMoved, PsStats
from psruntime.metrics.families import Families, counter, gauge


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
