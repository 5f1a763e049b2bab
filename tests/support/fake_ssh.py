"""launch/ssh.sh with programs that only look like ssh and psruntime."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Commands
from tests.support.polling import poll_until
from tests.support.sshd import SCRIPT

FAKES = {
    "psruntime": f"""#!{sys.executable}
# Writes down how it was called and which secrets it has, and does the first of what is left to do for its task.
import json, os, signal, stat, sys
from pathlib import Path

folder, words = Path(__file__).parent, sys.argv[1:]
name = "-".join(words[words.index(flag) + 1] for flag in ("--role", "--index"))
with (folder / "calls").open("a") as calls:
    given = {{key: text for key, text in os.environ.items() if key.startswith("PSRUNTIME_T") and "TEST" not in key}}
    files = {{key: (path, stat.S_IMODE(os.stat(path).st_mode), Path(path).read_text()) for key, path in given.items()}}
    calls.write(json.dumps([name, os.getpid(), os.getcwd(), words, files]) + "\\n")
plan = folder / name
doing, *later = plan.read_text().split() if plan.exists() else ["0"]
plan.write_text(" ".join(later or ["0"]))
print("began", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while doing == "hangs":
    signal.pause()
if doing.startswith("waits"):  # for the end of its lifeline
    assert not os.read(0, 1024)
    print("asked to stop", file=sys.stderr)
    doing = doing.removeprefix("waits")
if int(doing) < 0:
    os.kill(os.getpid(), -int(doing))
os._exit(int(doing))
""",
    "ssh": """#!/bin/bash
# Runs the command here, as a server of that machine would: by the shell of the user, in a session of its own.
while [ "${1#-}" != "$1" ]; do shift 2; done
echo "$1" >> "${0%/*}/hosts"
case $1 in *down*) echo "ssh: connect to host $1 port 22: Connection refused"; exit 255 ;; esac
shift
exec setsid sh -c "$*"
""",
}


class Call(NamedTuple):
    """A start of psruntime."""

    task: str
    pid: int
    folder: str
    words: list[str]
    secrets: dict[str, tuple[str, int, str]]  # name of a variable -> path, mode and contents of its file


class Launcher:
    """The script with programs that only look like ssh and psruntime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = Commands(folder)
        programs = folder / "programs"
        programs.mkdir()
        self.commands.environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.programs = programs
        for name, text in FAKES.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

    def plan(self, **doings: str) -> None:
        """What each task does, one word for each time that it is started; without a plan it ends with 0.

        N: it ends with N, or by signal -N.  waitsN: when its lifeline has ended.  hangs: by SIGKILL only.
        """
        for name, text in doings.items():
            (self.programs / name.replace("_", "-")).write_text(text)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.commands.start(SCRIPT, *words)

    def run(self, *words: str) -> tuple[int, str, str]:
        code, out, err = self.commands.run(SCRIPT, *words)
        self.await_end()
        return code, out, err

    def await_end(self) -> None:
        poll_until(lambda: not self.commands.running(), 30, "the end of all processes")

    def calls(self) -> list[Call]:
        """Each start of psruntime."""
        path = self.programs / "calls"
        return [Call(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def await_calls(self, count: int) -> None:
        poll_until(lambda: len(self.calls()) >= count, 30, f"{count} starts of psruntime")

    def kill_all(self) -> None:
        """What is left after a failure."""
        for pid in self.commands.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hosts(self) -> list[str]:
        return sorted((self.programs / "hosts").read_text().split())
