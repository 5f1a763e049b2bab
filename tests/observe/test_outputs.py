"""Outputs that go away: no traceback, no false code, and no process that waits for a reader for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psruntime.cli import PROGRAMS
from psruntime.observe.log import Log
from psruntime.observe.outputs import Output

ROOT = Path(__file__).parents[2]
FAULTS = {"closed pipe": "| true", "full disk": "> /dev/full", "closed": "<&- >&- 2>&-", "closed output": ">&-"}
FULL = "psruntime: standard output could not be written: No space left on device\n"

MEMBER = """
import os, sys
from contextlib import suppress
from psruntime.observe.log import Log
from psruntime.observe.outputs import entry
from psruntime.process.process import run

def work(process):
    for number in range(3000):
        print("x" * 100)
        process.log("event", text="y" * 100)
        with suppress(OSError):  # as C++ does
            os.write(2, b"z" * 100)
    open(sys.argv[1], "w").close()
    return 0

sys.exit(entry(lambda: run(Log("worker", 0), work)))
"""


def shell(command: str, fault: str) -> tuple[int, str]:
    """Exit code of the command and what came on its standard error."""
    done = subprocess.run(
        ["bash", "-c", f"{command} {fault}; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["psruntime --version", "psruntime status --help", "psruntime.ps --help"])
def test_what_is_printed_and_goes_nowhere_is_no_traceback(command: str, fault: str) -> None:
    code, error = shell(f"{sys.executable} -m {command}", FAULTS[fault])
    assert (code, error) == ((1, FULL) if fault == "full disk" else (0, ""))


def test_an_interrupt_before_a_command_takes_its_signals_is_no_traceback() -> None:
    begin = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may ignore it
    begin += "; from psruntime.observe.outputs import entry"
    command = [sys.executable, "-c", f"{begin}; sys.exit(entry(lambda: signal.raise_signal(signal.SIGINT)))"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_code_of_a_mistake_stays_what_it_is(fault: str) -> None:
    code, error = shell(f"{sys.executable} -m psruntime no_command", FAULTS[fault])
    assert code == 2
    assert error.count("\n") == (fault != "closed")


def test_every_program_begins_with_the_outputs() -> None:
    for name in PROGRAMS:
        assert "sys.exit(entry(main))" in (ROOT / f"psruntime/{name}.py").read_text(), name


@pytest.mark.parametrize("fault", ["> /dev/full 2>&1", "> /dev/full 2> /dev/full", "2>&1 | true", *FAULTS.values()])
def test_a_member_of_a_job_ends_with_the_code_of_its_work(fault: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MEMBER)
    ended = tmp_path / "ended"
    code, error = shell(f"{sys.executable} {program} {ended}", fault)
    assert code == 0 and ended.exists()
    assert "Traceback" not in error


def test_a_member_of_a_job_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MEMBER)
    reader, writer = os.pipe()
    try:
        subprocess.run(
            [sys.executable, program, tmp_path / "ended"],
            cwd=ROOT,
            stdout=writer,
            stderr=writer,
            timeout=100,
            check=True,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert (tmp_path / "ended").exists()


def test_a_log_says_how_much_was_dropped_when_it_is_read_again() -> None:
    reader, writer = os.pipe()
    log = Log("ps", 0, descriptor=writer)
    assert os.get_blocking(writer)  # that of others who share it
    for _ in range(3000):
        log("event", text="x" * 100)
    read = os.read(reader, 1 << 20)
    kept = read.count(b" event ")
    log("read_again")
    log("and_on")
    os.close(writer)
    lines = os.read(reader, 1 << 20).decode().splitlines()
    words = [line.split()[3] for line in lines if len(line.split()) > 3]
    assert words[-3:] == ["read_again", "log_resumed", "and_on"]
    assert f"entries_lost={3000 - read.count(bytes([10]))} " in lines[-2]
    assert kept > 100
    os.close(reader)


def test_a_patient_output_loses_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as some parents leave it
    program = f"import time; time.sleep(1); print(len(__import__('os').fdopen({reader}, 'rb').read()))"
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[reader], stdout=subprocess.PIPE) as child:
        os.close(reader)
        assert Output(writer).write(b"x" * 1_000_000)
        os.close(writer)
        assert child.stdout and int(child.stdout.read()) == 1_000_000
