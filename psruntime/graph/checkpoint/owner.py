"""Which job a folder of checkpoints belongs to: that of the mark in it, the file `.owner`.

The chief of a job writes the mark before it prepares a view, and renews it once a lease.  An evaluator owns nothing.
There are no locks, which a network file system does not keep: the mark is made by a hard link and replaced by a rename,
both of which are atomic there.

A second job never compares clocks, which differ between machines: it looks whether the mark changes.  A mark that
stays the same for two leases of its job is dead.  A job takes the folder at once where the mark

- is the process's own;
- names a ps of this view, or of an earlier one that this process has seen: another chief of the same job wrote it.
  Addresses of ps distinguish jobs also if their names and coordinators are equal, since a live ps has its port
  for itself;
- is of a chief on this machine that is gone, and nothing listens at its coordinator's address, or that is this job's.

Another mark of the same name and coordinator may be that of a chief that was replaced together with ps 0 and has no
report of it: it ends no process unless it changes for more than two leases, and no checkpoint is published meanwhile.

A job that has ended has removed its mark.  On a full disk a mark is renewed by its time alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from psruntime.core.members.messages import Instructions
from psruntime.core.recovery.recovery import obstacle
from psruntime.errors import CheckpointError, FolderOwnedError, PsRuntimeError
from psruntime.graph.checkpoint.listing import newest_step

MARK = ".owner"
DEAD_LEASES = 2
LOOK_S = 0.2  # how often a mark that may be dead is looked at
CONNECT_S = 1.0
LOOPBACK = ("127.", "localhost:", "[::1]:")

Seen = tuple[str, int]  # text and time of a mark; a change of either shows a live job


class FolderOwner:
    """The mark of this process in `folder`.

    coordinator: address.  lost: why the folder is another job's now; empty while it is not.
    """

    def __init__(
        self,
        folder: str,
        job_id: str,
        coordinator: str,
        lease_s: float,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self._folder, self._path = folder, os.path.join(folder, MARK)
        self._job_id, self._coordinator, self._lease_s, self._log = job_id, coordinator, lease_s, log
        self._writer = secrets.token_hex(8)
        self._count = 0
        self._ps: list[str] = []
        self._seen_ps: set[str] = set()  # of all views
        self._owns = self._fails = False
        self._instructions: Callable[[], Instructions] | None = None
        self._first: tuple[Seen, float] | None = None  # a mark of another job, and since when it is unchanged
        self._watched_s: float | None = None  # since when there is such a mark
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.lost = ""

    def claim(self, ps: Collection[str], look: Callable[[], None] = lambda: None, begins: bool = True) -> None:
        """Marks the folder as this job's, at once or after the mark of a dead job was watched for two leases.

        ps: addresses of the view.  look: called while the mark is watched; may raise.  begins: whether nothing has been
        trained yet; a job that has trained continues where its folder cannot be marked.

        Raises:
            FolderOwnedError: it is a live job's.
            CheckpointError: nothing has been trained yet, and the mark cannot be read or written.
        """
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._claim(ps, look)
        except OSError as error:
            if begins:
                raise CheckpointError(
                    f"checkpoint folder {self._folder} cannot be marked as this job's: {error.strerror}; "
                    "give another checkpoint_dir"
                ) from error

    def _claim(self, ps: Collection[str], look: Callable[[], None]) -> None:
        is_logged = False
        while not self._tend(ps):
            self.require()
            if self._first and not is_logged:
                is_logged = True
                self._log("waiting", reason=f"whether job {_facts(self._first[0]).get('job_id')} in its folder is live")
            look()
            time.sleep(LOOK_S)
        self.require()

    def keep(self, instructions: Callable[[], Instructions]) -> None:
        """Renews the mark once a lease, in a thread, while this process is the chief of variables that may be used, or
        that it prepares.  A folder without the newest checkpoint of the job gets no mark."""
        self._instructions = instructions

        def renew() -> None:
            while not self._ended.wait(self._lease_s):
                with suppress(Exception):
                    now = instructions()
                    ps = _ps_of(now)
                    self.add_ps(ps)
                    if now.chief and ps and not now.phase.over and (self._owns or self._may_mark(now)):
                        self._renew(ps)
                        continue
                self._owns = False

        threading.Thread(target=renew, name="owner", daemon=True).start()

    def _may_mark(self, now: Instructions) -> bool:
        return now.phase.prepared and not obstacle(newest_step(self._folder), now.saved_step, self._folder)

    def stop(self) -> None:
        """Stops renewing the mark: this process has left the job, which may continue."""
        self._ended.set()

    def add_ps(self, ps: Collection[str]) -> None:
        """Notes that a view of the job has these ps, by their addresses."""
        self._seen_ps.update(ps)

    def require(self) -> None:
        """Raises FolderOwnedError if the folder has become another job's."""
        if self.lost:
            raise FolderOwnedError(self.lost)

    def require_now(self) -> None:
        """The same, after a look at the mark.  A mark that cannot be read is no reason.

        A chief that has just replaced another one sees by the ps of its view that the mark is its own job's.

        Raises:
            CheckpointError: another chief of this job, as it seems, has marked it.
        """
        is_ours = True
        with suppress(OSError, PsRuntimeError):
            is_ours = self._tend(_ps_of(self._instructions()) if self._instructions else self._ps, renews=False)
        self.require()
        if not is_ours:
            raise CheckpointError(f"another chief has marked {self._folder} since")

    def release(self) -> None:
        """The job is over: removes its mark, also one that another of its workers wrote."""
        self.stop()
        with self._lock, suppress(OSError):
            seen = self._read()
            if seen and self._is_ours(_facts(seen)):
                os.remove(self._path)

    def _renew(self, ps: Collection[str]) -> None:
        try:
            self._tend(ps)
            self._fails = False
        except OSError as error:
            with suppress(OSError):
                if self._owns:
                    os.utime(self._path)
                    return
            if not self._fails:
                self._log("folder_unmarked", path=self._path, reason=error.strerror)
            self._fails = True

    def _tend(self, ps: Collection[str], renews: bool = True) -> bool:
        """Looks at the mark, and writes it if it is or becomes this job's; returns whether it is."""
        with self._lock:
            self._ps = sorted(ps)
            self.add_ps(ps)
            if self._ended.is_set():
                return True  # the mark was removed, and another job may be there
            seen = self._read()
            facts = _facts(seen)
            if seen is None or self._is_ours(facts):
                if (renews or seen is None) and not self._write(seen):
                    return False  # another was faster, and the next look finds its mark
                self._owns, self._first, self._watched_s = True, None, None
                return True
            dead_s = DEAD_LEASES * float(facts.get("lease_s", self._lease_s))
            now_s = time.monotonic()
            self._watched_s = now_s if self._watched_s is None else self._watched_s
            if self._first is None or self._first[0] != seen:
                if (self._first or self._owns) and (self._is_other(facts) or now_s - self._watched_s > dead_s):
                    self.lost = self._said(facts)
                self._first = seen, now_s
            if _is_gone(facts, self._coordinator) or now_s - self._first[1] >= dead_s:
                return self._take_over(seen)
            return False

    def _is_ours(self, facts: dict[str, Any]) -> bool:
        """Whether this process wrote the mark, or one of the same job, with a ps that this process has seen."""
        if self._writer == facts.get("writer"):
            return True
        same_machine = facts.get("machine") == _machine()
        shared = [each for each in facts.get("ps", []) if each in self._seen_ps]
        same_ps = any(same_machine or not each.startswith(LOOPBACK) for each in shared)
        return same_ps and facts.get("job_id") == self._job_id  # elsewhere another job's ps may have the same name

    def _is_other(self, facts: dict[str, Any]) -> bool:
        """Whether another job wrote it, by its name or the address of its coordinator."""
        is_elsewhere = self._coordinator.startswith(LOOPBACK) and facts.get("machine") != _machine()
        same = (facts.get("job_id"), facts.get("coordinator")) == (self._job_id, self._coordinator)
        return is_elsewhere or not same

    def _said(self, facts: dict[str, Any]) -> str:
        return (
            f"checkpoint folder {self._folder} belongs to job {facts.get('job_id', 'unknown')} of coordinator "
            f"{facts.get('coordinator', 'unknown')}, which is running; give another checkpoint_dir"
        )

    def _read(self) -> Seen | None:
        """Opens the file each time, so that a network file system asks its server."""
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def _write(self, seen: Seen | None) -> bool:
        """Replaces a mark of this job, or writes one where there is none; returns whether it is this process's, since
        another process may be faster."""
        self._count += 1
        facts = {
            "job_id": self._job_id, "coordinator": self._coordinator, "lease_s": self._lease_s, "ps": self._ps,
            "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid()), "writer": self._writer,
            "count": self._count,
        }  # fmt: skip
        new = f"{self._path}-{self._writer}"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        if seen is not None:
            os.replace(new, self._path)
            return True
        try:
            os.link(new, self._path)
            os.remove(new)
        except FileExistsError:
            os.remove(new)
            return False
        except OSError:  # no hard links there
            os.replace(new, self._path)
        return True

    def _take_over(self, seen: Seen) -> bool:
        """Moves a dead mark aside, which only one process can, and checks that it was this mark."""
        aside = f"{self._path}-dead-{self._writer}"
        with suppress(FileNotFoundError):
            os.rename(self._path, aside)
            with open(aside, encoding="utf-8", errors="replace") as file:
                is_same = file.read() == seen[0]
            if not is_same:
                try:
                    os.link(aside, self._path)
                except FileExistsError:
                    pass
                except OSError:  # no hard links there
                    os.rename(aside, self._path)
            with suppress(FileNotFoundError):
                os.remove(aside)
        self._first = None
        return False  # the next look finds none, or that of a faster process


def _ps_of(instructions: Instructions) -> list[str]:
    return [ps.address for ps in instructions.view.ps]


def _facts(seen: Seen | None) -> dict[str, Any]:
    try:
        facts = json.loads(seen[0]) if seen else {}
        return facts if isinstance(facts, dict) else {}
    except ValueError:
        return {}


def _is_gone(facts: dict[str, Any], own_coordinator: str) -> bool:
    """Whether the job's chief and coordinator, both on this machine, are certainly gone."""
    coordinator, pid = str(facts.get("coordinator", "")), facts.get("pid")
    if facts.get("machine") != _machine() or not isinstance(pid, int) or not coordinator.startswith(LOOPBACK):
        return False
    if _started(pid) == facts.get("started"):
        return False
    if coordinator == own_coordinator:
        return True
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _machine() -> str:
    """Identifies this machine since its boot, and the namespaces of its processes and ports."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return " ".join([file.read().strip(), *(os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "net"))])
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """When a process was started, in ticks since the boot; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""
