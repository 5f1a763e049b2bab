"""Reports of a worker's clock and their answers: wire <-> plain data.  Rules as in convert.py."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.rpc.wire import field_checks
from psruntime.v1 import coordination_pb2 as pb


@dataclass(frozen=True)
class ClockReport:
    """A worker's completed steps in a view, and the floor that it waits for; 0: it does not wait."""

    worker_index: int
    incarnation: int
    view: int
    steps: int
    wanted_floor: int = 0
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class Floor:
    """The floor of the view, and for whom the worker has to wait; empty: for nobody."""

    steps: int
    reason: str = ""


def clock_report_to_wire(report: ClockReport) -> pb.ReportClockRequest:
    return pb.ReportClockRequest(
        worker_index=report.worker_index,
        incarnation=report.incarnation,
        view_number=report.view,
        completed_steps=report.steps,
        wanted_floor_steps=report.wanted_floor,
        max_wait=field_checks.duration(report.max_wait_s) if report.max_wait_s > 0 else None,
    )


def clock_report_from_wire(wire: pb.ReportClockRequest) -> ClockReport:
    return ClockReport(
        field_checks.index("worker_index", wire.worker_index),
        field_checks.incarnation("incarnation", wire.incarnation),
        field_checks.number("view_number", wire.view_number, least=1),
        field_checks.number("completed_steps", wire.completed_steps),
        field_checks.number("wanted_floor_steps", wire.wanted_floor_steps),
        field_checks.seconds("max_wait", wire.max_wait),
    )


def floor_to_wire(floor: Floor) -> pb.ReportClockResponse:
    return pb.ReportClockResponse(floor_steps=floor.steps, reason=field_checks.clipped(floor.reason))


def floor_from_wire(wire: pb.ReportClockResponse) -> Floor:
    return Floor(
        field_checks.number("floor_steps", wire.floor_steps),
        field_checks.text("reason", wire.reason, field_checks.TEXT_CHARS),
    )
