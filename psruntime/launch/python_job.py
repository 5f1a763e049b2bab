"""A whole job on this machine from Python, in a program or a notebook."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import SecurityConfig, WorkerConfig
from psruntime.config.settings import plain, settings_of
from psruntime.errors import EXIT_DONE, EXIT_USAGE, JobFailedError, JobStoppedError, UsageError
from psruntime.launch.children import LauncherConfig
from psruntime.launch.local_job import local_job, log_folder
from psruntime.launch.main_functions import write_module
from psruntime.launch.watch import SIGNALS, JobEnd, Show, held_out_of, run_to_end
from psruntime.model import find_model
from psruntime.process.job_file import job_settings, resolved, typed, worker_settings

CALL = "psruntime.train"
MAIN = "__main__"
DONE = re.compile(r"\bDONE\b.*?\bglobal step (\d+)")  # in the log of ps 0
NEWEST = re.compile(r'^model_checkpoint_path: "(.*)"$', re.MULTILINE)  # in a folder of checkpoints
CONFIGS = (LauncherConfig, JobConfig, WorkerConfig, SecurityConfig)


@dataclass(frozen=True)
class Result:
    """What a job has left.

    global_step: at its end.  metrics: on the held-out data, by name, with "loss".
    checkpoint: path of the newest one; None without checkpoint_dir.  records: the path given as record; None without.
    """

    global_step: int
    metrics: dict[str, float]
    checkpoint: str | None
    records: str | None


def train(model: str | ModuleType, ps: int = 1, workers: int = 2, **settings: Any) -> Result:
    """Trains a model by a job on this machine, as `psruntime run` does, and returns when the job is over.

    Ctrl-C, or the interrupt of a notebook's kernel, stops the job in good order.  No process outlives the call.

    The workers receive the functions of `__main__` with all of `__main__` that these use, as it is now, by cloudpickle
    (`pip install 'psruntime[notebook]'`).  Each has a copy: a large array takes its memory in each of them, and no
    change is seen here.  What cannot be pickled, such as an open file or a lock, is to be made in the function.

    Args:
        model: A module with input_fn and model_fn, or its name; `__main__` for those of this program or notebook.
        ps: Number of parameter servers.
        workers: Number of workers.
        settings: Those of `psruntime run`, with underscores: `train_steps=500`, `checkpoint_dir="ck"`, `mode="sync"`,
            times as `lease_s=5`, parameters as `set={"lr": 0.1}`.

    Raises:
        UsageError: A setting or the model is wrong.
        JobFailedError: The job has failed; the text has the reason and the log.
        KeyboardInterrupt: It was interrupted; it continues from its last checkpoint when it is called again.
    """
    _require_no_worker()
    given = {
        "ps": ps,
        "workers": workers,
        **{name: _plain(each) for name, each in settings.items() if each is not None},
    }
    file, insecure = str(given.pop("job", "")), bool(given.pop("insecure", False))
    by_name = typed(CALL, given, [each for config in CONFIGS for each in settings_of(config)])
    launcher, of_job, of_worker, security = (
        resolved({each.name: by_name[each.name] for each in settings_of(config) if each.name in by_name})
        for config in CONFIGS
    )
    with tempfile.TemporaryDirectory(prefix="psruntime-") as made:
        name = _found(model, Path(made))
        worker = worker_settings(file, {**of_worker, "model": name})
        job, patience = local_job(LauncherConfig(**launcher), job_settings(file, of_job), worker, security, insecure)
        logs = log_folder(job.launcher.log_dir)
        with _signals_restored():
            end = run_to_end(
                job, logs, patience, path=[made, *(each or os.getcwd() for each in sys.path)], show=_shown()
            )
    _raise_unless_done(end)
    steps = DONE.findall((logs / "ps-0.log").read_text(errors="replace"))
    if not steps:
        raise JobFailedError(f"{logs}/ps-0.log lacks the end of the job; is the disk full?")
    of_workers = [(logs / f"worker-{index}.log").read_text(errors="replace") for index in range(job.launcher.workers)]
    folder, records = job.job.get("checkpoint_dir"), worker.get("record")
    return Result(
        int(steps[-1]), held_out_of("\n".join(of_workers)), _newest(folder) if folder else None,
        os.path.abspath(records) if records else None,
    )  # fmt: skip


def _found(model: str | ModuleType, folder: Path) -> str:
    """The name by which the workers import the model; the module of `__main__` is written into the folder.

    Raises:
        UsageError: there is no such module, or it is none.
    """
    if not isinstance(model, str | ModuleType):
        raise UsageError(f"{CALL} takes a module or its name, {MAIN} for functions of your program, got {model!r:.80}")
    name = model if isinstance(model, str) else model.__name__
    if name == MAIN:
        return write_module(sys.modules[MAIN], folder)
    find_model(name)
    return name


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else plain(value)


def _require_no_worker() -> None:
    """Raises UsageError in a process of a job: it imports the module that has called."""
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    if spec is not None and spec.name.startswith("psruntime."):
        raise UsageError(f'{CALL} is called while a worker imports the model; call it under if __name__ == "{MAIN}":')


@contextmanager
def _signals_restored() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) or signal.SIG_DFL for signum in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _shown() -> Show | None:
    """What shows the progress: of a notebook one line that is overwritten; None: standard output itself."""
    with suppress(OSError, ValueError, AttributeError):  # it is no file, as in a notebook
        if sys.stdout.fileno() == 1:
            return None
    ipython: Any = sys.modules.get("IPython")
    if ipython and hasattr(ipython.get_ipython(), "kernel"):
        shown = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
        return lambda line: shown.update({"text/plain": line}, raw=True)
    return lambda line: print(line, flush=True)  # noqa: T201 - the caller's standard output


def _raise_unless_done(end: JobEnd) -> None:
    if end.signal == signal.SIGINT:
        raise KeyboardInterrupt(end.complaint)
    if end.signal is not None:
        signal.raise_signal(end.signal)  # which this process has received, too
        raise JobStoppedError(end.complaint)
    if end.code != EXIT_DONE:
        raise (UsageError if end.code == EXIT_USAGE else JobFailedError)(end.reason)


def _newest(folder: str) -> str | None:
    """The newest checkpoint of a folder."""
    if "://" in folder:  # which only TensorFlow reads
        from psruntime.graph.checkpoint.listing import CheckpointList

        return CheckpointList(folder).newest()
    with suppress(OSError):
        if found := NEWEST.search(Path(folder, "checkpoint").read_text()):
            return os.path.join(folder, found[1])
    return None
