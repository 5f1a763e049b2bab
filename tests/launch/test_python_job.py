"""`psruntime.train` without a job: its mistakes, its end, what it reads of the logs, and how it shows the progress."""

from __future__ import annotations

import io
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import psruntime
from psruntime.errors import JobFailedError, UsageError
from psruntime.launch import python_job
from psruntime.launch.watch import JobEnd
from tests.config.test_params import EXPECTED, as_it_is, of_worker

DONE = 'phase was=DRAINING now=DONE reason="global step 52"\n'
EVALUATED = "2026-01-01T00:00:00.000Z worker 1 evaluation global_step=52 loss=0.12345678901234567 recall at 5/0=nan\n"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Jobs are not run: what each was given, and how the next one ends."""
    state = SimpleNamespace(end=JobEnd(0), jobs=[], on_run=lambda: None)

    def run_to_end(job: Any, logs: Path, *_: Any, **more: Any) -> JobEnd:
        state.jobs.append(SimpleNamespace(job=job, **more))
        state.on_run()
        for index in range(job.launcher.workers):
            (logs / f"worker-{index}.log").write_text(EVALUATED if index == 1 else "")
        (logs / "ps-0.log").write_text(DONE)
        return state.end

    monkeypatch.setattr(python_job, "run_to_end", run_to_end)
    return state


def test_the_package_has_train_and_no_module_run_in_its_way() -> None:
    assert psruntime.train is python_job.train
    assert "train" in psruntime.__all__


def test_the_settings_are_those_of_run(ends: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("save_steps = 7\nlease_s = 3\n")
    folder = tmp_path / "ck"
    folder.mkdir()
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-52"\n')
    result = psruntime.train(
        "json", ps=2, workers=3, train_steps=np.int64(50), checkpoint_dir=folder, mode="sync", keep_best=None,
        job=file, lease_s=5, data_dir=tmp_path, record=tmp_path / "r.jsonl",
    )  # fmt: skip
    local = ends.jobs[0].job
    assert local.job == {
        "train_steps": 50, "linger_s": 0.0, "min_workers": 3, "save_steps": 7, "lease_s": 5, "ps": 2, "mode": "sync",
        "checkpoint_dir": str(folder),
    }  # fmt: skip
    assert local.worker == {"model": "json", "data_dir": str(tmp_path), "record": str(tmp_path / "r.jsonl")}
    assert (result.global_step, result.checkpoint) == (52, f"{folder}/model.ckpt-52")
    assert result.records == str(tmp_path / "r.jsonl")
    assert result.metrics["loss"] == 0.12345678901234567 and np.isnan(result.metrics["recall at 5/0"])


def test_parameters_reach_the_workers_as_what_they_are(ends: SimpleNamespace) -> None:
    psruntime.train("json", set={name: value for name, _, value in EXPECTED} | {"rate": np.float64(0.1)})
    found = of_worker(list(ends.jobs[0].job.others("a:1")[0].arguments[5:]))
    assert as_it_is(found) == [*EXPECTED, ("rate", float, 0.1)]


def test_what_is_not_given_is_none(ends: SimpleNamespace) -> None:
    result = psruntime.train("json")
    assert (result.checkpoint, result.records) == (None, None)
    assert ends.jobs[0].job.job["train_steps"] == 2000


def test_a_module_goes_by_its_name_and_is_found_where_this_process_finds_it(
    ends: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", "/elsewhere", *sys.path])
    psruntime.train(np)
    assert ends.jobs[0].job.worker["model"] == "numpy"
    assert ends.jobs[0].path[1:3] == [str(Path.cwd()), "/elsewhere"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "no_such_module"}, "model module 'no_such_module' cannot be imported"),
        ({"train_step": 5}, "psruntime.train: unknown setting 'train_step'; did you mean train_steps?"),
        (
            {"learning_rate": 5},
            "psruntime.train: unknown setting 'learning_rate'; the model says it, as learning_rate of",
        ),
        ({"train_steps": "x"}, 'psruntime.train: train_steps must be a whole number, got "x"'),
        ({"train_steps": np.arange(2)}, "psruntime.train: train_steps must be a whole number, got "),
        ({"train_steps": 0}, "train_steps must be at least 1, got 0"),
        ({"data_dir": "/no/such"}, "--data-dir /no/such is not there: no such file or folder on this machine"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"mode": "fast"}, "mode must be one of async, bounded, sync, got 'fast'"),
        ({"mode": "bounded", "bound": "auto"}, "psruntime.train: bound must be a whole number or auto:LOW-HIGH"),
        ({"keep_best": "loss"}, "keep_best needs checkpoint_dir"),
        ({"mode": "sync", "schedule": "async:5, sync"}, "--schedule says the modes and bounds"),
        ({"job": "/no.toml"}, "job file /no.toml cannot be read"),
        ({"log_dir": "/proc/x"}, "--log-dir /proc/x cannot be made"),
        ({"set": {"p": [1]}}, "psruntime.train: set must have names"),
        ({"set": {"p": np.arange(2)}}, "psruntime.train: set must have names"),
    ],
    ids=str,
)
def test_a_mistake_is_an_exception_with_the_line_of_the_command(
    settings: dict[str, Any], said: str, ends: SimpleNamespace
) -> None:
    with pytest.raises(UsageError) as refused:
        psruntime.train(**{"model": "json", **settings})
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)
    assert not ends.jobs


REASON = 'model_fn of m failed at m.py:3: NameError: name \\"x\\" is not defined'
LINE = f'2026-01-01T00:00:00.000Z worker 0 error reason="{REASON}"'
IN_JSON = f'{{"time": "", "role": "worker", "index": 0, "event": "error", "reason": "{REASON}"}}'
COMPLAINT = "worker-0 ended with code 2; its log is worker-0.log"


@pytest.mark.parametrize("line", [LINE, IN_JSON])
@pytest.mark.parametrize(("code", "kind"), [(2, UsageError), (1, JobFailedError), (137, JobFailedError)])
def test_a_failure_is_its_reason_in_one_line(line: str, code: int, kind: type, ends: SimpleNamespace) -> None:
    ends.end = JobEnd(code, COMPLAINT, (line,))
    with pytest.raises(kind) as failed:
        psruntime.train("json")
    assert str(failed.value) == f"{REASON.replace(chr(92), '')} ({COMPLAINT})"


def test_without_a_reason_it_is_the_last_line_of_the_log(ends: SimpleNamespace) -> None:
    ends.end = JobEnd(139, COMPLAINT, ("one", "Fatal Python error"))
    with pytest.raises(JobFailedError, match=f"^{COMPLAINT}: Fatal Python error$"):
        psruntime.train("json")


def test_an_interrupt_is_a_keyboard_interrupt_and_its_handler_is_as_before(ends: SimpleNamespace) -> None:
    ends.end = JobEnd(130, "ended by SIGINT", signal=signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    ends.on_run = lambda: signal.signal(signal.SIGINT, lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        psruntime.train("json")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_sigterm_reaches_this_process_when_the_job_is_stopped(ends: SimpleNamespace) -> None:
    ends.end = JobEnd(143, "ended by SIGTERM", signal=signal.SIGTERM)
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: received.append(signum))
    try:
        with pytest.raises(psruntime.errors.JobStoppedError):
            psruntime.train("json")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_it_may_be_called_in_any_thread(ends: SimpleNamespace) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(psruntime.train("json")))
    thread.start()
    thread.join()
    assert results[0].global_step == 52


@pytest.mark.parametrize("model", [(len, len), len, 3])
def test_what_is_no_module_is_refused(ends: SimpleNamespace, model: Any) -> None:
    with pytest.raises(UsageError, match=r"takes a module or its name, __main__ for functions of your program, got "):
        psruntime.train(model)


def test_a_worker_that_imports_the_caller_starts_no_job(monkeypatch: pytest.MonkeyPatch, ends: SimpleNamespace) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="psruntime.worker"), raising=False)
    with pytest.raises(UsageError, match="call it under if __name__"):
        psruntime.train("json")


def test_a_stream_of_its_own_gets_the_lines_of_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    show = python_job._shown()
    assert show
    show("TRAINING step 1")
    assert written.getvalue() == "TRAINING step 1\n"


def test_a_notebook_gets_one_line_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = SimpleNamespace(display=lambda *_, **__: Handle())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    show = python_job._shown()
    assert show
    show("TRAINING step 1")
    show("TRAINING step 2")
    assert shown == ["TRAINING step 1", "TRAINING step 2"] and sys.stdout.getvalue() == ""
    ipython.get_ipython = lambda: None  # it is imported, and this is no notebook
    assert python_job._shown() and len(shown) == 2
