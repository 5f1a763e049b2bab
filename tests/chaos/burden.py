"""What the live processes of a job cost, so that a leak shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from tests.support.cluster import Cluster
from tests.support.faults import memory_bytes, thread_states

THREADS = FILES = 24  # more than before that are no leak: pools of TensorFlow and gRPC that grow when they are needed
BYTES = 50 << 20


@dataclass(frozen=True)
class Burden:
    """Of all processes together.  of_each: bytes of each; the number in a name says how often it was restarted."""

    processes: int = 0
    threads: int = 0
    files: int = 0
    bytes: int = 0
    of_each: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Cluster) -> Burden:
        live = {proc.name: proc.pid for proc in job.procs if proc.code is None}
        pids = live.values()
        threads = sum(len(thread_states(pid)) for pid in pids)
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        of_each = {name: memory_bytes(pid) for name, pid in live.items()}
        return cls(len(pids), threads, files, sum(of_each.values()), of_each)

    @classmethod
    def middle_of(cls, moments: Sequence[Burden]) -> Burden:
        """The median of each number.  of_each: of the moment with the median of the bytes."""
        middle = sorted(moments, key=lambda moment: moment.bytes)[(len(moments) - 1) // 2]
        return cls(
            median_low(moment.processes for moment in moments),
            median_low(moment.threads for moment in moments),
            median_low(moment.files for moment in moments),
            middle.bytes,
            middle.of_each,
        )

    def check(self, before: Burden) -> None:
        """Nothing has grown since."""
        assert self.processes == before.processes, (self, before)
        assert self.threads <= before.threads + THREADS, (self, before)
        assert self.files <= before.files + FILES, (self, before)
        assert self.bytes <= before.bytes + BYTES, (self, before)
