"""Random faults from a seed, on one job: few of them with a rest after each (`make chaos`), or many (`make soak`).

At the end everybody who lives has read the same variables, the books balance, the job reaches DONE, nobody is left;
in mode sync the rounds, replayed in one process, give the same parameters.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.burden import Burden
from tests.chaos.cells import MODE_SETTINGS
from tests.chaos.storm import Storm, end_codes
from tests.chaos.surroundings import AWAY, Surroundings
from tests.chaos.watch import Watch, watching
from tests.support import inventory
from tests.support.census import take_census
from tests.support.cluster import Cluster, Zygote, cluster, replayed
from tests.support.gates import DYNAMIC, GROUPED, Gates, write_model
from tests.support.inventory import newest_checkpoint

WORKERS = 3
LEASE_S = 2.0
BEGIN_STEPS = 30
SAVE_STEPS = 40
DELTA_EVERY = 10
END_S = 120.0
EARLY = 0.25  # of the time
MOMENTS = 5  # at which the processes are weighed
TOLERANCE = 1e-5
SIZES = dict.fromkeys(range(WORKERS), 8)


@dataclass
class Outlasted:
    """What a job went through, and how it came out."""

    seed: int
    mode: str
    faults: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    global_step: int = 0  # of the last checkpoint
    steps_done_again: int = 0  # by rollbacks, as the logs of the ps 0 tell
    rollbacks: int = 0
    ledgers: dict[str, dict[str, int]] = field(default_factory=dict)  # at the census
    largest: float | None = None  # difference to the replay, mode sync
    longest_stop_s: float = 0.0  # without a step
    early: Burden = field(default_factory=Burden)  # after a quarter of the time, where that is given
    late: Burden = field(default_factory=Burden)
    seconds: float = 0.0


class Weather:
    """`run` plays it.  every_s: between two faults; None: as soon as everybody has recovered from the last one.

    more: settings of the job, beside those of its mode.
    """

    def __init__(
        self,
        seed: int,
        mode: str,
        zygote: Zygote,
        folder: Path,
        faults: int | None,
        lasts_s: float | None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.result = Outlasted(seed, mode)
        self._zygote = zygote
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._rounds_log = folder / "rounds.jsonl"
        self._gates = Gates(folder / "gates")
        self._faults = faults
        self._lasts_s = lasts_s
        self._more = more or {}

    def run(self, every_s: float | None = None) -> Outlasted:
        began_s = time.monotonic()
        mode = self.result.mode
        settings = {
            "mode": mode, "ps": 2, "min_workers": WORKERS, "lease_s": LEASE_S, "ps_timeout_s": 120, "link_timeout_s": 3,
            "checkpoint_dir": self._checkpoints, "save_steps": SAVE_STEPS, "delta_every": DELTA_EVERY,
            **MODE_SETTINGS[mode], **self._more,
        }  # fmt: skip
        if mode == "sync":
            settings |= {"rounds_log": self._rounds_log, "keep": 1_000_000}  # the replay begins with the first
        # With momentum the loss of this model grows without end at the staleness of a pipeline.
        optimizer = "sgd" if "pipeline" in self._more else "momentum"
        tables = [GROUPED] if mode == "sync" else [GROUPED, DYNAMIC]  # the replay does not know dynamic ones
        model = write_model(self._folder, self._gates.folder, optimizer, tables=tables)
        self._gates.set_pace(0.02)
        with ExitStack() as stack:
            self._surroundings = Surroundings(self._folder, self._checkpoints, stack)
            self._surroundings.add_all()
            with cluster(self._zygote, self._folder, **settings, **self._surroundings.settings) as job:
                self._train(job, model, every_s)
            if mode == "sync":
                self._replay(model)
        self.result.seconds = round(time.monotonic() - began_s, 1)
        return self.result

    def _train(self, job: Cluster, model: str, every_s: float | None) -> None:
        for index in range(WORKERS):
            job.start_worker(index, f"--model={model}", f"--batch-size={SIZES[index]}")
        job.wait_for_step(BEGIN_STEPS)
        storm = Storm(job, self._gates, self.result.seed, WORKERS, self._surroundings)
        self.result.faults, self.result.told = storm.faults.counts, storm.told
        with watching(job, lambda: storm.silent) as watch:
            if self._lasts_s:
                self._blow(storm, watch, every_s, self._lasts_s * EARLY)
                self.result.early = self._weigh(job, storm)
            self._blow(storm, watch, every_s, (self._lasts_s or math.inf) * (1 - EARLY))
        self.result.longest_stop_s = round(watch.longest_s, 1)
        self.result.late = self._weigh(job, storm) if self._lasts_s else Burden.of(job)
        if self._lasts_s:
            self.result.late.check(self.result.early)
        census = take_census(job, self._zygote, self._gates, list(range(WORKERS)))
        census.check()
        self.result.ledgers = census.ps.ledgers
        self._gates.close("stop")
        job.wait_all(END_S)
        self._check_faults(storm)
        self._check_end(job)

    def _blow(self, storm: Storm, watch: Watch, every_s: float | None, lasts_s: float) -> None:
        until_s = time.monotonic() + lasts_s
        while time.monotonic() < until_s and len(storm.told) < (self._faults or math.inf):
            next_s = time.monotonic() + (every_s or 0.0)
            storm.strike()
            if every_s is None:
                storm.settle()
            while time.monotonic() < next_s:
                storm.check_alive()
                watch.check(storm.told)
                time.sleep(0.1)
        storm.settle()
        watch.check(storm.told)

    def _weigh(self, job: Cluster, storm: Storm) -> Burden:
        """The middle of some calm moments, each after the loss of a ps.

        So every worker has opened another session, whose memory stays with its process: one that has not holds less.
        """
        moments = []
        for _ in range(MOMENTS):
            storm.lose_ps()
            storm.settle()
            moments.append(Burden.of(job))
        return Burden.middle_of(moments)

    def _check_faults(self, storm: Storm) -> None:
        """All that was told has happened, and is over."""
        counts, told = storm.faults.counts, Counter(line.split()[0] for line in storm.told)
        assert counts["restart"] == told["kill"] + told["blind"], (counts, storm.told)
        assert counts["cont"] == counts["stop"], counts
        assert told and counts["kill"] == told["kill"] + 2 * told["blind"] + told["unresolved"], (counts, storm.told)
        assert counts["stop"] == told["pause"] + len(AWAY) * told["suspend"], (counts, storm.told)

    def _check_end(self, job: Any) -> None:
        strange = end_codes(job.procs)
        assert not strange, strange
        assert all(job.latest("ps", i).code == 0 for i in range(2)), job.procs
        assert all(job.latest("worker", i).code == 0 for i in range(WORKERS)), job.procs
        for index in range(2):
            assert "balanced=True" in job.latest("ps", index).wait_for(" ledger ")
        for proc in job.procs:
            assert "Traceback" not in proc.text and " defect " not in proc.text, proc.text
            if proc.name.startswith("ps-0"):
                lost = [int(n) for n in re.findall(r" prepared .*steps_lost=(\d+)", proc.text)]
                self.result.steps_done_again += sum(lost)
            self.result.rollbacks += proc.text.count(" restored ")
        saved = newest_checkpoint(self._checkpoints)
        assert saved
        values = inventory.of_checkpoint(self._zygote, self._folder, saved[0]).values
        assert values["global_step"] == [saved[1]]
        self.result.global_step = saved[1]

    def _replay(self, model: str) -> None:
        flags = [f"--model={model}", f"--checkpoint-dir={self._checkpoints}"]
        outcome = replayed(self._zygote, self._folder, Path(self._rounds_log), SIZES, *flags)
        self.result.largest = max(outcome["differences"].values())
        assert self.result.largest < TOLERANCE, outcome
