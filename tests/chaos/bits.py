"""Sync jobs of digits, whose replays must have the same bits: with 2 or 3 workers, and every second one on two machines
with a ps beside each worker, of which the second comes late and is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from psruntime.errors import UnreachableError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from tests.cluster.test_colocated_ps import Machines
from tests.support.cluster import END_S, Zygote, cluster, replayed
from tests.support.polling import poll_until

ROUNDS = 200
LATE_S = 4.0  # of the second machine, at most
SAVE_STEPS = 50
LINGER_S = 8.0  # a machine that comes after the end shall learn of it


@dataclass
class Repeated:
    """how: the job in words.  compared: variables and slots, all with the same bits."""

    seed: int
    how: str = ""
    compared: int = 0
    seconds: float = 0.0


class BitsJob:
    """One job and its replay."""

    def __init__(self, seed: int, colocated: bool, zygote: Zygote, folder: Path) -> None:
        self._result, self._chance = Repeated(seed), random.Random(seed)
        self._colocated, self._zygote, self._folder = colocated, zygote, folder
        self._sizes: dict[int, int] = {}  # of the batches of each worker
        self._checkpoints, self._log = folder / "checkpoints", folder / "rounds.jsonl"

    def run(self) -> Repeated:
        began_s = time.monotonic()
        workers, num_ps = (2, 2) if self._colocated else (self._chance.choice((2, 3)), self._chance.choice((1, 2)))
        least_bytes = self._chance.choice((0, 1 << 20))
        self._result.how = f"{workers} workers, {num_ps} ps{', colocated' * self._colocated}"
        settings = {
            "mode": "sync", "train_steps": ROUNDS, "save_steps": SAVE_STEPS, "lease_s": 2, "linger_s": LINGER_S,
            "keep": 100, "min_ps_bytes": least_bytes, "rounds_log": self._log, "checkpoint_dir": self._checkpoints,
        }  # fmt: skip
        self._sizes = {index: 64 if self._colocated else self._chance.choice((32, 64)) for index in range(workers)}
        if self._colocated:
            self._on_machines([f"--{name.removesuffix('_s').replace('_', '-')}={v}" for name, v in settings.items()])
        else:
            with cluster(self._zygote, self._folder, **settings, ps=num_ps, min_workers=workers) as job:
                for index, size in self._sizes.items():
                    job.start_worker(index, f"--batch-size={size}")
                assert set(job.wait_all(2 * END_S).values()) == {0}
        flags = [f"--checkpoint-dir={self._checkpoints}", f"--min-workers={workers}"]
        outcome = replayed(self._zygote, self._folder, self._log, self._sizes, *flags)
        assert outcome["bits_differ"] == {} and outcome["may_differ"] == [], outcome
        assert outcome["rounds"] == [1, ROUNDS]
        self._result.compared = len(outcome["differences"])
        self._result.seconds = round(time.monotonic() - began_s, 1)
        return self._result

    def _on_machines(self, flags: Sequence[str]) -> None:
        machines = Machines(self._zygote, self._folder, "task", "--colocate-ps", *flags)
        try:
            procs = [machines.start(0)]
            time.sleep(self._chance.uniform(0, LATE_S))
            procs.append(machines.start(1))
            if self._chance.random() < 0.5:
                self._await_step(machines.coordinator, self._chance.randrange(1, ROUNDS // 2))
                procs[1].kill()
                self._result.how += ", the second machine killed"
                procs[1] = machines.start(1)
            assert [proc.wait(2 * END_S) for proc in procs] == [0, 0], [proc.text for proc in machines.all]
        finally:
            machines.end()

    def _await_step(self, coordinator: str, step: int) -> None:
        with closing(CoordinatorClient(coordinator)) as client:
            poll_until(lambda: _step(client) >= step, END_S, f"global step {step}")


def _step(client: CoordinatorClient) -> int:
    """-1 before the coordinator listens."""
    try:
        return client.get_status()[0].global_step
    except UnreachableError:
        return -1
