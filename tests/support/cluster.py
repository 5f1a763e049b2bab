"""Clusters of real processes on ports that the system chose.  No process outlives its cluster."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import fetch_job
from tests.support.marks import running_with
from tests.support.polling import poll_until
from tests.support.worlds import World

ROOT = Path(__file__).parents[2]
START_S = 60.0
CONNECT_S = 20.0
END_S = 60.0
MARK = "PSRUNTIME_TEST_ZYGOTE"


@dataclass
class Proc:
    """A process that the zygote forked.  number: of this process among all of the zygote's; a pid may come again."""

    name: str
    number: int
    pid: int
    log: Path
    zygote: Zygote
    argv: list[str]

    @property
    def code(self) -> int | None:
        return self.zygote.codes.get(self.number)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, signum: int) -> None:
        assert self.code is None, f"{self.name} has ended with {self.code}"
        os.kill(self.pid, signum)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self, timeout_s: float = END_S) -> int:
        """Its exit code; negative for a signal that killed it."""
        poll_until(lambda: self.code is not None, timeout_s, f"end of {self.name}")
        assert self.code is not None
        return self.code

    def wait_for(self, text: str, timeout_s: float = START_S) -> str:
        """The first line of its output that has `text`; fails if the process ends without one."""

        def line() -> str | None:
            ended = self.code
            found = next((line for line in self.text.splitlines() if text in line), None)
            assert found or ended is None, f"{self.name} ended with {ended} before it said '{text}':\n{self.text}"
            return found

        found = poll_until(line, timeout_s, f"'{text}' of {self.name}")
        assert found
        return found


def codes_at_end(procs: Sequence[Proc], timeout_s: float = END_S) -> list[int]:
    """Exit codes, once all have ended; one that has not within the time is killed, and the test fails."""
    try:
        return [proc.wait(timeout_s) for proc in procs]
    finally:
        for proc in procs:
            if proc.code is None:
                proc.kill()


class Zygote:
    """Starts processes by forking one that has TensorFlow imported.

    as_built: whether TensorFlow runs their graphs as they are built, unless they are started anew.
    """

    def __init__(self) -> None:
        self.as_built = False
        self.codes: dict[int, int] = {}  # of processes that have ended, by number
        self._numbers = count()
        self._starting = threading.Lock()
        self._started: queue.Queue[int] = queue.Queue()
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote"],
            cwd=ROOT, env={**os.environ, MARK: self._mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._started.get(timeout=START_S)  # it is ready

    def start(self, name: str, argv: list[str], log: Path, path: list[str], world: World | None = None) -> Proc:
        assert self._process.stdin
        with self._starting:
            number = next(self._numbers)
            order = {"number": number, "argv": argv, "log": str(log), "path": path, "as_built": self.as_built}
            order["world"] = world and world.facts()
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return Proc(name, number, self._started.get(timeout=START_S), log, self, argv)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(END_S)
        self._reader.join(END_S)

    def running(self) -> list[int]:
        """Pids of all processes that came of this one and have not ended, whoever knows of them."""
        return [pid for pid in running_with(MARK, self._mark) if pid != self._process.pid]

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            facts = json.loads(line)
            if "ended" in facts:
                self.codes[facts["ended"]] = facts["code"]
            else:
                self._started.put(facts.get("started", 0))


class Cluster:
    """One job: ps 0 with the coordinator, and whatever the test starts beside it.

    coordinator: where the others find it: `reach` of its own address, which may be that of a proxy.
    host: of ps 0.  worlds: "ROLE-INDEX" -> what its processes see of the machine.
    """

    def __init__(
        self,
        zygote: Zygote,
        folder: Path,
        reach: Callable[[str], str] = lambda address: address,
        host: str = "127.0.0.1",
        worlds: Mapping[str, World] | None = None,
        **job: Any,
    ) -> None:
        self._zygote = zygote
        self.folder = folder
        self.procs: list[Proc] = []
        self._path = [str(folder)]
        self.worlds = dict(worlds or {})
        settings = {"linger_s": 0, "lease_s": 3, **job}  # a lease of 3 s: heartbeats, and so status, every second
        self._job_flags = [f"--{name.removesuffix('_s').replace('_', '-')}={value}" for name, value in settings.items()]
        if host != "127.0.0.1":
            self._job_flags.append("--insecure")
        first = self.start("ps", 0, f"--coordinator={host}:0", *self._job_flags)
        try:
            self._address = first.wait_for("READY coordinator 0 ").split()[3]
            self.coordinator = reach(self._address)
            self.client = CoordinatorClient(self._address)
            self.settings = fetch_job(self.client, {}, CONNECT_S, threading.Event(), lambda *_, **__: None)
        except BaseException:
            self._kill_all()
            raise
        self.ps = [first, *(self.start_ps(index) for index in range(1, int(job.get("ps", 1))))]

    def start(self, role: str, index: int, *flags: str) -> Proc:
        """The second process of an index is named ROLE-INDEX.1, and so on."""
        count = len([proc for proc in self.procs if proc.name.partition(".")[0] == f"{role}-{index}"])
        name = f"{role}-{index}" + (f".{count}" if count else "")
        argv, world = [role, f"--index={index}", *flags], self.worlds.get(f"{role}-{index}")
        proc = self._zygote.start(name, argv, self.folder / f"{name}.log", self._path, world)
        self.procs.append(proc)
        return proc

    def start_again(self, proc: Proc) -> Proc:
        """The command of a ps or worker that is gone, once more; ps 0 comes back at its address."""
        role, index, *flags = proc.argv
        if (role, index) == ("ps", "--index=0"):
            flags = [f"--coordinator={self._address}", *self._job_flags]
        return self.start(role, int(index.partition("=")[2]), *flags)

    def latest(self, role: str, index: int) -> Proc:
        """The newest process of an index."""
        return [proc for proc in self.procs if proc.name.partition(".")[0] == f"{role}-{index}"][-1]

    def start_script(self, index: int, path: Path, *flags: str) -> Proc:
        """A worker that is a script of a user's; it knows the job by its coordinator alone."""
        count = sum(proc.name.startswith(f"script-{index}") for proc in self.procs)
        name = f"script-{index}" + (f".{count}" if count else "")
        argv = ["script", str(path), f"--task_index={index}", f"--ps_hosts={self.coordinator}", *flags]
        proc = self._zygote.start(name, argv, self.folder / f"{name}.log", self._path)
        self.procs.append(proc)
        return proc

    def start_ps(self, index: int, *flags: str) -> Proc:
        return self.start("ps", index, f"--coordinator={self.coordinator}", *flags)

    def start_worker(self, index: int, *flags: str) -> Proc:
        return self.start("worker", index, f"--coordinator={self.coordinator}", *flags)

    def status(self) -> JobStatus:
        return self.client.get_status()[0]

    def worker_pushes(self) -> dict[int, int]:
        """Worker index -> pushes that it has reported."""
        return {m.index: m.worker_stats.pushes for m in self.status().members if m.worker_stats}

    def wait_for_step(self, global_step: int, timeout_s: float = END_S) -> None:
        poll_until(lambda: self.status().global_step >= global_step, timeout_s, f"global step {global_step}")

    def wait_for_phase(self, phase: Phase, timeout_s: float = END_S) -> None:
        poll_until(lambda: self.status().phase is phase, timeout_s, f"phase {phase}")

    def wait_all(self, timeout_s: float = END_S) -> dict[str, int]:
        """Exit codes of all processes by name, once all are gone."""
        until_s = time.monotonic() + timeout_s
        return {proc.name: proc.wait(max(0.1, until_s - time.monotonic())) for proc in self.procs}

    def close(self) -> list[str]:
        """Kills what is left and returns the names of it."""
        left = self._kill_all()
        self.client.close()
        return left

    def _kill_all(self) -> list[str]:
        left = [proc for proc in self.procs if proc.code is None]
        for proc in left:
            proc.signal(signal.SIGKILL)
        for proc in left:
            proc.wait()
        return [proc.name for proc in left]


SLOWEST_ROUNDS_PER_S = 10  # of a replay beside other jobs


def replayed(zygote: Zygote, folder: Path, log: Path, sizes: dict[int, int], *flags: str) -> dict[str, Any]:
    """What `psruntime replay` says of a rounds log.  sizes: worker index -> its batch size."""
    each = ",".join(f"{worker}:{size}" for worker, size in sizes.items())
    argv = ["replay", str(log), f"--batch-sizes={each}", "--json", *flags]
    proc = zygote.start("replay", argv, folder / "replay.txt", [str(folder)])
    with log.open(encoding="utf-8") as rounds:
        timeout_s = 120 + sum(1 for _ in rounds) / SLOWEST_ROUNDS_PER_S
    assert proc.wait(timeout_s) == 0, proc.text
    outcome: dict[str, Any] = json.loads(proc.text.splitlines()[-1])
    return outcome


@contextmanager
def cluster(zygote: Zygote, folder: Path, **job: Any) -> Iterator[Cluster]:
    """A cluster whose processes must all have ended by themselves; prints their logs when the test fails."""
    started = None
    try:
        started = Cluster(zygote, folder, **job)
        yield started
        survivors = started.close()
        assert not survivors, f"still running at the end of the test: {survivors}"
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')}")
        raise
    finally:
        if started:
            started.close()
