"""The metrics of every process: its role and index, and the number of entries of its log by event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import Metric

from psruntime.metrics.families import Families, counter, gauge

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
