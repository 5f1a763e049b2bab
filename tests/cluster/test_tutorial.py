"""docs/tutorial.md, block by block in one folder, as a reader follows it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.support import docs
from tests.support.commands import Commands
from tests.support.docs import ROOT, Block
from tests.support.polling import poll_until

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

TUTORIAL = ROOT / "docs/tutorial.md"
SAVE_STEPS, STEPS_AFTER_RESUME = 100, 300  # fewer than a reader trains
SAID = "said-by-the-job.txt"
PROGRAMS = {"psruntime": [sys.executable, "-m", "psruntime"], "python": [sys.executable]}


def words_of(line: str) -> list[str]:
    """What every run says again: neither numbers, nor names with numbers, nor units."""
    return [word for word in line.split() if not re.search(r"\d|^-$|^[kMG]?B(/\w+)?$", word)]


class Reader:
    """Types the commands of the page, and compares what they print with what the page shows."""

    def __init__(self, commands: Commands) -> None:
        self._folder = commands.folder
        self._environment = {**commands.environment, "COLUMNS": "120"}  # the status is not wrapped
        self._job: subprocess.Popen[bytes] | None = None  # `psruntime run`
        self._resumed = False
        self._address = ""  # of its coordinator
        self._last: list[str] = []  # the command before, and what it printed
        self._printed = ""
        self.followed: set[str] = set()  # kinds of blocks

    def follow(self, block: Block) -> None:
        kind, _, of = (block.check or block.kind).partition(" of ")
        self.followed.add(kind)
        if kind == "output":
            self._compare(block, of)
        elif kind == "diff":
            changed = self._folder / of
            changed.write_text(docs.moved(changed.read_text(), block.text))
        elif kind == "script":
            (self._folder / block.file).write_text(block.text)
        elif kind == "sh":
            for words in block.commands:
                self._type(words)
        else:
            assert kind == "install", f"nobody follows {block}"

    def _type(self, words: list[str]) -> None:
        command = [*PROGRAMS.get(words[0], words[:1]), *words[1:]]
        self._last = words
        if words[:2] == ["psruntime", "run"]:
            self._start(command)
            return
        if self._resumed:
            self._end(0)
        if words[:2] == ["psruntime", "status"]:
            command[-1] = self._address
        ran = subprocess.run(command, cwd=self._folder, env=self._environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{shlex.join(words)}: {ran.stderr}"
        self._printed = ran.stdout

    def _start(self, command: list[str]) -> None:
        """The second job goes on from the first one's checkpoint, to its own end."""
        command[command.index("--save-steps") + 1] = str(SAVE_STEPS)
        if self._job:
            self._resumed = True
            command[command.index("--train-steps") + 1] = str(self._saved_step() + STEPS_AFTER_RESUME)
        with (self._folder / SAID).open("w") as said:
            self._job = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        pattern = re.compile(r"^coordinator: (\S+)$", re.MULTILINE)
        found = poll_until(lambda: pattern.search(self._job_said()), 60, "the address of the coordinator")
        assert found
        self._address = found[1]

    def _end(self, code: int) -> None:
        assert self._job and self._job.wait(120) == code, self._job_said()

    def _interrupt(self) -> None:
        poll_until(lambda: self._saved_step() > 0, 60, "a checkpoint")
        assert self._job
        self._job.send_signal(signal.SIGINT)
        self._end(128 + signal.SIGINT)

    def _job_said(self) -> str:
        return (self._folder / SAID).read_text()

    def _saved_step(self) -> int:
        listed = self._folder / "run1/checkpoint"
        found = re.match(r'model_checkpoint_path: ".*-(\d+)"', listed.read_text()) if listed.exists() else None
        return int(found[1]) if found else 0

    def _compare(self, block: Block, of: str) -> None:
        """Every line of the page is in what was printed, in any order.  A job and its status may still say it."""
        if of == "Ctrl-C":
            self._interrupt()
        elif of == "the end":
            self._end(0)
        shown = [words_of(line) for line in block.text.splitlines() if line != "..."]

        def missing() -> list[list[str]]:
            there = [words_of(line) for line in (self._job_said() if of else self._printed).splitlines()]
            return [words for words in shown if words not in there]

        def all_there() -> bool:
            if missing() and self._last[1] == "status":
                self._type(self._last)
            return not missing()

        within_s = 60 if of == "the job" or self._last[1] == "status" else 0
        poll_until(all_there, within_s, f"what {block} shows; {self._last} has printed {self._printed}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tutorial_can_be_followed(commands: Commands) -> None:
    reader = Reader(commands)
    for block in docs.blocks(TUTORIAL):
        reader.follow(block)
    assert reader.followed == {"install", "sh", "output", "diff", "script"}
    assert not commands.running()
