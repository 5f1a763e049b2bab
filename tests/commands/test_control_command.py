"""`psruntime control`: its command lines; tests/rpc/server/test_control.py and tests/cluster/test_control.py use it."""

from __future__ import annotations

import pytest

from psruntime.commands import control
from psruntime.commands.control import command_of
from psruntime.core.steering.commands import Command, Kind

TYPED = {
    "pause": Command(Kind.PAUSE, "x"),
    "resume": Command(Kind.RESUME, "x"),
    "save": Command(Kind.SAVE, "x"),
    "drain": Command(Kind.DRAIN, "x"),
    "bound 0": Command(Kind.BOUND, "x", bound=0),
    "bound 12": Command(Kind.BOUND, "x", bound=12),
    "learning-rate-scale 0.5": Command(Kind.LEARNING_RATE_SCALE, "x", scale=0.5),
    "learning-rate-scale 1e-3": Command(Kind.LEARNING_RATE_SCALE, "x", scale=0.001),
    "mode sync": Command(Kind.MODE, "x", mode="sync"),
    "bound auto": Command(Kind.BOUND, "x", automatic=True),
    "mode schedule": Command(Kind.MODE, "x", automatic=True),
    "mode bounded 4": Command(Kind.MODE, "x", mode="bounded", bound=4),
    "drain worker 3": Command(Kind.DRAIN_WORKER, "x", worker=3),
}


@pytest.mark.parametrize("typed", TYPED)
def test_a_command_is_what_was_typed(typed: str) -> None:
    command, expected = command_of(typed.split()), TYPED[typed]
    assert str(command) == str(expected) == typed.replace("1e-3", "0.001")
    assert command.request_id != command_of(typed.split()).request_id


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("puase", "unknown command 'puase'; did you mean pause?"),
        ("stop", "unknown command 'stop'; known are pause, resume, bound, learning-rate-scale, mode, save, drain"),
        ("pause now", "pause takes no argument, got 'now'"),
        ("bound", "bound takes one argument, N, got ''"),
        ("bound x", "bound must be a whole number from 0, got 'x'"),
        ("bound -1", "bound must be a whole number from 0, got '-1'"),
        ("bound 1.5", "bound must be a whole number from 0, got '1.5'"),
        ("bound 99999999999999999999", "bound must be a whole number from 0, got '99999999999999999999'"),
        ("learning-rate-scale", "learning-rate-scale takes one argument, X, got ''"),
        ("learning-rate-scale half", "learning-rate-scale must be a number, got 'half'"),
        ("learning-rate-scale 0", "learning-rate-scale must be a number from 1e-30 to 1e+30, got 0"),
        ("learning-rate-scale -2", "learning-rate-scale must be a number from 1e-30 to 1e+30, got -2"),
        ("learning-rate-scale nan", "learning-rate-scale must be a number from 1e-30 to 1e+30, got nan"),
        ("learning-rate-scale inf", "learning-rate-scale must be a number from 1e-30 to 1e+30, got inf"),
        ("mode", "mode takes async, bounded N, sync or schedule, got ''; known are async, bounded, sync, schedule"),
        ("mode asnc", "mode takes async, bounded N, sync or schedule, got 'asnc'; did you mean async?"),
        ("mode bounded", "mode bounded takes one argument, how far a worker may be ahead of the slowest, got ''"),
        ("mode bounded many", "bound must be a whole number from 0, got 'many'"),
        ("mode schedule 4", "mode schedule takes no argument, got '4'"),
        ("mode sync 4", "mode sync takes no argument, got '4'"),
        ("drain worker", "drain takes nothing, or worker and its index, got 'worker'"),
        ("drain ps 1", "drain takes nothing, or worker and its index, got 'ps 1'"),
        ("drain worker one", "drain worker must be a whole number from 0, got 'one'"),
        ("--timeout 0 pause", "--timeout must be above 0, got 0"),
        ("--coordinator here pause", "address 'here' is not host:port, for example 127.0.0.1:2222"),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert control.main(words.split()) == 2
    assert capsys.readouterr() == ("", f"psruntime control: {line}\n")


def test_a_coordinator_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REACH_S", 0.5)
    assert control.main(["--coordinator=127.0.0.1:1", "pause"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("psruntime control: coordinator 127.0.0.1:1 cannot be reached")
    assert said.endswith("prints, is given as HOST:PORT or --coordinator\n") and said.count("\n") == 1


@pytest.mark.parametrize("words", ["127.0.0.1:1 pause", "pause 127.0.0.1:1"])
def test_the_address_may_stand_before_or_after_the_command(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REACH_S", 0.5)
    assert control.main(words.split()) == 1
    assert capsys.readouterr().err.startswith("psruntime control: coordinator 127.0.0.1:1 cannot be reached")


def test_an_interrupt_leaves_the_command_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control._Asking, "reply", interrupted)
    assert control.main(["pause"]) == 130
    said = capsys.readouterr().err
    assert said == "psruntime control: not waiting any more; a command that was taken takes effect all the same\n"


def test_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        control.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n  {kind}" in said for kind in Kind)
