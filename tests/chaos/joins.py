"""Workers that join, train and are killed, one after the other: what that costs the ps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster import Zygote, cluster
from tests.support.faults import Faults, memory_bytes
from tests.support.polling import poll_until

SMALL = "--model=tests.cluster.models"
WAIT_S = 90.0
LIFE_S = 0.2  # after its first step, at most


@dataclass
class Joined:
    """ps_bytes: resident set of each ps before the first worker joined, and after the last was killed."""

    cycles: int
    new_indices: bool
    ps_bytes: list[list[int]] = field(default_factory=list)
    grown_bytes: int = 0
    seconds: float = 0.0


def join_and_kill(
    cycles: int, new_indices: bool, zygote: Zygote, folder: Path, tell: Callable[[str], None] = print
) -> Joined:
    """new_indices: every worker has an index that nobody had before; else all have the same one."""
    result, chance = Joined(cycles, new_indices), random.Random(cycles)
    began_s = time.monotonic()
    with cluster(zygote, folder, ps=2, lease_s=2, train_steps=1 << 40) as job:
        faults = Faults(job)
        stays = job.start_worker(0, SMALL)
        job.wait_for_step(50)
        result.ps_bytes.append([memory_bytes(ps.pid) for ps in job.ps])
        for cycle in range(cycles):
            worker = job.start_worker(1 + cycle if new_indices else 1, SMALL)
            worker.wait_for(" first_step ", WAIT_S)
            time.sleep(chance.uniform(0, LIFE_S))
            faults.kill(worker)
            if (cycle + 1) % 20 == 0:
                tell(f"{cycle + 1} joined and killed, ps have {[memory_bytes(ps.pid) >> 20 for ps in job.ps]} MB")
        poll_until(lambda: list(job.worker_pushes()) == [0], WAIT_S, "the end of the last lease")
        job.wait_for_step(job.status().global_step + 50)
        result.ps_bytes.append([memory_bytes(ps.pid) for ps in job.ps])
        assert faults.counts == {"kill": cycles}
        for proc in (stays, *reversed(job.ps)):
            proc.signal(15)
            proc.wait()
    before, after = result.ps_bytes
    result.grown_bytes = sum(after) - sum(before)
    result.seconds = round(time.monotonic() - began_s, 1)
    return result
