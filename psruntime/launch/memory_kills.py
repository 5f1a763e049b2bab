"""Whether the kernel has killed a process for memory, by the counts of its cgroup.

    version 2:  memory.events,       a line  oom_kill N
    version 1:  memory.oom_control,  the same

A machine without cgroups has no counts, and then nothing is known.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # exit codes, as subprocess and as a shell have them


class MemoryKills:
    """Each kill is one process's: a second one that is killed in the same cgroup needs a kill of its own.

    proc, cgroups: where these file systems are.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._known: dict[Path, int] = {}  # by file: the kills before, and those of processes that are known

    def file_of(self, pid: int) -> Path | None:
        """The file that counts for a process that runs; from the first call on its kills count."""
        for path in self._candidates(pid):
            with suppress(OSError, ValueError):
                self._known.setdefault(path, _kills(path))
                return path
        return None

    def take(self, paths: Iterable[Path], code: int) -> Path | None:
        """The file that has counted the end, with this exit code, of a process for which these count; None if none has.

        One that ends is shown in the root for a moment, so the files from before are asked as well.
        """
        for path in paths if code in KILLED else ():
            with suppress(OSError, ValueError):
                if _kills(path) > self._known[path]:
                    self._known[path] += 1
                    return path
        return None

    def _candidates(self, pid: int) -> list[Path]:
        """The last two are where a container has its own cgroup, whose name is that of the host."""
        found = []
        with suppress(OSError, ValueError):
            for line in (self._proc / str(pid) / "cgroup").read_text().splitlines():
                _, controllers, name = line.split(":", 2)
                if "memory" in controllers.split(","):
                    found.append(self._cgroups / "memory" / name.lstrip("/") / "memory.oom_control")
                elif not controllers:
                    found.append(self._cgroups / name.lstrip("/") / "memory.events")
        return [*found, self._cgroups / "memory.events", self._cgroups / "memory" / "memory.oom_control"]


def _kills(path: Path) -> int:
    """Raises ValueError if the file has no count."""
    for line in path.read_text().splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    raise ValueError(f"{path} has no oom_kill")
