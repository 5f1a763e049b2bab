"""What every process tells of itself: which one it is, and how often each event stands in its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import Metric

from psruntime.metrics.families import Families, counter, gauge

ALERTED = (  # told from the start, as 0: where a number begins with 1, Prometheus sees no increase
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
