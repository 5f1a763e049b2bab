"""Checkpoint torture: the chief or a ps is killed at random moments of saves; what is listed is one round's."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cells import chief
from tests.chaos.rounds_in import rounds_in, write_model
from tests.support import inventory
from tests.support.cluster import Proc, Zygote, cluster
from tests.support.faults import Faults
from tests.support.gates import Gates
from tests.support.inventory import newest_checkpoint
from tests.support.polling import poll_until

WORKERS = 2
SAVE_STEPS = 4
PAST_END = 1.2  # the latest moment of a kill, in durations of the save that was watched before
WAIT_S = 90.0
UNFINISHED = ".unfinished-model.ckpt*"
RESTORED = r" restored global_step=(\d+) checkpoint=(\S+)"


@dataclass
class Tortured:
    """What became of it."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)  # by victim
    cut_off: int = 0  # saves that the kill left unfinished
    restored: int = 0
    newest: int = 0  # global step of the last checkpoint
    seconds: float = 0.0


class Torture:
    """`saves` saves are struck, one after the other."""

    def __init__(self, seed: int, saves: int, zygote: Zygote, folder: Path) -> None:
        self.result = Tortured(seed)
        self._random = random.Random(seed)
        self._saves = saves
        self._zygote = zygote
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._gates = Gates(folder / "gates")

    def run(self) -> Tortured:
        began_s = time.monotonic()
        settings = {
            "mode": "sync", "ps": 2, "min_workers": WORKERS, "lease_s": 2, "ps_timeout_s": 60,
            "checkpoint_dir": self._checkpoints, "save_steps": SAVE_STEPS,
        }  # fmt: skip
        model = write_model(self._folder, self._gates.folder)
        with cluster(self._zygote, self._folder, **settings) as job:
            self._job, self._faults = job, Faults(job)
            for index in range(WORKERS):
                job.start_worker(index, f"--model={model}")
            self._await_save()
            for _ in range(self._saves):
                self._strike()
            self._gates.close("stop")
            codes = job.wait_all(WAIT_S)
            assert set(codes.values()) == {0, -9} and list(codes.values()).count(-9) == self._saves, codes
        self.result.newest = self._check_newest()
        assert self._faults.counts == {"kill": self._saves, "restart": self._saves}
        assert self.result.restored == sum(n for victim, n in self.result.kills.items() if victim != "chief")
        self.result.seconds = round(time.monotonic() - began_s, 1)
        return self.result

    def _strike(self) -> None:
        kind = self._random.choice(["chief", "ps 0", "ps 1"])
        moment = self._random.uniform(0, PAST_END)
        victim = self._victim(kind)
        lasts_s = self._watch_save()
        self._await_begin()
        time.sleep(moment * lasts_s)
        self._faults.kill(victim)
        self.result.kills[kind] += 1
        self.result.cut_off += any(self._checkpoints.glob(UNFINISHED))
        there = self._check_newest()
        marks = {proc.name: len(proc.text) for proc in self._job.procs}
        self._faults.restart(victim)
        if kind != "chief":
            self._check_restored(there, marks)
        self._await_save()

    def _await_begin(self) -> None:
        poll_until(lambda: any(self._checkpoints.glob(UNFINISHED)), WAIT_S, "a save that begins")

    def _watch_save(self) -> float:
        """How long one takes."""
        self._await_begin()
        began_s = time.monotonic()
        poll_until(lambda: not any(self._checkpoints.glob(UNFINISHED)), WAIT_S, "a save that ends")
        return time.monotonic() - began_s

    def _victim(self, kind: str) -> Proc:
        if kind == "chief":
            return self._job.latest("worker", chief(self._job))
        return self._job.latest("ps", int(kind[-1]))

    def _check_restored(self, there: int, marks: dict[str, int]) -> None:
        """All went back to a whole checkpoint: the newest there, or the one that was being listed."""

        def restored() -> list[tuple[str, str]]:
            return [found for p in self._job.procs for found in re.findall(RESTORED, p.text[marks.get(p.name, 0) :])]

        poll_until(restored, WAIT_S, "a restored checkpoint")
        ((step, path),) = restored()
        assert int(step) >= there and path.endswith(f"-{step}"), (there, step, path)
        self.result.restored += 1

    def _check_newest(self) -> int:
        """The newest one that is listed is whole; returns its rounds."""
        newest = newest_checkpoint(self._checkpoints)
        assert newest
        rounds = rounds_in(inventory.extremes(self._zygote, self._folder, newest[0]))
        assert rounds == newest[1], f"{newest[0]} has {rounds} rounds"
        return rounds

    def _await_save(self) -> None:
        """Until another checkpoint is there than now."""
        before = newest_checkpoint(self._checkpoints)
        poll_until(lambda: newest_checkpoint(self._checkpoints) != before, WAIT_S, "another checkpoint")
