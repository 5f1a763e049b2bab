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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psruntime.core.facts import JobStatus
from psruntime.core.view import Phase
from psruntime.rpc.client import CoordinatorClient
from tests.support.polling import poll_until

ROOT = Path(__file__).parents[2]
START_S = 60.0
END_S = 60.0


@dataclass
class Proc:
    """A process that the zygote forked."""

    name: str
    pid: int
    log: Path
    zygote: Zygote

    @property
    def code(self) -> int | None:
        return self.zygote.codes.get(self.pid)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, signum: int) -> None:
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


class Zygote:
    """Starts processes by forking one that has TensorFlow imported."""

    def __init__(self, ping_timeout_s: float = 10.0) -> None:
        self.codes: dict[int, int] = {}
        self._started: queue.Queue[int] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(ping_timeout_s)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._started.get(timeout=START_S)  # it is ready

    def start(self, name: str, argv: list[str], log: Path, path: list[str]) -> Proc:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"argv": argv, "log": str(log), "path": path}) + "\n")
        self._process.stdin.flush()
        return Proc(name, self._started.get(timeout=START_S), log, self)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(END_S)
        self._reader.join(END_S)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            facts = json.loads(line)
            if "ended" in facts:
                self.codes[facts["ended"]] = facts["code"]
            else:
                self._started.put(facts.get("started", 0))


class Cluster:
    """One job: ps 0 with the coordinator, and whatever the test starts beside it."""

    def __init__(self, zygote: Zygote, folder: Path, **job: Any) -> None:
        self._zygote = zygote
        self.folder = folder
        self.procs: list[Proc] = []
        self._path = [str(folder)]
        settings = {"linger_s": 0, "lease_s": 3, **job}  # a lease of 3 s: heartbeats, and so status, every second
        flags = [f"--{name.removesuffix('_s').replace('_', '-')}={value}" for name, value in settings.items()]
        first = self.start("ps", 0, "--coordinator=127.0.0.1:0", *flags)
        self.coordinator = first.wait_for("READY coordinator 0 ").split()[3]
        self.ps = [first, *(self.start_ps(index) for index in range(1, int(job.get("ps", 1))))]
        self.client = CoordinatorClient(self.coordinator)

    def start(self, role: str, index: int, *flags: str) -> Proc:
        count = sum(proc.name.startswith(f"{role}-{index}") for proc in self.procs)
        name = f"{role}-{index}" + (f".{count}" if count else "")
        proc = self._zygote.start(name, [role, f"--index={index}", *flags], self.folder / f"{name}.log", self._path)
        self.procs.append(proc)
        return proc

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
        left = [proc for proc in self.procs if proc.code is None]
        for proc in left:
            proc.signal(signal.SIGKILL)
        for proc in left:
            proc.wait()
        self.client.close()
        return [proc.name for proc in left]


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
