"""SIGTERM in a script: it is taken while the script is a member, and left alone before and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from psruntime.classic.member import code_of_sigterm, take_sigterm
from tests.support.selection import long_but


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_first_asks_and_the_second_ends() -> None:
    asked = threading.Event()
    take_sigterm(asked)
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.is_set()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == code_of_sigterm() == 143


def test_afterwards_a_signal_ends_the_script_as_before() -> None:
    give_back = take_sigterm(threading.Event())
    give_back()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_scripts_own_stays() -> None:
    def own(_signum: int, _frame: object) -> None:
        pass

    signal.signal(signal.SIGTERM, own)
    take_sigterm(threading.Event())()
    assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    give_back = take_sigterm(threading.Event())
    signal.signal(signal.SIGTERM, own)  # one that comes later
    give_back()
    assert signal.getsignal(signal.SIGTERM) is own


ENDED = """
import os, signal, sys, threading
from psruntime.classic.member import code_of_sigterm, end_script_because_of, take_sigterm
asked = threading.Event()
if sys.argv[1] == "member":
    take_sigterm(asked)
threading.Thread(target=end_script_because_of, args=(2,)).start()
asked.wait()
sys.exit(code_of_sigterm())
"""


@pytest.mark.parametrize("script", long_but(["member"], ["member", "no member yet"]))
def test_a_script_that_a_process_beside_it_ends_has_the_code_of_the_cause(script: str) -> None:
    assert subprocess.run([sys.executable, "-c", ENDED, script], check=False, timeout=60).returncode == 2
