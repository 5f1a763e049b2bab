"""The first exchange of a process with the coordinator: it learns the job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.job import contradictions
from psruntime.errors import OtherJobError, UnreachableError, UsageError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.retry import retrying


def fetch_job(
    client: CoordinatorClient,
    given: dict[str, Any],
    connect_timeout_s: float,
    stop: threading.Event,
    log: Callable[..., None],
    worker: int | None = None,
) -> JobConfig:
    """The job's settings; waits for the coordinator to appear.

    worker: index of the worker that asks, which joins later; None: another process asks.

    Raises:
        UsageError: it did not within `connect_timeout_s`, or a setting of `given`, this process's own
            flags, contradicts the job's; OtherJobError if that is the job's id.
    """
    try:
        job = retrying(client.get_job, connect_timeout_s, stop, client.name, log)
    except UnreachableError as error:
        raise UsageError(str(error)) from error
    log("job", id=job.job_id, mode=job.mode, coordinator=client.address)
    wrong = contradictions(given, job)
    if wrong:
        kind = OtherJobError if given.get("job_id", job.job_id) != job.job_id else UsageError
        raise kind(f"flags contradict the job's settings: {'; '.join(wrong)}; leave them out, ps 0 sets them")
    if worker is not None:
        with suppress(UnreachableError):  # its join finds out
            client.get_job(worker=worker)  # it belongs to this job, and joins when it is built
    return job
