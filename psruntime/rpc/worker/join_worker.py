"""A worker's seat with all that belongs to it: its gate in mode bounded, and its place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, WorkerStats
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import PsRuntimeError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.membership_client import Seat
from psruntime.rpc.worker.step_gate import Gate
from psruntime.rpc.worker.worker_control import WorkerPlace


def take_worker_seat(
    client: CoordinatorClient,
    job: JobConfig,
    index: int,
    addresses: tuple[str, str],
    specs: tuple[VariableSpec, ...],
    stats: Callable[[str], WorkerStats],
    connect_timeout_s: float,
    stop: threading.Event,
    log: Callable[..., None],
    at_exit: ExitStack,
    on_answer: Callable[[Answer], None],
    on_end: Callable[[PsRuntimeError], None] = lambda _: None,
) -> tuple[WorkerPlace, Seat]:
    """Joins the job as worker `index`; what has to be closed but the seat is given to `at_exit`.

    addresses: of TensorFlow's server and of grpc.health.v1.  specs: of the variables of the model; none for a
    script.  stats: as WorkerPlace.  on_answer, on_end: as Seat.

    Raises:
        As Seat.take.
    """
    gate = None
    if job.mode == "bounded":
        gate = Gate(job, index, client, stop, log)
        at_exit.callback(gate.close)
    place = WorkerPlace(job, stats, stop, log, gate)

    def hear(answer: Answer) -> None:
        place.hear(answer)
        on_answer(answer)

    seat = Seat(
        client, job, Role.WORKER, index, *addresses, specs,
        beat=place.beat, on_answer=hear, log=log, stop=stop, on_end=on_end,
    )  # fmt: skip
    place.attach(seat)
    seat.take(connect_timeout_s)
    return place, seat
