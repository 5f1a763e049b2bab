"""The launcher's children, as processes that end when and how they are told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime.launch.children import Child, Children, ProcessSpec
from tests.support.polling import poll_until

OBEDIENT = """
import os, signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
role, index = sys.argv[1].split("-")
print("STARTING" if "late" in sys.argv else "READY", role, index, "here", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(99)), daemon=True).start()
order = f"{sys.argv[1]}.{open(sys.argv[1] + '.log').read().count(' here')}"  # of this life
while not os.path.exists(order):
    signal.sigtimedwait([], 0.01)
os._exit(int(open(order).read()))
"""
LATER_S = 3600.0  # beyond every pause


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    (tmp_path / "obedient.py").write_text(OBEDIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    children = Children(tmp_path, restarts=2)
    for name in ("ps-0", "worker-0"):
        children.start(ProcessSpec(name, ("obedient", name)))
    yield children
    children.end()
    assert not children.running()


def end(child: Child, code: int, life: int = 1) -> None:
    """Ends a life, the first one is 1."""
    poll_until(lambda: child.lines(), 30, "it runs")
    order = child.log.with_name(f"{child.name}.{life}")
    order.with_suffix(".new").write_text(str(code))
    os.replace(order.with_suffix(".new"), order)
    poll_until(lambda: child.code is not None, 30, "it has ended")


def test_a_crash_is_followed_by_another_life_with_the_same_log(children: Children) -> None:
    _, worker = children.all
    end(worker, 75)
    now_s = time.monotonic()
    assert children.look(now_s) is None
    assert worker.code == 75, "there is a pause first"
    assert worker.lines() == []
    assert children.look(now_s + LATER_S) is None
    assert worker.code is None
    ready = "READY worker 0 here"
    poll_until(lambda: worker.lines() == [ready], 30, "its next life")
    restart = "worker-0 ended with code 75; restart 1 of 2 in 0.5 s"
    assert worker.log.read_text().splitlines() == [ready, restart, ready]
    end(worker, 0, life=2)
    assert children.look(now_s + 2 * LATER_S) is None
    assert worker.code == 0, "who is done stays so"


@pytest.mark.parametrize("code", [1, 2])
def test_a_word_on_the_job_is_a_failure_at_once(children: Children, code: int) -> None:
    worker = children.all[1]
    end(worker, code)
    assert children.look(time.monotonic()) is worker


def test_a_worker_that_was_asked_to_leave_has_not_failed(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is started again as long as it may be, and then others go on; nobody does without the last worker, or a ps."""
    first, worker = children.all
    other = children.start(ProcessSpec("worker-1", ("obedient", "worker-1")))
    other.backoff.restarts = other.backoff.limit
    for life in (1, 2, 3):
        end(worker, 143, life)
        for later in (2 * life, 2 * life + 1):
            assert children.look(time.monotonic() + later * LATER_S) is None
    said = "psruntime run: worker-0 has left, as it was asked to; the job continues without it"
    assert worker.code == 143 and capsys.readouterr().err.splitlines().count(said) == 1
    end(other, 143)
    assert children.look(time.monotonic()) in (worker, other)
    other.start()
    assert children.look(time.monotonic()) is None
    first.backoff.restarts = first.backoff.limit
    end(first, 143)
    assert children.look(time.monotonic()) is first


def test_who_has_used_up_its_restarts_has_failed(children: Children) -> None:
    worker = children.all[1]
    for life in (1, 2):
        end(worker, 75, life)
        assert children.look(time.monotonic()) is None
        assert children.look(time.monotonic() + LATER_S) is None
    end(worker, 75, life=3)
    assert children.look(time.monotonic()) is worker


def test_nothing_is_started_again_once_the_job_is_done(children: Children) -> None:
    first, worker = children.all
    end(worker, 75)
    assert children.look(time.monotonic()) is None
    end(first, 0)
    assert children.done
    assert children.look(time.monotonic() + LATER_S) is None
    assert worker.code == 75


def test_who_comes_after_the_end_is_sent_away_and_who_is_leaving_is_not(children: Children) -> None:
    first, worker = children.all
    late = children.start(ProcessSpec("worker-1", ("obedient", "worker-1", "late")))
    poll_until(lambda: late.lines() and worker.has_joined, 30, "both run")
    end(first, 0)
    children.end_latecomers()
    poll_until(lambda: late.code == 143, 30, "the end of the latecomer")
    assert worker.code is None
    assert children.look(time.monotonic()) is None


def test_a_failed_evaluation_counts_after_the_end_of_the_job(children: Children) -> None:
    first, worker = children.all
    end(first, 0)
    end(worker, 1)
    assert children.look(time.monotonic()) is worker


def test_after_a_signal_nothing_is_started_again(children: Children) -> None:
    worker = children.all[1]
    end(worker, 75)
    assert children.look(time.monotonic()) is None
    poll_until(lambda: children.all[0].lines(), 30, "ps 0 runs")
    children.pass_on(signal.SIGTERM, None)
    assert children.look(time.monotonic() + LATER_S) is None
    assert worker.code == 75
    poll_until(lambda: not children.running(), 30, "the signal was passed on")
    assert children.all[0].code == 143
    assert children.look(time.monotonic() + LATER_S) is None, "nothing fails after a signal"


def test_the_first_signal_is_for_ps_0_and_for_whom_it_cannot_tell(children: Children) -> None:
    late = children.start(ProcessSpec("worker-1", ("obedient", "worker-1", "late")))
    poll_until(lambda: all(child.lines() for child in children.all), 30, "all run")
    children.pass_on(signal.SIGTERM, None)
    poll_until(lambda: len(children.running()) == 1, 30, "the end of those that were sent it")
    assert (children.all[0].code, children.all[1].code, late.code) == (143, None, 143)
    assert not children.ends_now
    children.pass_on(signal.SIGTERM, None)
    assert children.ends_now


def test_without_ps_0_the_first_signal_is_for_all(children: Children) -> None:
    poll_until(lambda: all(child.lines() for child in children.all), 30, "all run")
    end(children.all[0], 75)
    children.pass_on(signal.SIGTERM, None)
    poll_until(lambda: not children.running(), 30, "the end of the worker")
