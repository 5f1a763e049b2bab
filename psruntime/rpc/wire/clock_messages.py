"""Clock reports and their answers: wire <-> core/clocks/clock_messages.py.  Rules as in member_messages.py."""

from __future__ import annotations

from psruntime.core.clocks.clock_messages import ClockAnswer, ClockReport
from psruntime.rpc.wire import field_checks
from psruntime.v1 import coordination_pb2 as pb


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


def clock_answer_to_wire(answer: ClockAnswer) -> pb.ReportClockResponse:
    return pb.ReportClockResponse(floor_steps=answer.floor, reason=field_checks.clipped(answer.reason))


def clock_answer_from_wire(wire: pb.ReportClockResponse) -> ClockAnswer:
    return ClockAnswer(
        field_checks.number("floor_steps", wire.floor_steps),
        field_checks.text("reason", wire.reason, field_checks.TEXT_CHARS),
    )
