"""Heartbeats and what members measure on themselves: wire <-> core dataclasses.  Rules as in member_messages.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from google.protobuf.duration_pb2 import Duration

from psruntime.core.clocks.adaptive_bound import STEPS
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import (
    STALENESS_LIMITS,
    BytesMoved,
    GpuMemory,
    GraphsBuilt,
    PsBeat,
    PsStats,
    RowCounts,
    WorkerBeat,
    WorkerStats,
)
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.member_messages import optional_number, role_from_wire, role_to_wire
from psruntime.v1 import coordination_pb2 as pb


@dataclass(frozen=True)
class Heartbeat:
    """What a member says, what it last heard, and how long it waits for news."""

    role: Role
    index: int
    incarnation: int
    beat: PsBeat | WorkerBeat
    seen_revision: int = 0
    max_wait_s: float = 0.0


def heartbeat_to_wire(heartbeat: Heartbeat) -> pb.HeartbeatRequest:
    wire = pb.HeartbeatRequest(
        role=role_to_wire(heartbeat.role),
        index=heartbeat.index,
        incarnation=heartbeat.incarnation,
        seen_revision=heartbeat.seen_revision,
        max_wait=field_checks.duration(heartbeat.max_wait_s) if heartbeat.max_wait_s > 0 else None,
    )
    beat = heartbeat.beat
    if isinstance(beat, PsBeat):
        wire.ps.fence_revision = beat.fence_revision
        wire.ps.view_number = beat.view
        wire.ps.global_step = beat.global_step
        wire.ps.stats.CopyFrom(ps_stats_to_wire(beat.stats))
        wire.ps.asked_to_stop = beat.asked_to_stop
        wire.ps.stood_still.CopyFrom(field_checks.duration(beat.stood_still_s))
    else:
        wire.worker.view_number = beat.view
        wire.worker.completed_steps = beat.steps
        wire.worker.global_step = beat.global_step
        wire.worker.stopped = beat.stopped
        wire.worker.stats.CopyFrom(worker_stats_to_wire(beat.stats))
        wire.worker.closed_parts = beat.closed_parts
        if beat.saved_step is not None:
            wire.worker.saved_step = beat.saved_step
        wire.worker.asked_to_stop = beat.asked_to_stop
        wire.worker.stood_still.CopyFrom(field_checks.duration(beat.stood_still_s))
        wire.worker.prepares_view = beat.prepares
        wire.worker.saves = beat.saves
        wire.worker.paused_epoch = beat.paused_epoch
        wire.worker.step_times.extend(map(field_checks.duration, beat.step_s))
        wire.worker.rounds_built = beat.graphs.rounds
        wire.worker.pushes_built = beat.graphs.pushes
        wire.worker.build_failure = field_checks.clipped(beat.graphs.failure)
        wire.worker.failed_build = beat.graphs.failed_build
        wire.worker.starve_count = beat.starve_count
        wire.worker.failure = field_checks.clipped(beat.failure)
    return wire


def heartbeat_from_wire(wire: pb.HeartbeatRequest) -> Heartbeat:
    role = role_from_wire(wire.role)
    which = wire.WhichOneof("beat")
    if which != role.value:
        raise UsageError(f"beat must be that of a {role}, got {which or 'none'}")
    return Heartbeat(
        role,
        field_checks.index("index", wire.index),
        field_checks.incarnation("incarnation", wire.incarnation),
        _ps_beat_from_wire(wire.ps) if role is Role.PS else _worker_beat_from_wire(wire.worker),
        field_checks.number("seen_revision", wire.seen_revision),
        field_checks.seconds("max_wait", wire.max_wait),
    )


def _ps_beat_from_wire(wire: pb.PsBeat) -> PsBeat:
    return PsBeat(
        field_checks.number("ps.fence_revision", wire.fence_revision),
        field_checks.number("ps.view_number", wire.view_number),
        field_checks.number("ps.global_step", wire.global_step),
        ps_stats_from_wire(wire.stats),
        wire.asked_to_stop,
        field_checks.seconds("ps.stood_still", wire.stood_still),
    )


def _worker_beat_from_wire(wire: pb.WorkerBeat) -> WorkerBeat:
    return WorkerBeat(
        field_checks.number("worker.view_number", wire.view_number),
        field_checks.number("worker.completed_steps", wire.completed_steps),
        field_checks.number("worker.global_step", wire.global_step),
        wire.stopped,
        worker_stats_from_wire(wire.stats),
        field_checks.number("worker.closed_parts", wire.closed_parts),
        optional_number("worker.saved_step", wire, "saved_step"),
        wire.asked_to_stop,
        field_checks.number("worker.prepares_view", wire.prepares_view),
        wire.saves,
        field_checks.number("worker.paused_epoch", wire.paused_epoch),
        _step_s_from_wire(wire.step_times),
        GraphsBuilt(
            wire.rounds_built,
            wire.pushes_built,
            field_checks.words("worker.build_failure", wire.build_failure),
            field_checks.number("worker.failed_build", wire.failed_build),
        ),
        field_checks.number("worker.starve_count", wire.starve_count),
        field_checks.words("worker.failure", wire.failure),
        field_checks.seconds("worker.stood_still", wire.stood_still),
    )


def _step_s_from_wire(wire: Sequence[Duration]) -> tuple[float, ...]:
    if len(wire) > STEPS:
        raise UsageError(f"worker.step_times must be at most {STEPS}, got {len(wire)}")
    return tuple(field_checks.seconds("worker.step_times", time) for time in wire)


def ps_stats_to_wire(stats: PsStats) -> pb.PsStats:
    return pb.PsStats(
        held_bytes=stats.bytes_held,
        buckets=stats.buckets,
        received=stats.received,
        applied=stats.applied,
        dropped=stats.dropped,
        max_staleness=stats.max_staleness,
        pending=stats.pending,
        rolled_back=stats.rolled_back,
        received_of=stats.received_of,
        moved=_moved_to_wire(stats.moved),
        row_counts=[pb.RowCounts(**asdict(counts)) for counts in stats.row_counts],
        down_weighted=stats.down_weighted,
    )


def ps_stats_from_wire(wire: pb.PsStats) -> PsStats:
    if len(wire.dropped) > field_checks.CAUSES:
        raise UsageError(f"stats.dropped must have at most {field_checks.CAUSES} causes, got {len(wire.dropped)}")
    if len(wire.row_counts) > field_checks.SPECS:
        raise UsageError(f"stats.row_counts must be at most {field_checks.SPECS}, got {len(wire.row_counts)}")
    return PsStats(
        field_checks.number("stats.held_bytes", wire.held_bytes),
        field_checks.number("stats.buckets", wire.buckets),
        field_checks.number("stats.received", wire.received),
        field_checks.number("stats.applied", wire.applied),
        {
            field_checks.words("stats.dropped", cause, field_checks.CAUSE_CHARS): field_checks.number(
                f"stats.dropped[{cause}]", count
            )
            for cause, count in sorted(wire.dropped.items())
        },
        field_checks.number("stats.max_staleness", wire.max_staleness),
        field_checks.number("stats.pending", wire.pending),
        field_checks.number("stats.rolled_back", wire.rolled_back),
        counts_from_wire("stats.received_of", wire.received_of),
        _moved_from_wire(wire.moved) if wire.HasField("moved") else None,
        tuple(map(_row_counts_from_wire, wire.row_counts)),
        field_checks.number("stats.down_weighted", wire.down_weighted),
    )


def _row_counts_from_wire(wire: pb.RowCounts) -> RowCounts:
    numbers = ("rows", "found", "admitted", "refused", "expired", "evicted")
    table = field_checks.text("stats.row_counts.table", wire.table, field_checks.NAME_CHARS, least=1)
    return RowCounts(table, *(field_checks.number(f"stats.row_counts.{n}", getattr(wire, n)) for n in numbers))


def counts_from_wire(name: str, wire: Mapping[int, int]) -> dict[int, int]:
    """Counts by worker index."""
    if len(wire) > field_checks.WORKERS:
        raise UsageError(f"{name} must have at most {field_checks.WORKERS} workers, got {len(wire)}")
    return {
        field_checks.index(name, w): field_checks.number(f"{name}[{w}]", count) for w, count in sorted(wire.items())
    }


def worker_stats_to_wire(stats: WorkerStats) -> pb.WorkerStats:
    return pb.WorkerStats(
        pushes=stats.pushes,
        staleness_p50=stats.staleness_p50,
        staleness_p99=stats.staleness_p99,
        examples_per_s=stats.examples_per_s,
        loss=stats.loss,
        waiting=field_checks.clipped(stats.waiting),
        max_lead_steps=stats.max_lead,
        moved=_moved_to_wire(stats.moved),
        step_tensors=stats.step_tensors,
        skipped_batches=stats.skipped,
        staleness_counts=stats.staleness_counts,
        gpus=[pb.GpuMemory(**asdict(gpu)) for gpu in stats.gpus],
    )


def worker_stats_from_wire(wire: pb.WorkerStats) -> WorkerStats:
    if len(wire.gpus) > field_checks.GPUS:
        raise UsageError(f"stats.gpus must be at most {field_checks.GPUS}, got {len(wire.gpus)}")
    return WorkerStats(
        field_checks.number("stats.pushes", wire.pushes),
        field_checks.number("stats.staleness_p50", wire.staleness_p50),
        field_checks.number("stats.staleness_p99", wire.staleness_p99),
        field_checks.amount("stats.examples_per_s", wire.examples_per_s),
        wire.loss if wire.HasField("loss") else None,
        field_checks.words("stats.waiting", wire.waiting),
        field_checks.number("stats.max_lead_steps", wire.max_lead_steps),
        _moved_from_wire(wire.moved) if wire.HasField("moved") else None,
        optional_number("stats.step_tensors", wire, "step_tensors"),
        field_checks.number("stats.skipped_batches", wire.skipped_batches),
        _staleness_counts_from_wire(wire.staleness_counts),
        tuple(map(_gpu_memory_from_wire, wire.gpus)),
    )


def _gpu_memory_from_wire(wire: pb.GpuMemory) -> GpuMemory:
    return GpuMemory(
        field_checks.index("stats.gpus.index", wire.index),
        field_checks.text("stats.gpus.name", wire.name, field_checks.NAME_CHARS, least=1),
        field_checks.number("stats.gpus.held_bytes", wire.held_bytes),
        field_checks.number("stats.gpus.total_bytes", wire.total_bytes),
    )


def _staleness_counts_from_wire(wire: Sequence[int]) -> tuple[int, ...]:
    if len(wire) not in (0, len(STALENESS_LIMITS) + 1):
        raise UsageError(f"stats.staleness_counts must be {len(STALENESS_LIMITS) + 1} numbers or none, got {len(wire)}")
    return tuple(field_checks.number("stats.staleness_counts", count) for count in wire)


def _moved_to_wire(moved: BytesMoved | None) -> pb.BytesMoved | None:
    return None if moved is None else pb.BytesMoved(sent_bytes=moved.sent, received_bytes=moved.received)


def _moved_from_wire(wire: pb.BytesMoved) -> BytesMoved:
    return BytesMoved(
        field_checks.number("stats.moved.sent_bytes", wire.sent_bytes, limit=field_checks.BYTES_LIMIT),
        field_checks.number("stats.moved.received_bytes", wire.received_bytes, limit=field_checks.BYTES_LIMIT),
    )
