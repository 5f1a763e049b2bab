"""A kill by the kernel for memory is known where a cgroup counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.launch.memory_kills import MemoryKills

VERSIONS = {
    "version 2": ("0::/a/job", "a/job/memory.events"),
    "version 1": ("9:name=systemd:/\n4:cpu,memory:/a/job\n0::/", "memory/a/job/memory.oom_control"),
    "a container with its own, version 2": ("0::/of/the/host", "memory.events"),
    "a container with its own, version 1": ("4:memory:/of/the/host", "memory/memory.oom_control"),
}
PID = 77


def machine(path: Path, version: str) -> tuple[MemoryKills, Path]:
    cgroup, name = VERSIONS[version]
    (path / "proc" / str(PID)).mkdir(parents=True)
    (path / "proc" / str(PID) / "cgroup").write_text(f"{cgroup}\n")
    counts = path / "cgroups" / name
    counts.parent.mkdir(parents=True)
    counts.write_text("low 0\noom 4\noom_kill 2\noom_group_kill 0\n")
    return MemoryKills(path / "proc", path / "cgroups"), counts


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kill_is_that_of_one_process(version: str, tmp_path: Path) -> None:
    kills, counts = machine(tmp_path, version)
    files = [tmp_path / "gone", *filter(None, [kills.file_of(PID)])]
    assert files[1:] == [counts] and kills.take(files, -9) is None, "those before are none of its own"
    counts.write_text("oom 5\noom_kill 3\n")
    assert kills.file_of(PID) == counts
    assert kills.take(files, -11) is None and kills.take(files, 1) is None, "it ended otherwise"
    assert kills.take(files, 137) == counts
    assert kills.take(files, -9) is None, "of another, which a signal has killed"


def test_a_machine_without_counts_knows_nothing(tmp_path: Path) -> None:
    kills = MemoryKills(tmp_path / "proc", tmp_path / "cgroups")
    assert kills.file_of(PID) is None and kills.take([], -9) is None
    kills, counts = machine(tmp_path, "version 2")
    counts.write_text("no counts\n")
    assert kills.file_of(PID) is None
