"""A job whose every state is looked at: what it knows at a moment at which it is paused (`Seen`)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Overrides
from psruntime.errors import UnreachableError
from tests.support.cluster import Cluster, Zygote
from tests.support.polling import poll_until
from tests.support.snapshot import Snapshot, take_snapshot

WAIT_S = 240.0
SHARDS = "shards"  # folder of the diaries; that it has this name says that the input is read by data shards
NEVER = 1_000_000
WORKERS = 2
BATCH = 8
STEPS = 3  # of every worker, at least, between two looks
COMMON: dict[str, Any] = {
    "ps": 2, "min_workers": WORKERS, "train_steps": NEVER, "save_steps": NEVER, "keep_best": "min:clock",
    "wire": "bfloat16", "wire_error_feedback": "on", "lease_s": 15,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "scheduled": {"schedule": "sync:10, async:10, sync"},
    "sharded": {"mode": "async"},
    "replicated in sync": {"mode": "sync", "replicate_every": 6},
    "replicated in async": {"mode": "async", "replicate_every": 40},
    "sharded, replicated in sync": {"mode": "sync", "replicate_every": 6},
    "sharded, replicated in async": {"mode": "async", "replicate_every": 40},
}


@dataclass(frozen=True)
class Diary:
    """What a worker's process wrote: numbers of the first examples of its batches, in order."""

    pid: int
    seed: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """held: all variables.  best: what best.json says, or None.  shards: (epoch, done), or None."""

    held: Snapshot
    chief: int
    settings: Overrides
    best: dict[str, Any] | None
    diaries: dict[int, Diary]
    shards: tuple[int, int] | None


class Trial:
    """A job of a kind, paused from its beginning on.  ask: gives `psruntime control` for a cluster."""

    def __init__(self, job: Cluster, zygote: Zygote, ask: Callable[..., Any], checkpoints: Path, sharded: bool) -> None:
        self.job, self.checkpoints = job, checkpoints
        self._zygote, self._ask = zygote, ask
        self.diaries = job.folder / (SHARDS if sharded else "diaries")
        self.diaries.mkdir(exist_ok=True)
        assert ask("pause", timeout_s=1)[0] == 1  # it is wanted, and takes effect before anybody steps
        for index in range(WORKERS):
            self.start_worker(index)
        self.control("pause")

    def start_worker(self, index: int) -> None:
        self.job.start_worker(
            index, "--model=tests.cluster.state_models", f"--data-dir={self.diaries}", f"--batch-size={BATCH}"
        )

    def control(self, *words: object) -> str:
        code, out, err = self._ask(*words, timeout_s=WAIT_S)
        assert code == 0, (words, out, err)
        return str(out)

    def move(self) -> None:
        """Every worker takes some steps, and where there are data shards some are done."""
        before, shards = self._diaries(), self._shards()
        self.control("resume")
        wanted = {index: len(diary.numbers) + STEPS for index, diary in before.items()}
        poll_until(
            lambda: all(len(self._diary(index).numbers) >= count for index, count in wanted.items()), WAIT_S, "steps"
        )
        poll_until(lambda: shards is None or self._shards() > shards, WAIT_S, "a shard to be done")
        self.control("pause")

    def status(self) -> JobStatus:
        """Asked again where a busy machine has missed a call."""
        found: list[JobStatus] = []

        def is_answered() -> bool:
            with suppress(UnreachableError):
                found[:] = [self.job.status()]
            return bool(found)

        poll_until(is_answered, WAIT_S, "the status")
        return found[0]

    def replace(self, role: str, index: int) -> None:
        """Kills a process and starts it again; returns when the coordinator knows the new one."""
        before = self._incarnations()
        lost = self.job.latest(role, index)
        lost.kill()
        again = self.job.start_again(lost)
        again.wait_for("READY ", WAIT_S)
        poll_until(lambda: self._incarnations().get((role, index), "") not in ("", before[role, index]), WAIT_S, "it")

    def _incarnations(self) -> dict[tuple[str, int], str]:
        return {(str(m.role), m.index): m.incarnation for m in self.status().members}

    def save(self) -> None:
        """A checkpoint is written, and measured if it is no delta."""
        step = self.control("save").rpartition(" ")[2].strip()
        if not self.job.settings.delta_every:
            self.await_measured(step)

    def await_measured(self, step: str) -> None:
        def is_measured() -> bool:
            return any(f" measured global_step={step} " in proc.text for proc in self.job.procs)

        poll_until(is_measured, WAIT_S, f"the checkpoint of step {step} to be measured")

    def look(self) -> Seen:
        """While the job is paused, and every worker of it is there."""
        poll_until(lambda: self.status().phase is Phase.TRAINING, WAIT_S, "the variables of a view")
        poll_until(
            lambda: sum(m.worker_stats is not None for m in self.status().members) == WORKERS, WAIT_S, "all workers"
        )
        held: list[Snapshot] = []

        def is_in() -> bool:
            """Whether every worker has a session, in which it has taken the copies on the ps if it has to."""
            graphs = {index: self._graphs(index) for index in range(WORKERS)}
            if not all(graphs.values()):
                return False
            held[:] = [take_snapshot(self.job, self._zygote, graphs)]
            stamp = held[0].ps.get("psruntime/home_stamp")
            return all(each.get("psruntime/stamp_taken") == stamp for each in held[0].workers.values())

        poll_until(is_in, WAIT_S, "a session of every worker")
        status = self.status()
        chief = next(m.index for m in status.members if m.chief)
        return Seen(held[0], chief, status.steering.settings, self._best(), self._diaries(), self._shards())

    def position(self) -> tuple[int, int] | None:
        """Of the data shards, that the variables began with."""
        found = re.search(r" position .*epoch=(\d+) done=(\d+) ", self.job.latest("ps", 0).text)
        return (int(found[1]), int(found[2])) if found else None

    def kill_all(self) -> None:
        for proc in self.job.procs:
            if proc.code is None:
                proc.kill()

    def _best(self) -> dict[str, Any] | None:
        file = self.checkpoints / "best" / "best.json"
        return json.loads(file.read_text()) if file.exists() else None

    def _shards(self) -> tuple[int, int] | None:
        shards = self.status().shards
        return (shards.epoch, shards.done) if shards else None

    def _diaries(self) -> dict[int, Diary]:
        return {index: self._diary(index) for index in range(WORKERS)}

    def _diary(self, index: int) -> Diary:
        pid = self.job.latest("worker", index).pid
        file = self.diaries / f"{index}-{pid}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        seeds = [line["seed"] for line in lines if "seed" in line]
        return Diary(pid, seeds[0] if seeds else -1, tuple(line["number"] for line in lines if "number" in line))

    def _graphs(self, index: int) -> list[Path]:
        return sorted(self.diaries.glob(f"{index}-{self.job.latest('worker', index).pid}-*.json"))


def copy_of(folder: Path, name: str) -> Path:
    """A folder of checkpoints as it is now, beside it, without the mark of its job."""
    copy = folder.parent / name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".owner", ".unfinished*", "events.*"))
    return copy
