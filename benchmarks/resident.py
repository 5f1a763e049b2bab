"""The memory that processes keep resident, as the kernel counts it (Linux)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

RESIDENT, PEAK = "VmRSS", "VmHWM"


class Watch:
    """Of processes, by name, from now on.  The peak is the kernel's own, which misses no moment."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._seen: dict[str, list[int]] = {name: [] for name in pids}
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what is held now

    def look(self) -> None:
        for name, pid in self._pids.items():
            self._seen[name].append(status_bytes(pid, RESIDENT))

    def seen(self) -> dict[str, dict[str, float]]:
        """Bytes: the median of all looks, of which there is at least one, and the peak."""
        return {
            name: {"median": median(self._seen[name]), "peak": status_bytes(pid, PEAK)}
            for name, pid in self._pids.items()
        }


def status_bytes(pid: int, field: str) -> int:
    """A field of the process's status that is given in kB."""
    return 1024 * status_number(pid, field)


def status_number(pid: int, field: str) -> int:
    """A field of the process's status, as it is given there."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])
