"""Whole conversations with a coordinator, as text: scenarios/*.txt, which are meant to be read.

A line that is not indented is an input; the indented lines below it are the answer and the events (`*`) that it must
bring; `>` is a record of the rounds, `!` tells the calls that are held to look again.  Members are named as in
`worker 0`, meaning the latest process admitted there, or `worker 0#3` for one incarnation.  The inputs:

    job SETTING=VALUE ...                       the first line
    join MEMBER at=ADDRESS [as=ID] [of=JOB] [with=VARIABLES]     the same id, by default the address, makes it a repeat;
                                                `knows=N`: the checkpoint N, of an earlier coordinator
    beat MEMBER [steps=N] [step=N] [stopped] [parts=N] [saved=N] [asked]     a heartbeat; `step` is the global step that
                                                was read, `parts` of the end are what it has done as chief, `saved`
                                                the checkpoint; its process was `asked` to stop; it is `saving`, or
                                                prepares the view of a number (`prepares=N`); it has the graphs of
                                                both kinds of steps, or only those of `built=pushes` or
                                                `built=rounds`, and `cannot build N: WHY`, by the
                                                number that it was told, or `paused=N`; its last steps
                                                `took=80,10,10` ms, again and again
    prepared MEMBER step=N [attempt=N]          the chief's reports
    refuses MEMBER OBSTACLE
    finished MEMBER
    leave MEMBER KIND: REASON                   a farewell
    starts MEMBER                               a worker is started; `ends MEMBER KIND: REASON`: before its join
    control COMMAND                             an operator's, as typed; `control again` asks what has become of it
    turn MEMBER [DONE] [in view N]              mode sync; DONE is one of `contributed R/A batch=N examples=N [apart]`,
                                                `closed R/A step=N`, `torn R/A REASON`, of round R and attempt A
    status                                      what an operator reads
    gone MEMBER                                 its process is known to be dead
    wait N s [while MEMBER, ... beat]           time passes, with a tick each second
    pause N s                                   the coordinator does not run; then one tick

`python -m tests.core.coordinator.test_scenarios` writes what does happen into the files, to be read before it is kept.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.core.coordinator.scenario import Scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def act_out(text: str) -> str:
    """The text with what does happen in place of the indented lines."""
    lines: list[str] = []
    scenario: Scenario | None = None
    for line in text.splitlines():
        lines += [] if line.startswith("  ") else [line]
        if line.startswith("job "):
            scenario = Scenario(line.removeprefix("job "))
        elif scenario and line and not line.startswith(("#", "  ")):
            lines += [f"  {said}" for said in scenario.act(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text()
    happened = act_out(expected)
    difference = difflib.unified_diff(expected.split("\n"), happened.split("\n"), "expected", "happened", lineterm="")
    assert expected == happened, "\n".join([path.name, *difference])


def test_there_are_scenarios_and_each_expects_something() -> None:
    assert len(FILES) >= 7
    for path in FILES:
        assert any(line.startswith("  ") for line in path.read_text().splitlines()), path


@pytest.mark.parametrize("wrong", ["  ps 0#1: DONE\n", "", "  * phase was=FORMING now=DONE reason=none\n"])
def test_the_runner_sees_what_is_wrong_missing_or_made_up(wrong: str) -> None:
    text = "job ps=1\njoin ps 0 at=a:1\n" + wrong
    assert act_out(text) != text
    assert act_out(act_out(text)) == act_out(text)


if __name__ == "__main__":
    for file in FILES:
        file.write_text(act_out(file.read_text()))
