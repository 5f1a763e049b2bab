"""Sync training under kills: workers die at random in every stage of a round, and the parameters stay exact.

A schedule is made from its seed.  Afterwards the rounds log is replayed in one process (psruntime/commands/replay.py).
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psruntime.config.job_settings import BATCH_POLICIES
from psruntime.core.members.view import Phase
from psruntime.observe.rounds_log import records_of
from tests.chaos.cells import chief
from tests.support.cluster import Zygote, cluster, replayed
from tests.support.faults import Faults
from tests.support.gates import OPTIMIZERS, Gates, write_model
from tests.support.polling import poll_until

STAGES = ("drawing", "computing", "pushing", "contributed", "closing", "torn")
WORKERS = 3
SIZES = {0: 5, 1: 12, 2: 8}  # worker index -> its batch size
PACE_S = 0.02  # of a computation, so that the record does not get long
SLOW_PACE_S = 0.04  # of worker 1, so that shares change
MOST_BETWEEN = 10  # rounds between two kills
TOLERANCE = 1e-5  # relative to the largest entry of a variable
WAIT_S = 90.0
IN_PUSH_S = (0.02, 0.2)  # from the end of a computation to the kill: the push cannot end meanwhile


@dataclass
class Played:
    """What became of a schedule."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)  # by stage
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    voids: int = 0
    largest: float = 0.0  # difference to the replay
    seconds: float = 0.0


def stages_of(seed: int, kills: int) -> list[str]:
    """In which stage of a round each kill comes."""
    chance = random.Random(seed)
    return [chance.choice(STAGES) for _ in range(kills)]


class KillSchedule:
    """`kills` kills of workers at random; every stage comes equally often over many seeds, and so do batch policies."""

    def __init__(self, seed: int, kills: int, zygote: Zygote, folder: Path) -> None:
        self.played = Played(seed)
        self._random = random.Random(seed)
        self._stages = stages_of(seed, kills)
        self._optimizer = self._random.choice(OPTIMIZERS)
        self._zygote = zygote
        self._folder = folder
        self._gates = Gates(folder / "gates")

    def run(self) -> Played:
        began_s = time.monotonic()
        settings = {
            "mode": "sync", "ps": 2, "min_workers": WORKERS, "lease_s": 2, "ps_timeout_s": 60,
            "checkpoint_dir": self._folder / "checkpoints", "rounds_log": self._folder / "rounds.jsonl",
            "batch_policy": BATCH_POLICIES[self.played.seed // 2 % 2],
        }  # fmt: skip
        model = write_model(self._folder, self._gates.folder, self._optimizer)
        self._gates.set_pace(PACE_S)
        self._gates.set_pace(SLOW_PACE_S, worker=1)
        with cluster(self._zygote, self._folder, **settings) as job:
            self._job, faults = job, Faults(job)
            for index, size in SIZES.items():
                job.start_worker(index, f"--model={model}", f"--batch-size={size}")
            for stage in self._stages:
                self._await_everybody()
                self._kill(stage, faults)
                self.played.kills[stage] += 1
            self._await_everybody()
            self._gates.close("stop")
            self._check_end(job.wait_all(2 * WAIT_S))
        assert faults.counts["kill"] == faults.counts["restart"] == len(self._stages)
        self.played.faults = faults.counts
        self._check_exact(model)
        self.played.seconds = round(time.monotonic() - began_s, 1)
        return self.played

    def _await_everybody(self) -> None:
        """Until some rounds have been closed in which all took part, with their newest processes."""
        known, wanted = len(self._rounds()), self._random.randrange(1, MOST_BETWEEN)

        def complete() -> bool:
            status = self._job.status()
            assert status.phase is not Phase.FAILED, status.reason
            return sum(len(record["parts"]) == WORKERS for record in self._rounds()[known:]) >= wanted

        poll_until(complete, WAIT_S, f"{wanted} rounds of all workers")

    def _rounds(self) -> list[dict[str, Any]]:
        records = records_of(self._folder / "rounds.jsonl")
        return [record for record in records if record["record"] == "round"]

    def _kill(self, stage: str, faults: Faults) -> None:
        index = self._random.randrange(WORKERS)
        victim = getattr(self, f"_{stage}")(index, faults)
        self._gates.open_all()
        faults.restart(victim)

    def _drawing(self, index: int, faults: Faults) -> Any:
        return self._at(f"draw-{index}", index, faults)

    def _computing(self, index: int, faults: Faults) -> Any:
        return self._at(f"compute-{index}", index, faults)

    def _at(self, gate: str, index: int, faults: Faults) -> Any:
        victim = self._job.latest("worker", index)
        self._gates.close(gate)
        self._gates.wait_at(gate, victim)
        faults.kill(victim)
        return victim

    def _pushing(self, index: int, faults: Faults) -> Any:
        """One ps stands still, so the push arrives on the other one only, and cannot end."""
        victim, gate = self._job.latest("worker", index), f"stepped-{index}"
        ps = self._job.latest("ps", self._random.randrange(2))
        self._gates.close(gate)
        self._gates.wait_at(gate, victim)
        faults.stop(ps)
        try:
            self._gates.open(gate)
            time.sleep(self._random.uniform(*IN_PUSH_S))
            faults.kill(victim)
        finally:
            faults.cont(ps)
        return victim

    def _contributed(self, index: int, faults: Faults) -> Any:
        """The round waits for another worker alone."""
        other = (index + self._random.randrange(1, WORKERS)) % WORKERS
        victim = self._job.latest("worker", index)
        self._gates.close(f"compute-{other}")
        self._gates.wait_at(f"compute-{other}", self._job.latest("worker", other))
        waits = re.compile(rf"round \d+ waits for worker {other}, for ")
        poll_until(lambda: waits.search(self._job.status().reason), WAIT_S, f"a round that waits for worker {other}")
        faults.kill(victim)
        return victim

    def _closing(self, index: int, faults: Faults) -> Any:
        """The chief, while a ps is inside the update, which is then made without it."""
        return self._in_update("apply", faults)

    def _torn(self, index: int, faults: Faults) -> Any:
        """The chief, while a ps is inside the update, which is never made: its intent is written."""
        return self._in_update("tear", faults)

    def _in_update(self, gate: str, faults: Faults) -> Any:
        gate += self._random.choice(["-kernel", "-head"])
        self._gates.close(gate)
        self._gates.wait_at(gate)
        victim = self._job.latest("worker", chief(self._job))
        faults.kill(victim)
        return victim

    def _check_end(self, codes: dict[str, int]) -> None:
        killed = [name for name, code in codes.items() if code == -9]
        assert len(killed) == len(self._stages) and set(codes.values()) <= {0, -9}, codes
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in self._job.ps)

    def _check_exact(self, model: str) -> None:
        log, flags = self._folder / "rounds.jsonl", [f"--model={model}"]
        flags.append(f"--checkpoint-dir={self._folder / 'checkpoints'}")
        outcome = replayed(self._zygote, self._folder, log, SIZES, *flags)
        self.played.largest = max(outcome["differences"].values())
        self.played.voids = log.read_text().count('"void"')
        self.played.rounds = outcome["rounds"][1]
        assert self.played.largest < TOLERANCE, outcome
