"""The one table of errors and gRPC statuses, read in both directions.

A status that several errors share is distinguished by the trailing metadata `psruntime-cause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from psruntime.core.fields import visible
from psruntime.errors import (
    CredentialsError,
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    JobStoppedError,
    ModelDiffersError,
    OtherJobError,
    PsRuntimeError,
    ReplacedError,
    UnreachableError,
    UsageError,
)

CAUSE_KEY = "psruntime-cause"
DETAIL_BYTES = 2000  # details travel percent-encoded, at most threefold, in headers that gRPC limits to 8 KiB


@dataclass(frozen=True)
class Row:
    """An error class, the status it travels as, and its cause where that is needed."""

    error: type[PsRuntimeError]
    code: Any  # grpc.StatusCode
    cause: str = ""


# The coordinator raises these.  An error travels as the first row that it is an instance of.
SENT = (
    Row(CredentialsError, grpc.StatusCode.UNAUTHENTICATED),
    Row(IndexHeldError, grpc.StatusCode.ALREADY_EXISTS),
    Row(ModelDiffersError, grpc.StatusCode.INVALID_ARGUMENT, "model-differs"),
    Row(OtherJobError, grpc.StatusCode.INVALID_ARGUMENT, "other-job"),
    Row(UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    Row(ReplacedError, grpc.StatusCode.FAILED_PRECONDITION),
    Row(JobFailedError, grpc.StatusCode.ABORTED, "phase-failed"),
    Row(JobDoneError, grpc.StatusCode.ABORTED, "phase-done"),
    Row(JobStoppedError, grpc.StatusCode.ABORTED, "phase-stopped"),
    Row(UnreachableError, grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"),
)

# gRPC itself makes these, and the coordinator makes INTERNAL of a defect.
ONLY_RECEIVED = (
    Row(UnreachableError, grpc.StatusCode.UNAVAILABLE),
    Row(UnreachableError, grpc.StatusCode.DEADLINE_EXCEEDED),
    Row(UnreachableError, grpc.StatusCode.CANCELLED),  # by a coordinator that stops, or by closing our channel
    Row(UnreachableError, grpc.StatusCode.UNKNOWN),  # the link broke in the middle of an answer
    Row(UsageError, grpc.StatusCode.UNIMPLEMENTED),  # some other gRPC server
    Row(UsageError, grpc.StatusCode.RESOURCE_EXHAUSTED),  # a message above the size limit
    Row(PsRuntimeError, grpc.StatusCode.INTERNAL),
)


def row_of(error: BaseException) -> Row | None:
    """The row as which an error travels; None for one that is a defect."""
    return next((row for row in SENT if isinstance(error, row.error)), None)


def refusal(error: BaseException) -> tuple[Any, str, tuple[tuple[str, str], ...]] | None:
    """Status, details and trailing metadata that an error travels as; None for one that is a defect."""
    row = row_of(error)
    if row is None:
        return None
    return row.code, one_line(str(error)), ((CAUSE_KEY, row.cause),) if row.cause else ()


def error_of(code: Any, cause: str, details: str, who: str) -> PsRuntimeError:
    """The error that a status stands for: by its cause, else the row without one.

    `details` is the coordinator's own text, or what gRPC has to say; then `who` was called stands before it.
    """
    rows = [row for row in SENT + ONLY_RECEIVED if row.code is code]
    rows.sort(key=lambda row: (row.cause != cause, row.cause != ""))
    row = rows[0] if rows else Row(PsRuntimeError, code)
    if row in SENT:
        return row.error(details)
    if code is grpc.StatusCode.UNAVAILABLE:
        return row.error(f"{who} cannot be reached: {_why_unavailable(details)}")
    return row.error(f"{who} answers {getattr(code, 'name', code)}: {details}")


def _why_unavailable(details: str) -> str:
    """The last of the reasons that gRPC lists, without the address, which stands before it already."""
    return details.rpartition("Failed to connect to remote host: ")[2].rpartition("last error: ")[2]


def one_line(text: str, limit_bytes: int = DETAIL_BYTES) -> str:
    """A text as status details take it: one line, UTF-8 without lone surrogates, cut at a limit."""
    encoded = " ".join(visible(text).split()).encode("utf-8", "replace")
    return encoded[:limit_bytes].decode("utf-8", "ignore")
