"""What all parts of a process share that talk to the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from psruntime.config import JobConfig
from psruntime.rpc.client.coordinator_client import CoordinatorClient


@dataclass(frozen=True)
class ClientContext:
    """stop: ends every wait.  log(event, **facts): takes what an operator wants to read."""

    client: CoordinatorClient
    job: JobConfig
    stop: threading.Event
    log: Callable[..., None]
