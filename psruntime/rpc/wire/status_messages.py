"""The job's settings and its status: wire <-> core dataclasses.  Rules as in member_messages.py."""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.config.job import check_job_id
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Departure, JobStatus, LeaveKind, MemberStatus, PsTraffic, WorkerTraffic
from psruntime.core.steering.commands import UNSTEERED
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.control_messages import steering_from_wire, steering_to_wire
from psruntime.rpc.wire.heartbeat_messages import (
    counts_from_wire,
    ps_stats_from_wire,
    ps_stats_to_wire,
    worker_stats_from_wire,
    worker_stats_to_wire,
)
from psruntime.rpc.wire.member_messages import (
    optional_number,
    phase_from_wire,
    phase_to_wire,
    role_from_wire,
    role_to_wire,
    view_from_wire,
    view_to_wire,
)
from psruntime.rpc.wire.shard_messages import shards_status_from_wire, shards_status_to_wire
from psruntime.v1 import coordination_pb2 as pb


def job_to_wire(job: JobConfig) -> pb.JobSettings:
    """Raises UsageError for a setting that does not fit its field."""
    return pb.JobSettings(
        job_id=job.job_id,
        mode=f"MODE_{job.mode.upper()}",
        bound=None if job.bound is None else field_checks.number("bound", job.bound),
        max_bound=None if job.max_bound is None else field_checks.number("max_bound", job.max_bound),
        ps=field_checks.index("ps", job.ps),
        min_workers=field_checks.index("min_workers", job.min_workers),
        max_workers=field_checks.index("max_workers", job.max_workers),
        train_steps=None if job.train_steps is None else field_checks.number("train_steps", job.train_steps),
        epochs=None if job.epochs is None else field_checks.number("epochs", job.epochs),
        checkpoint_dir=job.checkpoint_dir,
        save_steps=field_checks.number("save_steps", job.save_steps),
        save_secs=field_checks.duration(job.save_secs),
        delta_every=field_checks.number("delta_every", job.delta_every),
        keep=field_checks.index("keep", job.keep),
        summary_steps=field_checks.number("summary_steps", job.summary_steps),
        summary_workers=f"SUMMARY_WORKERS_{job.summary_workers.upper()}",
        trace_steps=job.trace_steps,
        keep_best=job.keep_best,
        warm_start=job.warm_start,
        warm_start_vars=job.warm_start_vars,
        warm_start_names=job.warm_start_names,
        slice_bytes=field_checks.number("slice_bytes", job.slice_bytes),
        min_ps_bytes=field_checks.number("min_ps_bytes", job.min_ps_bytes),
        plan=f"PLAN_KIND_{job.plan.upper().replace('-', '_')}",
        local_steps=field_checks.number("local_steps", job.local_steps),
        pipeline=field_checks.index("pipeline", job.pipeline),
        wire=f"WIRE_{job.wire.upper()}",
        wire_error_feedback=job.wire_error_feedback == "on",
        top_k=job.top_k,
        backup_workers=field_checks.index("backup_workers", job.backup_workers),
        batch_policy=f"BATCH_POLICY_{job.batch_policy.upper()}",
        max_staleness=None if job.max_staleness is None else field_checks.number("max_staleness", job.max_staleness),
        staleness_lr=job.staleness_lr,
        schedule=job.schedule,
        on_nan=f"ON_NAN_{job.on_nan.upper()}",
        on_data_error=f"ON_DATA_ERROR_{job.on_data_error.upper()}",
        start_over=job.start_over == "on",
        replicate_every=field_checks.number("replicate_every", job.replicate_every),
        on_ps_loss=f"ON_PS_LOSS_{job.on_ps_loss.upper()}",
        rounds_log=job.rounds_log,
        round_warn=field_checks.duration(job.round_warn_s),
        lease=field_checks.duration(job.lease_s),
        ps_timeout=field_checks.duration(job.ps_timeout_s),
        drain_timeout=field_checks.duration(job.drain_timeout_s),
        link_timeout=field_checks.duration(job.link_timeout_s),
        linger=field_checks.duration(job.linger_s),
        stop_grace=field_checks.duration(job.stop_grace_s),
    )


def job_from_wire(wire: pb.JobSettings) -> JobConfig:
    """JobConfig makes the checks of ranges."""
    return JobConfig(
        job_id=check_job_id("job_id", wire.job_id),
        mode=field_checks.word("mode", pb.Mode, wire.mode).lower(),
        bound=wire.bound if wire.HasField("bound") else None,
        max_bound=wire.max_bound if wire.HasField("max_bound") else None,
        ps=wire.ps,
        min_workers=wire.min_workers,
        max_workers=wire.max_workers,
        train_steps=wire.train_steps if wire.HasField("train_steps") else None,
        epochs=wire.epochs if wire.HasField("epochs") else None,
        checkpoint_dir=wire.checkpoint_dir,
        save_steps=wire.save_steps,
        save_secs=field_checks.seconds("save_secs", wire.save_secs),
        delta_every=wire.delta_every,
        keep=wire.keep,
        summary_steps=wire.summary_steps,
        summary_workers=field_checks.word("summary_workers", pb.SummaryWorkers, wire.summary_workers).lower(),
        trace_steps=wire.trace_steps,
        keep_best=wire.keep_best,
        warm_start=wire.warm_start,
        warm_start_vars=wire.warm_start_vars,
        warm_start_names=wire.warm_start_names,
        slice_bytes=wire.slice_bytes,
        min_ps_bytes=wire.min_ps_bytes,
        plan=field_checks.word("plan", pb.PlanKind, wire.plan).lower().replace("_", "-"),
        local_steps=wire.local_steps,
        pipeline=wire.pipeline,
        wire=field_checks.word("wire", pb.Wire, wire.wire).lower(),
        wire_error_feedback="on" if wire.wire_error_feedback else "off",
        top_k=wire.top_k if wire.HasField("top_k") else None,
        backup_workers=wire.backup_workers,
        batch_policy=field_checks.word("batch_policy", pb.BatchPolicy, wire.batch_policy).lower(),
        max_staleness=wire.max_staleness if wire.HasField("max_staleness") else None,
        staleness_lr=wire.staleness_lr,
        schedule=wire.schedule,
        on_nan=field_checks.word("on_nan", pb.OnNan, wire.on_nan).lower(),
        on_data_error=field_checks.word("on_data_error", pb.OnDataError, wire.on_data_error).lower(),
        start_over="on" if wire.start_over else "off",
        replicate_every=wire.replicate_every,
        on_ps_loss=field_checks.word("on_ps_loss", pb.OnPsLoss, wire.on_ps_loss).lower(),
        rounds_log=wire.rounds_log,
        round_warn_s=field_checks.seconds("round_warn", wire.round_warn),
        lease_s=field_checks.seconds("lease", wire.lease),
        ps_timeout_s=field_checks.seconds("ps_timeout", wire.ps_timeout),
        drain_timeout_s=field_checks.seconds("drain_timeout", wire.drain_timeout),
        link_timeout_s=field_checks.seconds("link_timeout", wire.link_timeout),
        linger_s=field_checks.seconds("linger", wire.linger),
        stop_grace_s=field_checks.seconds("stop_grace", wire.stop_grace),
    )


def status_to_wire(status: JobStatus) -> pb.JobStatus:
    return pb.JobStatus(
        phase=phase_to_wire(status.phase),
        reason=status.reason,
        view=view_to_wire(status.view, secrets=False),
        floor_steps=status.floor,
        global_step=status.global_step,
        lost_steps=status.steps_lost,
        members=[_member_to_wire(member) for member in status.members],
        max_lead_steps=status.max_lead,
        balanced=status.balanced,
        unanswered=status.unanswered,
        departures=[_departure_to_wire(departure) for departure in status.departures],
        shards=None if status.shards is None else shards_status_to_wire(status.shards),
        steering=steering_to_wire(status.steering),
        saved_step=status.saved_step,
        saved_ago=None if status.saved_ago_s is None else field_checks.duration(status.saved_ago_s),
    )


def status_from_wire(wire: pb.JobStatus) -> JobStatus:
    return JobStatus(
        phase=phase_from_wire(wire.phase),
        reason=wire.reason,
        view=view_from_wire(wire.view),
        floor=field_checks.number("floor_steps", wire.floor_steps),
        global_step=field_checks.number("global_step", wire.global_step),
        steps_lost=field_checks.number("lost_steps", wire.lost_steps),
        members=tuple(_member_from_wire(member) for member in wire.members),
        max_lead=field_checks.number("max_lead_steps", wire.max_lead_steps),
        balanced=wire.balanced,
        unanswered=counts_from_wire("unanswered", wire.unanswered),
        departures=tuple(_departure_from_wire(departure) for departure in wire.departures),
        shards=shards_status_from_wire(wire.shards) if wire.HasField("shards") else None,
        steering=steering_from_wire(wire.steering) if wire.HasField("steering") else UNSTEERED,
        saved_step=optional_number("saved_step", wire, "saved_step"),
        saved_ago_s=field_checks.seconds("saved_ago", wire.saved_ago) if wire.HasField("saved_ago") else None,
    )


def _departure_to_wire(departure: Departure) -> pb.Departure:
    return pb.Departure(
        role=role_to_wire(departure.role),
        index=departure.index,
        incarnation=departure.incarnation,
        kind=None if departure.kind is None else f"LEAVE_KIND_{departure.kind.name}",
        reason=field_checks.clipped(departure.reason),
        ago=field_checks.duration(departure.ago_s),
    )


def _departure_from_wire(wire: pb.Departure) -> Departure:
    kind = LeaveKind[field_checks.word("departures.kind", pb.LeaveKind, wire.kind)] if wire.HasField("kind") else None
    return Departure(
        role_from_wire(wire.role),
        field_checks.index("departures.index", wire.index),
        field_checks.text("departures.incarnation", wire.incarnation, field_checks.TAG_CHARS),
        kind,
        field_checks.words("departures.reason", wire.reason),
        field_checks.seconds("departures.ago", wire.ago),
    )


def _member_to_wire(member: MemberStatus) -> pb.MemberStatus:
    return pb.MemberStatus(
        role=role_to_wire(member.role),
        index=member.index,
        address=member.address,
        health_address=member.health_address,
        incarnation=member.incarnation,
        admitted=field_checks.duration(member.admitted_s),
        silent=field_checks.duration(member.silent_s),
        chief=member.chief,
        stopped=member.stopped,
        clock_steps=member.clock,
        lead_steps=member.lead,
        ps=None if member.ps_stats is None else ps_stats_to_wire(member.ps_stats),
        worker=None if member.worker_stats is None else worker_stats_to_wire(member.worker_stats),
        ps_traffic=None if member.ps_traffic is None else _ps_traffic_to_wire(member.ps_traffic),
        worker_traffic=None if member.worker_traffic is None else _worker_traffic_to_wire(member.worker_traffic),
        share=member.share,
    )


def _member_from_wire(wire: pb.MemberStatus) -> MemberStatus:
    role = role_from_wire(wire.role)
    which = wire.WhichOneof("stats")
    if which not in (None, role.value):
        raise UsageError(f"members.stats must be that of a {role}, got {which}")
    if wire.HasField("worker_traffic" if role is Role.PS else "ps_traffic"):
        raise UsageError(f"members.traffic must be that of a {role}")
    return MemberStatus(
        role=role,
        index=field_checks.index("members.index", wire.index),
        address=field_checks.address("members.address", wire.address),
        health_address=field_checks.address("members.health_address", wire.health_address),
        incarnation=field_checks.text("members.incarnation", wire.incarnation, field_checks.TAG_CHARS),
        admitted_s=field_checks.seconds("members.admitted", wire.admitted),
        silent_s=field_checks.seconds("members.silent", wire.silent),
        chief=wire.chief,
        stopped=wire.stopped,
        clock=field_checks.number("members.clock_steps", wire.clock_steps),
        lead=field_checks.number("members.lead_steps", wire.lead_steps),
        ps_stats=ps_stats_from_wire(wire.ps) if which == "ps" else None,
        worker_stats=worker_stats_from_wire(wire.worker) if which == "worker" else None,
        ps_traffic=_ps_traffic_from_wire(wire.ps_traffic) if wire.HasField("ps_traffic") else None,
        worker_traffic=_worker_traffic_from_wire(wire.worker_traffic) if wire.HasField("worker_traffic") else None,
        share=field_checks.number("members.share", wire.share),
    )


def _ps_traffic_to_wire(traffic: PsTraffic) -> pb.PsTraffic:
    return pb.PsTraffic(
        sent_bytes_per_second=traffic.sent_per_s,
        received_bytes_per_second=traffic.received_per_s,
        share=traffic.share,
        heavy=traffic.heavy,
    )


def _ps_traffic_from_wire(wire: pb.PsTraffic) -> PsTraffic:
    return PsTraffic(
        field_checks.amount("members.ps_traffic.sent_bytes_per_second", wire.sent_bytes_per_second),
        field_checks.amount("members.ps_traffic.received_bytes_per_second", wire.received_bytes_per_second),
        field_checks.share("members.ps_traffic.share", wire.share) if wire.HasField("share") else None,
        wire.heavy,
    )


def _worker_traffic_to_wire(traffic: WorkerTraffic) -> pb.WorkerTraffic:
    return pb.WorkerTraffic(
        sent_bytes_per_step=traffic.sent_per_step, received_bytes_per_step=traffic.received_per_step
    )


def _worker_traffic_from_wire(wire: pb.WorkerTraffic) -> WorkerTraffic:
    return WorkerTraffic(
        field_checks.amount("members.worker_traffic.sent_bytes_per_step", wire.sent_bytes_per_step),
        field_checks.amount("members.worker_traffic.received_bytes_per_step", wire.received_bytes_per_step),
    )
