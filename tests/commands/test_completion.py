"""psruntime completion: what the shells offer, in a real bash, and in fish and zsh where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from psruntime import cli, completion


@cache
def script(shell: str) -> str:
    found = [
        flag for command in ("run", "status", "init", "control", "completion") for flag in completion.flags_of(command)
    ]
    return completion.SHELLS[shell](found)


def offered(*words: str) -> set[str]:
    """What bash offers for the last of these words."""
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _psruntime; printf \'%s\\n\' "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script('bash')}\n{ask}", "bash", *words], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("psruntime", "ru"), {"run"}),
        (("psruntime", ""), {*cli.COMMANDS, "help", *cli.OPTIONS}),
        (("psruntime", "run", "--train"), {"--train-steps"}),
        (("psruntime", "run", "--mode", ""), {"async", "bounded", "sync"}),
        (("psruntime", "run", "--ps", "2", "--mode", "b"), {"bounded"}),
        (("psruntime", "run", "--mode", "sync", "--mod"), {"--mode", "--model"}),
        (("psruntime", "status", "--w"), {"--watch"}),
        (("psruntime", "init", "--"), {"--help", "--from", "--label"}),
        (("psruntime", "run", "--model", ""), set()),
        (("psruntime", "help", "ex"), {"export"}),
        (("psruntime", "control", "p"), {"pause"}),
        (("psruntime", "control", "host:1", "mo"), {"mode"}),
        (("psruntime", "completion", "f"), {"fish"}),
        (("psruntime", "nothing", "--"), set()),
    ],
)
def test_bash_offers_commands_flags_and_choices(words: tuple[str, ...], wanted: set[str]) -> None:
    assert offered(*words) == wanted


def test_the_flags_of_each_command_are_those_of_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        found = {flag.name: flag for flag in completion.flags_of(command)}
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help-all"] if "--help-all" in found else [command, "--help"])
        shown = capsys.readouterr().out
        assert found and all(name in shown for name in found), command
        assert "--list-flags" not in shown


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_another_shell_can_read_its_script(shell: str) -> None:
    assert "bounded" in script(shell) and "--train-steps" in script(shell).replace("-l train-steps", "--train-steps")
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=script(shell), text=True, check=True, timeout=60)


@pytest.mark.parametrize("argv", [[], ["tcsh"]])
def test_another_shell_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        completion.main(argv)
    assert "psruntime completion: " in capsys.readouterr().err
