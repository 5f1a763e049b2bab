"""A systemd that boots in namespaces of its own, for tests of units: it sees this machine's files, and changes none."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from contextlib import ExitStack
from pathlib import Path

from tests.support.polling import poll_until

SYSTEMD = "/lib/systemd/systemd"
# Lays a layer of memory over all files, of which $1 is the mount point, and becomes systemd.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir above work root
mount -t overlay -o "lowerdir=/,upperdir=$1/above,workdir=$1/work" overlay root
cd root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs $folder; done
for name in null zero full random urandom tty; do touch dev/$name && mount --bind /dev/$name dev/$name; done
mkdir -p dev/shm dev/pts old
ln -s pts/ptmx dev/ptmx
chmod 1777 tmp dev/shm
ip link set lo up
pivot_root . old
umount -l old
mount --make-rshared /
exec env -i container=test PATH="$PATH" /lib/systemd/systemd --unit=basic.target
"""


def refusal() -> str:
    """Why none can boot here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    missing = [tool for tool in (SYSTEMD, "unshare", "nsenter", "ip", "useradd") if not shutil.which(tool)]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install systemd util-linux iproute2 passwd"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "needs overlay, a file system"
    return "" if _cgroups() else "needs a hierarchy of cgroups version 2"


def _cgroups() -> Path | None:
    """Where cgroups of version 2 are mounted so that they can be made."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None


class Booted:
    """at_exit: ends it, and everything that it started."""

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        cgroups = _cgroups()
        assert cgroups
        self._cgroup = cgroups / f"psruntime-{uuid.uuid4().hex[:8]}"
        self._cgroup.mkdir()
        at_exit.callback(self._end)
        place = folder / "booted"
        place.mkdir()
        kinds = ("mount", "pid", "ipc", "uts", "net", "cgroup")
        command = ["unshare", "--fork", *(f"--{kind}" for kind in kinds), "bash", "-c", BOOT, "bash", str(place)]
        enter = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
        self._log = folder / "booted.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", enter, "bash", str(self._cgroup), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        poll_until(self._is_running, 60, "a systemd that has booted")

    @property
    def pid(self) -> int:
        """Of its systemd; 0 before it is there."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def run(self, *command: str, text: str = "") -> tuple[int, str]:
        """Code and output of a command in there."""
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", *command],
            input=text, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def must(self, *command: str, text: str = "") -> str:
        """Its output; it has to end with 0."""
        code, out = self.run(*command, text=text)
        assert code == 0, f"{' '.join(command)}: {out}"
        return out

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """A file in there, with its folder."""
        self.must("install", "-D", "-m", mode, "/dev/stdin", path, text=text)

    def _is_running(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return bool(self.pid) and "running" in self.run("systemctl", "is-system-running")[1]

    def _end(self) -> None:
        (self._cgroup / "cgroup.kill").write_text("1")
        self._process.wait(30)
        poll_until(self._is_gone, 30, "the end of its processes")

    def _is_gone(self) -> bool:
        # A group counts the processes of those below it: once this one has none, no group has.
        if "populated 1" in (self._cgroup / "cgroup.events").read_text():
            return False
        for folder in sorted((path for path in self._cgroup.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        self._cgroup.rmdir()
        return True
