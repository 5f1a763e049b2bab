"""The real commands, as a user types them, and every process that came of them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.support.cluster import ROOT
from tests.support.marks import running_with

LOCAL = str(ROOT / "launch" / "local.sh")
MARK = "PSRUNTIME_TEST_MARK"


class Commands:
    """Starts commands and knows every process that came of them, by a variable in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        path = [str(ROOT), str(folder)]
        self.environment = {
            **os.environ,
            MARK: self._mark,
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path),
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *command: str) -> tuple[int, str, str]:
        process = self.start(*command)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def running(self) -> list[int]:
        return running_with(MARK, self._mark)

    def pid_of(self, *words: str) -> int | None:
        """The one that was started with a command line which ends with these words; None while there is none."""
        wanted = b"".join(word.encode() + b"\0" for word in words)
        for pid in self.running():
            try:
                if wanted in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return None


def coordinator_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    for line in process.stdout:
        if line.startswith("coordinator: "):
            return line.split()[1]
    raise AssertionError("no coordinator was announced")
