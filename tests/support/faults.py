"""Faults from outside, counted: a test whose fault did not happen fails."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from tests.support.cluster import Cluster, Proc
from tests.support.polling import poll_until

SEEN_S = 30.0  # for the system to carry out a signal, on a busy machine


class Faults:
    """Strikes the processes of a cluster.  Each method returns when the fault is a fact.

    counts: kind -> how often.  done: in order, (kind, name of the process).
    """

    def __init__(self, job: Cluster) -> None:
        self.counts: Counter[str] = Counter()
        self.done: list[tuple[str, str]] = []
        self._job = job

    def kill(self, proc: Proc) -> None:
        """SIGKILL; the process is gone."""
        assert proc.code is None, f"{proc.name} has ended with {proc.code} before it could be killed"
        proc.kill()
        self._count("kill", proc)

    def restart(self, proc: Proc) -> Proc:
        """The same command again; a ps 0 comes back at its address."""
        assert proc.code is not None
        successor = self._job.start_again(proc)
        self._count("restart", successor)
        return successor

    def stop(self, proc: Proc) -> None:
        """SIGSTOP; every thread of the process stands still."""
        proc.signal(signal.SIGSTOP)
        poll_until(lambda: set(thread_states(proc.pid)) == {"T"}, SEEN_S, f"{proc.name} to stand still")
        self._count("stop", proc)

    def cont(self, proc: Proc) -> None:
        """SIGCONT; the process goes on."""
        proc.signal(signal.SIGCONT)
        poll_until(lambda: "T" not in thread_states(proc.pid), SEEN_S, f"{proc.name} to go on")
        self._count("cont", proc)

    def _count(self, kind: str, proc: Proc) -> None:
        self.counts[kind] += 1
        self.done.append((kind, proc.name))


def thread_states(pid: int) -> list[str]:
    """One letter for each thread, as proc(5) has them: R runs, S sleeps, T is stopped, Z has ended."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.append(stat.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread ended while we looked
            continue
    return found


def memory_bytes(pid: int) -> int:
    """Resident set of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")
