"""Random changes of mode, each with a SIGKILL of a worker, the chief, ps 1 or ps 0 within half a second of the command.

Wherever the loss falls, the job goes on in the mode before or in the one that was asked for, and in the latter if the
command said so.  In mode bounded no update is staler than the bound allows.  The last change is to mode sync; from the
checkpoint after it to the end the rounds, replayed in one process, give the same parameters.  The same is played with
the stages of a schedule in place of commands.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from psruntime.commands.control import ask, command_of
from psruntime.config.schedule import Schedule, Stage
from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Outcome, Reply
from psruntime.errors import PsRuntimeError
from psruntime.observe.records import read_records
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from tests.chaos.storm import end_codes
from tests.cluster.test_rounds import SIZES, start, write_model
from tests.support.checkpoint_list import keep_from
from tests.support.cluster import Cluster, Zygote, cluster, replayed
from tests.support.faults import Faults
from tests.support.polling import poll_until

WORKERS = 3
LATE_S = 0.5  # from the command to the loss, at most
LOCAL_S = 5.0  # from the beginning of a local stage to the loss, at most
REPLY_S = 90.0
STEPS = 15  # that are taken after each change
MODES = ("async", "bounded 0", "bounded 3", "sync")
VICTIMS = ("worker", "chief", "ps 1", "ps 0")
TOLERANCE = 1e-5
LOCAL = Stage("sync", None, 400, is_local=True)
SCHEDULE = Schedule(
    (Stage("async", None, 150), LOCAL, Stage("sync", None, 60), Stage("bounded", 1, 150), LOCAL, Stage("sync"))
)
EARLY = 30  # global steps before the end of a stage, from which on a loss may fall; in a local one it falls anywhere


@dataclass
class Switched:
    """told: each change, with what was killed and what came of it.  largest: the difference to the replay."""

    seed: int
    told: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    rollbacks: int = 0
    bounded: int = 0  # updates in mode bounded
    largest: float = 0.0
    seconds: float = 0.0


class Switches:
    """`run` plays so many changes, and one more to mode sync."""

    def __init__(self, seed: int, changes: int, zygote: Zygote, folder: Path) -> None:
        self.result = Switched(seed)
        self._chance = random.Random(seed)
        self._changes, self._zygote, self._folder = changes, zygote, folder
        self._checkpoints, self._log = folder / "checkpoints", folder / "rounds.jsonl"
        self._record = folder / "record.jsonl"

    def run(self) -> Switched:
        began_s = time.monotonic()
        model = write_model(self._folder, "switched", optimizer="momentum", table=True)
        with cluster(
            self._zygote, self._folder, **self._started_as(), ps=2, min_workers=1, train_steps=1 << 40, save_steps=40,
            keep=1_000_000, checkpoint_dir=self._checkpoints, rounds_log=self._log, lease_s=2, ps_timeout_s=120,
            link_timeout_s=3,
        ) as job, ThreadPoolExecutor(1) as asking:  # fmt: skip
            self._faults = Faults(job)
            for index in range(WORKERS):
                start(job, index, model, f"--record={self._record}", f"--slowdown={1 + 4 * (index == 1)}")
            job.wait_for_step(STEPS)
            self._play(job, asking)
            poll_until(lambda: _all_are_there(job), REPLY_S, "who was started again, before the job is over")
            saved = self._await(asking.submit(_ask, job, "save"))
            _await_steps(job)
            assert self._await(asking.submit(_ask, job, "drain")).outcome is Outcome.DONE
            job.wait_all()
            self._check_end(job)
        self._check_bounds()
        keep_from(self._checkpoints, saved.global_step)
        flags = [f"--model={model}", f"--checkpoint-dir={self._checkpoints}"]
        outcome = replayed(self._zygote, self._folder, self._log, SIZES, *flags)
        self.result.largest = max(outcome["differences"].values())
        assert self.result.largest < TOLERANCE, outcome
        self.result.seconds = round(time.monotonic() - began_s, 1)
        return self.result

    def _started_as(self) -> dict[str, Any]:
        mode, *bound = self._chance.choice(MODES).split()
        return {"mode": mode, **({"bound": int(bound[0])} if bound else {})}

    def _play(self, job: Cluster, asking: ThreadPoolExecutor) -> None:
        """Until the job is in mode sync."""
        for wanted in [*self._chance.choices(MODES, k=self._changes), "sync"]:
            self._change(job, asking, wanted)
        while _mode_in_force(job) != "sync":  # the last change was given up
            self._await(asking.submit(_ask, job, "mode sync"))

    def _change(self, job: Cluster, asking: ThreadPoolExecutor, wanted: str) -> None:
        before, victim = _mode_in_force(job), self._chance.choice(VICTIMS)
        after_s = self._chance.uniform(0, LATE_S)
        self.result.told.append(f"from {before} to {wanted}, {victim} is killed after {after_s:.2f} s")
        reply = asking.submit(_ask, job, f"mode {wanted}")
        time.sleep(after_s)
        self._kill(job, victim)
        said = self._await(reply)
        self.result.outcomes[str(said.outcome)] += 1
        self.result.told[-1] += f": {said.outcome}, {said.text}"
        _await_steps(job)
        now = _mode_in_force(job)
        assert now in (before, wanted), self.result.told
        assert now == wanted or said.outcome is Outcome.GIVEN_UP, self.result.told

    def _kill(self, job: Cluster, victim: str) -> None:
        chief = next((m.index for m in _status(job).members if m.chief), 0)
        role, index = ("ps", int(victim[-1])) if victim.startswith("ps") else ("worker", chief)
        if victim == "worker":
            index = self._chance.choice([other for other in range(WORKERS) if other != chief])
        proc = job.latest(role, index)
        self._faults.kill(proc)
        self._faults.restart(proc)

    def _await(self, reply: Future[Reply]) -> Reply:
        said = reply.result(REPLY_S + 30)
        assert said.outcome is not Outcome.PENDING, (said, self.result.told)
        return said

    def _check_bounds(self) -> None:
        """(2 bound + 1) updates of each other worker, one that was just lost among them; docs/modes.md says why."""
        for each in read_records(str(self._record)):
            assert each.outcome != "stale", each
            if each.mode == "bounded" and each.staleness is not None:
                assert each.bound is not None and each.staleness <= (2 * each.bound + 1) * WORKERS, each
                self.result.bounded += 1

    def _check_end(self, job: Cluster) -> None:
        strange = end_codes(job.procs)
        assert not strange, strange
        for index in range(2):
            assert "balanced=True" in job.latest("ps", index).wait_for(" ledger ")
        for proc in job.procs:
            assert "Traceback" not in proc.text and " defect " not in proc.text, proc.text
            self.result.rollbacks += proc.text.count(" restored ")


class Stages(Switches):
    """A schedule, with a loss within half a second of the end of each stage."""

    def _started_as(self) -> dict[str, Any]:
        return {"schedule": str(SCHEDULE)}

    def _play(self, job: Cluster, asking: ThreadPoolExecutor) -> None:
        for begin, end in pairwise((0, *SCHEDULE.ends)):
            is_local = SCHEDULE.at(begin).is_local
            victim, after_s = self._chance.choice(VICTIMS), self._chance.uniform(0, LOCAL_S if is_local else LATE_S)
            poll_until(partial(_has_reached, job, begin if is_local else end - EARLY), REPLY_S, f"the end at {end}")
            time.sleep(after_s)
            self.result.told.append(f"{victim} is killed at global step {_status(job).global_step}")
            self._kill(job, victim)
            _await_steps(job)
            poll_until(lambda: _is_as_scheduled(_status(job)), REPLY_S, "the mode of the schedule")
        poll_until(lambda: _mode_in_force(job) == "sync", REPLY_S, "the last stage")
        assert _status(job).steering.settings.automatic
        _await_steps(job)


def _all_are_there(job: Cluster) -> bool:
    return sum(member.worker_stats is not None for member in _status(job).members) == WORKERS


def _has_reached(job: Cluster, global_step: int) -> bool:
    return _status(job).global_step >= global_step


def _is_as_scheduled(status: JobStatus) -> bool:
    settings = status.steering.settings
    stage = SCHEDULE.at(status.global_step)
    return (settings.mode, settings.bound) == (stage.mode, stage.bound)


def _ask(job: Cluster, words: str) -> Reply:
    """What becomes of a command; who asks waits for a coordinator that comes back."""
    with closing(CoordinatorClient(job.coordinator)) as client:
        try:
            return ask(client, command_of(words.split()), REPLY_S)
        except PsRuntimeError as error:
            return Reply(Outcome.GIVEN_UP, 0, str(error))  # a coordinator that was lost before it answered once


def _status(job: Cluster) -> JobStatus:
    """As soon as there is one: ps 0 may be away."""

    def status() -> JobStatus | None:
        with suppress(PsRuntimeError):
            return job.status()
        return None

    found = poll_until(status, REPLY_S, "a status")
    assert found
    return found


def _await_steps(job: Cluster) -> None:
    poll_until(lambda: _status(job).phase is Phase.TRAINING, REPLY_S, "training")
    step = _status(job).global_step + STEPS
    poll_until(lambda: _status(job).global_step >= step, REPLY_S, f"global step {step}")


def _mode_in_force(job: Cluster) -> str:
    settings = _status(job).steering.settings
    return settings.mode if settings.bound is None else f"{settings.mode} {settings.bound}"
