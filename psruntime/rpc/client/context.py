"""What all parts of a process share that talk to the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from psruntime.config import JobConfig
from psruntime.rpc.client.coordinator_client import CoordinatorClient

MARGIN_S = 2.0  # at least


@dataclass(frozen=True)
class ClientContext:
    """asked, stop: as in Process; `stop` ends every wait.  log(event, **facts): takes what operators want to read."""

    client: CoordinatorClient
    job: JobConfig
    stop: threading.Event
    log: Callable[..., None]
    asked: threading.Event = field(default_factory=threading.Event)

    @property
    def margin_s(self) -> float:
        """Of a call's deadline over the time for which the coordinator may keep it waiting."""
        return max(MARGIN_S, self.job.heartbeat_s)
