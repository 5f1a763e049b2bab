"""One cell of the table of outcomes: a job, one fault, and whether what was promised came of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from tests.chaos.outcomes import Outcome
from tests.support import inventory
from tests.support.census import take_census
from tests.support.cluster import Cluster, Proc, Zygote, cluster
from tests.support.faults import Faults
from tests.support.gates import DYNAMIC, GROUPED, UNSEEN, Gates, write_model
from tests.support.inventory import newest_checkpoint
from tests.support.polling import poll_until

LEASE_S = 2.0
PAUSE_LEASES = 3
LINK_S = 3.0
PS_TIMEOUT_S = {"lost": 4.0}  # where the end of the wait is the outcome
LONG_S = 60.0  # ps_timeout_s elsewhere, and for all that has to happen
SAVE_STEPS = 20
BEGIN_STEPS = 50  # global step at which the fault comes: two checkpoints are there
PACE_S = 0.1  # of a step, so that the job does not end before the fault on a busy machine
WORKERS = 3
TRAIN_STEPS = {"async": 900, "bounded": 900, "sync": 150}
MODE_SETTINGS: dict[str, dict[str, Any]] = {"async": {}, "bounded": {"bound": 2}, "sync": {}}


@dataclass
class Seen:
    """What became of a cell, for people and for docs/chaos.json."""

    end: str = ""
    exit: dict[str, int] = field(default_factory=dict)
    steps_lost: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Cell:
    """Runs one cell; `run` raises AssertionError where the outcome is another than promised."""

    def __init__(self, outcome: Outcome, zygote: Zygote, folder: Path) -> None:
        self.outcome = outcome
        self.seen = Seen()
        self._zygote = zygote
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._gates = Gates(folder / "gates")

    def run(self) -> Seen:
        began_s = time.monotonic()
        mode = self.outcome.mode
        settings = {
            "mode": mode, "ps": 2, "min_workers": WORKERS, "train_steps": TRAIN_STEPS[mode], "lease_s": LEASE_S,
            "ps_timeout_s": PS_TIMEOUT_S.get(self.outcome.fault, LONG_S),
            "link_timeout_s": LINK_S,
            "checkpoint_dir": self._checkpoints, "save_steps": SAVE_STEPS, **MODE_SETTINGS[mode],
        }  # fmt: skip
        model = write_model(self._folder, self._gates.folder, "momentum", tables=[GROUPED, DYNAMIC])
        self._gates.set_pace(PACE_S)
        with cluster(self._zygote, self._folder, **settings) as job:
            self._job, self._faults = job, Faults(job)
            for index in range(WORKERS):
                job.start_worker(index, f"--model={model}")
            self._begin()
            with self._computing():
                self._strike()
            if self.outcome.end == "DONE":
                self._recover()
                self._agree()
            self._end()
        self.seen.faults = dict(self._faults.counts)
        self.seen.seconds = round(time.monotonic() - began_s, 1)
        return self.seen

    def _begin(self) -> None:
        """Trains until there is something to lose, and picks the victim."""
        job, victim = self._job, self.outcome.victim
        job.wait_for_step(BEGIN_STEPS)
        poll_until(lambda: (newest_checkpoint(self._checkpoints) or ("", 0))[1] > 0, LONG_S, "a checkpoint")
        job.wait_for_phase(Phase.TRAINING)
        self._chief = chief(job)
        worker = next(index for index in range(WORKERS) if index != self._chief)
        self._holder = self._chief if victim == "chief" else worker
        self._victim = (
            job.latest("ps", int(victim[-1])) if victim.startswith("ps") else job.latest("worker", self._holder)
        )

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """The victim, or a worker where it is a ps, has pulled and not pushed."""
        gate = f"compute-{self._holder}"
        self._gates.close(gate)
        self._gates.wait_at(gate, self._job.latest("worker", self._holder))
        yield
        self._gates.open(gate)

    def _strike(self) -> None:
        status = self._job.status()
        self._step, self._pushes = status.global_step, self._job.worker_pushes()
        self._marks = {
            proc.name: len(proc.text) for proc in self._job.procs
        }  # what a busy machine did before is not it
        self._addresses, self._specs = [e.address for e in status.view.ps], self._job.client.get_model() or ()
        gate = f"compute-{self._holder}"
        if self.outcome.fault != "pause":
            self._faults.kill(self._victim)
            self._saved = newest_checkpoint(self._checkpoints)
            self._gates.open(gate)
            if self.outcome.fault == "kill, restart":
                self._successor = self._faults.restart(self._victim)
            return
        until_s = time.monotonic() + PAUSE_LEASES * LEASE_S
        self._faults.stop(self._victim)
        if self.outcome.lost == "victim":
            name = self._victim.name.replace("-", " ")
            self._job.ps[0].wait_for(f'member_lost member="{name}"')
            self._job.wait_for_step(self._job.status().global_step + 5)  # the others go on
        time.sleep(max(0.0, until_s - time.monotonic()))  # the pause itself
        self._gates.open(gate)
        self._faults.cont(self._victim)

    def _recover(self) -> None:
        """Until every worker that is to be there has made steps since."""
        job = self._job
        self._live = [i for i in range(WORKERS) if job.latest("worker", i).code is None]
        if self._victim.name.startswith("worker") and self.outcome.fault == "kill, restart":
            del self._pushes[self._holder]  # a successor begins to count anew
            self._successor.wait_for(" first_step ", LONG_S)

        def all_train() -> bool:
            try:
                status = job.status()
            except Exception:  # noqa: BLE001 - ps 0 may be away
                return False
            made = {m.index: m.worker_stats.pushes for m in status.members if m.worker_stats}
            return (
                status.phase is Phase.TRAINING
                and self._is_noticed(status)
                and sorted(made) == self._live
                and all(made[i] > self._pushes.get(i, 0) + 3 for i in self._live)
            )

        poll_until(all_train, 2 * LONG_S, "steps of every worker after the fault")
        self._chief_after = chief(job)

    def _is_noticed(self, status: JobStatus) -> bool:
        """Whether a ps that was killed is there again; before, steps of the view that ends pass for those after it."""
        restarted = self._victim.name.startswith("ps") and self.outcome.fault == "kill, restart"
        return not restarted or [e.address for e in status.view.ps] != self._addresses

    def _agree(self) -> None:
        census = take_census(self._job, self._zygote, self._gates, self._live)
        census.check()
        if self.outcome.fenced == "yes":
            assert census.ps.dropped("fenced") > 0, census.ps.ledgers
        self._gates.set_pace(0.0)

    def _end(self) -> None:
        if self.outcome.end == "GONE":
            ps_1 = inventory.of_addresses(self._job, self._zygote, self._addresses, self._specs, [1])
            assert ps_1.ledgers and not ps_1.unbalanced, ps_1.ledgers
        codes = self._job.wait_all(2 * LONG_S)
        self.seen.exit, self.seen.end = codes, end_of(self._job)
        wanted, others = self.outcome.codes
        expected = {proc.name: wanted if proc is self._victim else others for proc in self._job.procs}
        assert codes == expected, f"exit codes {codes}, promised {expected}"
        assert self.seen.end == self.outcome.end
        assert self._faults.counts == {
            "kill, restart": {"kill": 1, "restart": 1}, "pause": {"stop": 1, "cont": 1}, "lost": {"kill": 1},
        }[self.outcome.fault]  # fmt: skip
        self._check_names()
        self._check_steps()
        self._check_books()

    def _check_names(self) -> None:
        """Who was lost, who joined again, who is chief."""
        job, outcome = self._job, self.outcome
        victim = self._victim.name.replace("-", " ")
        lost = {name for log in self._logs("ps-0") for name in re.findall(r'member_lost member="(.*?)"', log)}
        assert lost == {"nobody": set(), "victim": {victim}, "ps 1": {"ps 1"}}[outcome.lost], lost
        rejoined = {proc.name.replace("-", " ") for proc in job.procs if " rejoining " in self._since(proc)}
        workers = {f"worker {index}" for index in range(WORKERS)}
        expected = {"nobody": set(), "victim": {victim}, "ps 1": {"ps 1"}, "ps 1, workers": {"ps 1", *workers}}
        assert rejoined == expected[outcome.rejoins], rejoined
        if outcome.end == "DONE":
            changed = self._chief_after != self._chief
            assert outcome.chief == "may change" or changed == (outcome.chief == "changes"), self._chief_after
            return
        reason = {
            "FAILED": "the job failed: ps 1 did not return within 4 s (ps_timeout_s)",
            "GONE": f"coordinator {job.coordinator} was not reached for 4 s; is ps 0 running there? (--ps-timeout)",
        }[outcome.end]
        for proc in job.procs:
            assert proc is self._victim or reason in proc.wait_for(" error "), proc.text
            assert "Traceback" not in proc.text

    def _check_steps(self) -> None:
        """Whether anything was undone, and from where it was done again."""
        restored = [int(s) for log in self._logs("worker") for s in re.findall(RESTORED, log)]
        lost = [int(s) for log in self._logs("ps-0") for s in re.findall(r" prepared .*steps_lost=(\d+)", log)]
        if self.outcome.steps != "rolled back":
            assert not restored and not any(lost), (restored, lost)
            return
        assert len(restored) == 1, restored
        assert self._saved and restored[0] >= self._saved[1] > 0, "not the newest checkpoint that was there"
        self.seen.steps_lost = max(0, self._step - restored[0])
        assert self.outcome.victim == "ps 0" or sum(lost) >= self.seen.steps_lost, "lost steps are not told"

    def _check_books(self) -> None:
        """The ledgers say that they balance; the last checkpoint is whole, and is what was evaluated."""
        if self.outcome.end != "GONE":
            for proc in self._job.procs:
                if proc.name.startswith("ps-") and proc is not self._victim:
                    assert "balanced=True" in proc.wait_for(" ledger "), proc.text
        saved = newest_checkpoint(self._checkpoints)
        assert saved
        values = inventory.of_checkpoint(self._zygote, self._folder, saved[0]).values
        assert values["global_step"] == [saved[1]] and len(values["kernel/Momentum"]) == 32
        if self.outcome.end == "DONE":
            limit = TRAIN_STEPS[self.outcome.mode]
            assert saved[1] == limit or (self.outcome.mode != "sync" and limit < saved[1] < limit + WORKERS)
            (evaluated,) = [e for log in self._logs("worker") for e in re.findall(EVALUATED, log)]
            assert evaluated == (str(saved[1]), f"{loss_of(values):.4f}")

    def _since(self, proc: Proc) -> str:
        """What a process has logged since the fault."""
        return proc.text[self._marks.get(proc.name, 0) :]

    def _logs(self, name: str) -> list[str]:
        """That of all processes whose name begins so."""
        return [self._since(proc) for proc in self._job.procs if proc.name.startswith(name)]


RESTORED = r" restored global_step=(\d+)"
EVALUATED = r"held out, at global step (\d+): loss ([0-9.]+)"


def chief(job: Cluster) -> int | None:
    """Index of the chief; None while there is none."""
    return next((m.index for m in job.status().members if m.chief), None)


def end_of(job: Cluster) -> str:
    """The last phase that the newest ps 0 has logged; GONE if that was killed before."""
    last: Proc = job.latest("ps", 0)
    phases = re.findall(r" phase was=\w+ now=(\w+)", last.text)
    return phases[-1] if last.code is not None and last.code >= 0 else "GONE"


def loss_of(values: dict[str, list[float]]) -> float:
    """What the held-out loss of the gated model is with these variables: on eight times the same example.

    Its features are ones, which look up row or id 0 of every table.
    """
    hidden = [math.tanh(sum(values["kernel"][row * 8 + column] for row in range(4))) for column in range(8)]
    predicted = sum(h * weight for h, weight in zip(hidden, values["head"], strict=True))
    predicted += sum(sum(values[f"tables/{name}"][:3]) for name in ("shelf", "book"))
    ids, rows = values["tables/reader/ids"], values["tables/reader"]
    predicted += sum(rows[3 * ids.index(0) :][:3]) if 0 in ids else 3 * UNSEEN
    return (predicted - 1.0) ** 2
