"""The job's status for people (tables, one progress line) and for programs (JSON)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from psruntime.config import JobConfig
from psruntime.config.schedule import ASYNC, BOUNDED, SYNC
from psruntime.core.accounting.traffic import why_heavy
from psruntime.core.members.job_status import Departure, JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import ROW_COLUMNS, FailedSaves, GpuMemory, Measurements, RowCounts
from psruntime.core.members.view import Phase
from psruntime.errors import some
from psruntime.observe.evaluations import MOST_TOLD

WIDEST = 1 << 20  # characters of a line: more than any text has
LEFT = ("address", "waiting for", "variables", "how", "why", "what", "who")  # columns of words


def text_console() -> Console:
    """As wide as the terminal; elsewhere as wide as the text, so that programs find each row whole and on one line."""
    return Console() if sys.stdout.isatty() else Console(width=WIDEST)


def table(*columns: str) -> Table:
    """A table without rows yet; the first column is the row's name."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 or column in LEFT else "right")
    return made


def bytes_text(count: float) -> str:
    """A number of bytes with a decimal unit: 12.3 MB."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


MOST_IN_LINE = 3  # held-out metrics in the progress line
UNKNOWN = "-"
GIB = 1 << 30  # as nvidia-smi and --gpu-memory have memory


def as_json(status: JobStatus, job: JobConfig) -> dict[str, Any]:
    """Everything, as plain data; incarnations by their tags, as the logs have them."""
    data = asdict(status)
    for entry in data["view"]["ps"]:
        del entry["incarnation"]
    for entry in data["members"]:
        stats = entry.get("worker_stats")
        if stats and stats["loss"] is not None and not math.isfinite(stats["loss"]):
            stats["loss"] = None  # JSON has no NaN
    for measured in filter(None, data["held_out"].values()):
        measured["values"] = {
            name: value if math.isfinite(value) else None for name, value in measured["values"].items()
        }
    data["job"] = asdict(job)
    data["ps"] = [m for m in data["members"] if m["role"] == Role.PS]
    data["workers"] = [m for m in data.pop("members") if m["role"] == Role.WORKER]
    return data


def as_tables(status: JobStatus, job: JobConfig) -> RenderableType:
    """Phase, a table of the ps, a table of the workers.  Texts of members are shown as they are, without markup."""
    members = [table_of(role, status, job, status.members) for role in (Role.PS, Role.WORKER)]
    return Group(head_of(status, job), *members, *more_tables(status))


def table_of(role: Role, status: JobStatus, job: JobConfig, members: Iterable[MemberStatus]) -> Table:
    """The table of the ps or of the workers among these members."""
    found = [m for m in members if m.role is role]
    return _ps_table(found) if role is Role.PS else _worker_table(found, mode_of(status, job), job)


def more_tables(status: JobStatus) -> list[Table]:
    """Traffic, dynamic tables, and departures."""
    ps = [m for m in status.members if m.role is Role.PS]
    tables = [_traffic_table(ps, [m for m in status.members if m.role is Role.WORKER])]
    if any(m.ps_stats and m.ps_stats.row_counts for m in ps):
        tables.append(_dynamic_table(ps))
    live = {(m.role, m.index) for m in status.members}
    gone = [each for each in status.departures if (each.role, each.index) not in live]
    return [*tables, *([_departure_table(gone)] if gone else [])]


def head_of(status: JobStatus, job: JobConfig) -> Text:
    """The phase with its reason, and the figures of the whole job."""
    head = Text.assemble(
        (str(status.phase), "bold"),
        f"  {status.reason}\n",
        f"job {job.job_id}, mode {mode_of(status, job)}, view {status.view.number}, ",
        f"global step {status.global_step}{_of(job, ' of ')}",
    )
    if shards := status.shards:
        again = f", {shards.again} handed out again" if shards.again else ""
        epoch = f"epoch {shards.epoch}{_of_epochs(shards.epoch, job)}"
        head.append(f", {epoch}: {shards.done} of {shards.of} shards done{again}")
    if (bound := bound_of(status, job)) is not None:
        head.append(f", largest lead {status.max_lead} of {bound}")
    if status.steps_lost:
        head.append(f", {status.steps_lost} steps lost to failures")
    if measured := held_out_text(status.held_out):
        head.append(f"\n{measured}")
    if status.failed_saves.count:
        head.append(f"\n{saves_fail(status.failed_saves)}", "bold red")
    for line in steered(status, job):
        head.append(f"\n{line}", "yellow")
    if not status.balanced:
        head.append("\nTHE LEDGERS DO NOT BALANCE: received is not applied + dropped + rolled back", "bold red")
    if status.unanswered and status.phase.over:
        listed = ", ".join(f"worker {index}: {count}" for index, count in status.unanswered.items())
        head.append(f"\npushes that did not reach every bucket: {listed}")
    for m in status.members:
        if m.ps_traffic and m.ps_traffic.heavy and m.ps_traffic.share is not None:
            head.append(f"\n{why_heavy(m.index, m.ps_traffic.share * job.ps, job.ps)}", "yellow")
    return head


def event_table(events: Sequence[tuple[float, str, str, str]]) -> Table:
    """(seconds since 1970, event, subject, reason) of each event, the latest last."""
    rows = table("at", "what", "who", "why")
    for at_s, kind, subject, reason in events:
        rows.add_row(datetime.fromtimestamp(at_s).strftime("%H:%M:%S"), kind, Text(subject), Text(reason))
    return rows


def progress_line(status: JobStatus, job: JobConfig, steps_per_s: float) -> str:
    """Global step, loss, examples/s and time left, or why the job does not train.  `steps_per_s` 0: unknown."""
    workers = [m.worker_stats for m in status.members if m.worker_stats]
    losses = [w.loss for w in workers if w.loss is not None]
    parts = [f"{status.phase} step {status.global_step}{_of(job, '/')}"]
    if status.shards and (job.epochs is None or status.shards.epoch <= job.epochs):
        parts.append(f"epoch {status.shards.epoch}{_of_epochs(status.shards.epoch, job)}")
    if losses:
        parts.append(f"loss {sum(losses) / len(losses):.4f}")
    if measured := held_out_text(status.held_out, most=MOST_IN_LINE):
        parts.append(measured)
    if status.steering.settings.paused and status.phase is Phase.TRAINING:
        parts.append("paused by control")
    elif status.phase.prepared:
        parts.append(f"{sum(w.examples_per_s for w in workers):.0f} examples/s")
        if steps_per_s > 0 and job.train_steps is not None and status.phase is Phase.TRAINING:
            parts.append(f"{_duration(max(0, job.train_steps - status.global_step) / steps_per_s)} left")
        parts.append(f"{len(workers)} worker{'s' * (len(workers) > 1)}" if workers else status.reason)
    elif status.reason != f"global step {status.global_step}":  # which the line has
        parts.append(status.reason)
    if status.failed_saves.count and status.failed_saves.cause not in status.reason:
        parts.append(saves_fail(status.failed_saves))
    return "  ".join(parts)


def held_out_text(held_out: Measurements, most: int = MOST_TOLD) -> str:
    """The last metrics on held-out data, and the best; empty before there are any.

    most: values in it, of which the one that is compared is the first.
    """
    last, best = held_out.last, held_out.best
    if last is None:
        return ""
    names = sorted(last.values, key=lambda name: best is None or name not in best.values)
    values = some([f"{name} {last.values[name]:.4f}" for name in names], most)
    text = f"held out: {values} (global step {last.global_step})"
    if best is None:
        return text
    (name, value), *_ = best.values.items()
    return f"{text}, best {name} {value:.4f} (global step {best.global_step})"


def saves_fail(failed: FailedSaves) -> str:
    """That checkpoints fail, and why."""
    tries = f"{failed.count} tries" if failed.count > 1 else "a try"
    return f"no checkpoint is written, after {tries}: {failed.cause}"


def steered(status: JobStatus, job: JobConfig) -> Iterator[str]:
    """An operator's changes in force, and those to come."""
    steering, settings = status.steering, status.steering.settings
    if schedule := job.mode_schedule:
        left = "left by control; psruntime control mode schedule follows it again"
        place = schedule.whole(status.global_step) if status.phase.prepared else str(schedule)
        yield f"schedule: {place if settings.automatic else left}"
    if job.bound_range:
        back = "bound auto" if mode_of(status, job) == BOUNDED else "mode bounded N, and then bound auto,"
        left = f"left by control; psruntime control {back} chooses again"
        now = f"{settings.bound} now" + (f": {steering.bound_reason}" if steering.bound_reason else "")
        yield f"bound: {job.bound_range}, {now if settings.automatic else left}"
    if settings.revision:
        by_hand = not settings.automatic
        mode = [f"mode {settings.mode}"] if by_hand and settings.mode not in ("", job.mode) else []
        bound = [f"bound {settings.bound}"] if by_hand and settings.bound not in (None, job.bound) else []
        scale = settings.learning_rate_scale
        scaled = [f"learning rates times {scale:g}"] if scale != 1 else []
        changed = [*mode, *bound, *scaled, *(["paused"] if settings.paused else [])]
        if changed:
            yield f"by control: {', '.join(changed)}; the latest change from global step {settings.from_global_step}"
    if steering.pending:
        why = f": {steering.waits_for}" if steering.waits_for else ""
        yield f"control: {', then '.join(steering.pending)} to take effect{why}"


def mode_of(status: JobStatus, job: JobConfig) -> str:
    """The mode of the steps now."""
    return status.steering.settings.mode or job.mode


def bound_of(status: JobStatus, job: JobConfig) -> int | None:
    """The bound of now, in steps; None outside mode bounded."""
    if mode_of(status, job) != BOUNDED:
        return None
    bound = status.steering.settings.bound
    return job.bound if bound is None else bound


def _of(job: JobConfig, separator: str) -> str:
    """The limit of the global step, behind the step itself; nothing without one."""
    return "" if job.train_steps is None else f"{separator}{job.train_steps}"


def _of_epochs(epoch: int, job: JobConfig) -> str:
    """The number of epochs, behind the present one; nothing without one, or when all are done."""
    return "" if job.epochs is None or epoch > job.epochs else f" of {job.epochs}"


def _ps_table(members: list[MemberStatus]) -> Table:
    lowered = ["down-weighted"] if any(m.ps_stats and m.ps_stats.down_weighted for m in members) else []
    rows = table("ps", "address", "bytes", "updates", *lowered, "dropped", "rolled back", "max staleness", "silent")
    for m in members:
        stats = m.ps_stats
        if stats:
            causes = ", ".join(f"{cause} {n}" for cause, n in stats.dropped.items() if n) or "0"
            rows.add_row(
                str(m.index), Text(m.address), bytes_text(stats.bytes_held), str(stats.applied),
                *(str(stats.down_weighted) for _ in lowered), Text(causes), str(stats.rolled_back),
                str(stats.max_staleness), f"{m.silent_s:.1f} s",
            )  # fmt: skip
    return rows


def _worker_table(members: list[MemberStatus], mode: str, job: JobConfig) -> Table:
    """Leads, staleness, shares and memory of GPUs only where there are any: in a round all are at the same step."""
    pace = {ASYNC: ["clock", "lead"], BOUNDED: ["clock", "lead/max"], SYNC: []}[mode]
    staleness = [] if mode == SYNC else ["staleness p50", "p99"]
    share = ["share"] if job.has_shares else []
    skipped = ["skipped"] if any(m.worker_stats and m.worker_stats.skipped for m in members) else []
    gpu = ["GPU"] if any(m.worker_stats and m.worker_stats.gpus for m in members) else []
    rows = table("worker", *pace, *staleness, *share, "examples/s", "loss", *skipped, *gpu, "silent", "waiting for")
    for m in members:
        stats = m.worker_stats
        if stats:
            facts = {
                "clock": m.clock, "lead": m.lead, "lead/max": f"{m.lead}/{stats.max_lead}",
                "staleness p50": stats.staleness_p50, "p99": stats.staleness_p99, "share": m.share or UNKNOWN,
            }  # fmt: skip
            loss = "-" if stats.loss is None else f"{stats.loss:.4f}"
            rows.add_row(
                f"{m.index} (chief)" if m.chief else str(m.index),
                *(str(facts[column]) for column in (*pace, *staleness, *share)),
                f"{stats.examples_per_s:.0f}",
                loss,
                *(str(stats.skipped) for _ in skipped),
                *(_gpus(stats.gpus) for _ in gpu),
                f"{m.silent_s:.1f} s",
                Text(stats.waiting or ("the others to stop" if m.stopped else "")),
            )
    return rows


def _traffic_table(ps: list[MemberStatus], workers: list[MemberStatus]) -> Table:
    """The bytes of each ps per second and its share of all; those of each worker per step."""
    rows = table("traffic", "in", "out", "share", "tensors/step")
    for m in ps:
        rate = m.ps_traffic
        moved = _moved(rate.received_per_s, rate.sent_per_s, "s") if rate else (UNKNOWN, UNKNOWN)
        share = UNKNOWN if rate is None or rate.share is None else f"{rate.share:.0%}"
        rows.add_row(f"ps {m.index}", *moved, share, "")
    for m in workers:
        each = m.worker_traffic
        moved = _moved(each.received_per_step, each.sent_per_step, "step") if each else (UNKNOWN, UNKNOWN)
        tensors = m.worker_stats.step_tensors if m.worker_stats else None
        rows.add_row(f"worker {m.index}", *moved, "", UNKNOWN if tensors is None else str(tensors))
    return rows


def _dynamic_table(ps: list[MemberStatus]) -> Table:
    """Of each dynamic table: how many of its rows have an id, and the fates of the rows of gradients."""
    sums: dict[str, RowCounts] = {}
    for counts in (counts for m in ps if m.ps_stats for counts in m.ps_stats.row_counts):
        sums[counts.table] = sums[counts.table].plus(counts) if counts.table in sums else counts
    rows = table("dynamic table", *ROW_COLUMNS)
    for c in sums.values():
        rows.add_row(Text(c.table), *map(str, c.shown.values()))
    return rows


def _departure_table(departures: Sequence[Departure]) -> Table:
    """The members that went while the job was not over, and are not back, the latest last."""
    rows = table("gone", "since", "how", "why")
    for d in departures:
        how = "lost" if d.kind is None else f"left ({d.kind})"
        rows.add_row(f"{d.role} {d.index}", _duration(d.ago_s), how, Text(d.reason))
    return rows


def _gpus(gpus: Sequence[GpuMemory]) -> str:
    """Index of each GPU, and the worker's part of its memory."""
    texts = (f"{gpu.index}: {gpu.held_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB" for gpu in gpus)
    return ", ".join(texts) or UNKNOWN


def _moved(received: float, sent: float, of: str) -> tuple[str, str]:
    return f"{bytes_text(received)}/{of}", f"{bytes_text(sent)}/{of}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
