"""The ps beside a worker: with children that are no ps but behave like one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime.launch.colocated_ps import ColocatedPs, code_of_both
from tests.support.polling import poll_until

WITHIN_S = 20.0
SERVES = "print('READY coordinator 0 127.0.0.1:1', flush=True)"


class Started:
    """A ColocatedPs whose child runs these lines of Python, with what it says and what it prints."""

    def __init__(self, *lines: str, serves_coordinator: bool = True) -> None:
        self.said: list[str] = []
        self.out = io.StringIO()
        self.ps = ColocatedPs([], self.said.append, self.out, ["-c", "\n".join(lines)])
        self.ps.start(serves_coordinator)


@pytest.fixture
def terminated() -> Iterator[list[int]]:
    """The SIGTERMs that this process got."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: got.append(signum))
    yield got
    signal.signal(signal.SIGTERM, before)


def test_what_it_prints_is_repeated_and_tells_that_it_serves() -> None:
    started = Started(SERVES, "import time; time.sleep(60)")
    assert started.ps.await_coordinator(WITHIN_S)
    started.ps.end(over=False, within_s=WITHIN_S)
    assert started.out.getvalue() == "READY coordinator 0 127.0.0.1:1\n"
    assert started.said == []


def test_one_that_crashes_starts_again(tmp_path: Path) -> None:
    died = tmp_path / "died"
    started = Started(
        f"import os, pathlib; died = pathlib.Path({str(died)!r})",
        "if not died.exists(): died.touch(); os.kill(os.getpid(), 9)",
        SERVES,
    )
    poll_until(started.out.getvalue, WITHIN_S, "what its second life prints")
    started.ps.end(over=True, within_s=WITHIN_S)
    assert started.said == ["the ps was killed by signal 9; restart 1 of 10 in 0.5 s"]
    assert started.ps.code == 0


def test_one_that_is_set_up_wrongly_ends_the_worker(terminated: list[int]) -> None:
    started = Started("import sys; sys.exit(2)", serves_coordinator=False)
    poll_until(lambda: terminated, WITHIN_S, "a SIGTERM")
    assert code_of_both(143, started.ps) == 2


def test_a_ps_0_that_is_set_up_wrongly_is_told_to_whom_awaits_it(terminated: list[int]) -> None:
    started = Started("import sys; sys.exit(2)")
    assert not started.ps.await_coordinator(WITHIN_S)
    started.ps.end(over=False, within_s=WITHIN_S)
    assert started.ps.code == 2 and not terminated


def test_it_ends_also_where_nobody_reads_what_it_prints() -> None:
    started = Started(SERVES, "print('more')")
    started.out.close()
    started.ps.end(over=True, within_s=WITHIN_S)
    assert started.ps.code == 0


@pytest.mark.parametrize(("code", "heard"), [(0, [0]), (1, [1])])
def test_a_worker_that_has_not_joined_hears_of_the_end_of_the_job(
    code: int, heard: list[int], terminated: list[int]
) -> None:
    ended: list[int] = []
    ps = ColocatedPs([], print, io.StringIO(), ["-c", f"import sys; sys.exit({code})"], end_unjoined=ended.append)
    ps.start(serves_coordinator=False)
    poll_until(lambda: ended, WITHIN_S, "the end of the worker")
    assert ended == heard and not terminated
    asked = ColocatedPs([], print, io.StringIO(), ["-c", "import time; time.sleep(60)"], end_unjoined=ended.append)
    asked.start(serves_coordinator=False)
    asked.end(over=False, within_s=WITHIN_S)
    assert ended == heard, "it ended since its worker did"


def test_it_is_not_started_again_once_its_worker_has_ended() -> None:
    started = Started(SERVES, "import sys; sys.exit(75)")
    started.ps.end(over=True, within_s=WITHIN_S)
    assert started.ps.code == 75 and not any("restart" in line for line in started.said[1:])


def test_one_whose_job_has_failed_leaves_the_word_to_the_worker(terminated: list[int]) -> None:
    started = Started("import sys; sys.exit(1)")
    started.ps.end(over=True, within_s=WITHIN_S)
    assert not terminated and code_of_both(1, started.ps) == 1


def test_it_is_asked_to_end_when_the_job_is_not_over(terminated: list[int]) -> None:
    started = Started(SERVES, "import time; time.sleep(60)")
    assert started.ps.await_coordinator(WITHIN_S)
    started.ps.end(over=False, within_s=WITHIN_S)
    assert started.ps.code == -signal.SIGTERM and started.said == [] and not terminated
    assert code_of_both(75, started.ps) == 75


def test_one_that_does_not_end_is_killed() -> None:
    started = Started("import signal, time; signal.signal(15, signal.SIG_IGN)", SERVES, "time.sleep(60)")
    assert started.ps.await_coordinator(WITHIN_S)
    started.ps.end(over=False, within_s=0.2)
    assert started.ps.code == -signal.SIGKILL
    assert started.said == ["the ps did not end within 0.2 s, killing it"]


def test_a_ps_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    """The real ps, which sees the end of its stdin."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent("""
        import sys, time
        from psruntime.launch.colocated_ps import ColocatedPs
        ps = ColocatedPs(["--index=0", "--coordinator=127.0.0.1:0"], print)
        ps.start(serves_coordinator=True)
        assert ps.await_coordinator(60)
        print(ps._process.pid, flush=True)
        time.sleep(600)
    """)
    )
    process = subprocess.Popen([sys.executable, str(worker)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    lines = iter(process.stdout.readline, "")
    pid = next(int(line) for line in lines if line.strip().isdigit())
    process.kill()
    process.wait()
    poll_until(lambda: is_gone(pid), WITHIN_S, "the end of the ps")
    process.stdout.close()


def test_the_ps_hides_the_gpus_of_its_worker_before_it_imports_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real ps, with a module instead of TensorFlow that writes down what it may see."""
    seen = tmp_path / "seen"
    write = f"pathlib.Path({str(seen)!r}).write_text(os.environ['CUDA_VISIBLE_DEVICES'])"
    (tmp_path / "tensorflow.py").write_text(f"import os, pathlib\n{write}\nos._exit(0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    ps = ColocatedPs(["--index=0", "--coordinator=127.0.0.1:0"], lambda _: None, io.StringIO())
    ps.start(serves_coordinator=True)
    poll_until(lambda: ps.code is not None, 60.0, "the end of the ps")
    assert (ps.code, seen.read_text()) == (0, "-1")


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or one that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
