"""Runs a job on this machine in one mode after the other, and draws the results into one page.

psruntime compare --modes "async; bounded 4; sync" --workers 4 [--model MODULE] [--slow 3:5x] [--out FILE]
psruntime compare --set lr=0.1,0.3 --set hidden=64,256
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import WorkerConfig
from psruntime.config.schedule import ASYNC, BOUNDED, MODES, Schedule, named
from psruntime.config.settings import Params, Value, param_of, param_words, suggestion, value_of, value_text
from psruntime.config.values import AUTO, BoundRange
from psruntime.dashboard.drawing import require_bokeh
from psruntime.errors import EXIT_DONE, EXIT_FAILED, UsageError
from psruntime.launch.children import END_S, LauncherConfig, LocalJob
from psruntime.launch.watch import Patience, held_out_of, run_job
from psruntime.model import find_model, unread_params
from psruntime.observe.records import read_records
from psruntime.process import flags
from psruntime.process.job_file import local_file
from psruntime.process.process import usage_error
from psruntime.study.comparison import Training, best_of, page_of, rows_of, training_of

PROG = "psruntime compare"
WANTED = "async; bounded 4; sync"
WORKERS, TRAIN_STEPS = 4, 1000
OUT = "compare.html"
OF_THE_WORKERS = (*(name for name in flags.OF_EVALUATION if name != "set"), "devices", "gpu_memory")
OF_THE_JOB = ("ps", "train_steps")  # the same in every mode; other settings of one mode follow its name
RECORD = "record.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the page is written, or a job has failed; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        slow = slow_of(arguments.slow, arguments.workers)
        grid = grid_of(arguments.grid)
        wanted = modes_of(arguments.modes or (ASYNC if len(grid) > 1 else WANTED))
        settings = [_settings_of(request, arguments) for request in wanted]
        model = flags.worker_config(arguments).model
        find_model(model)
        require_bokeh("compare")
        out = _writable(arguments.out)
        if remark := unread_params(model, grid[0]):
            sys.stderr.write(f"{PROG}: {remark}\n")
        trainings, failure = [], EXIT_DONE
        for (request, of_job), params in product(zip(wanted, settings, strict=True), grid):
            trained = _train(with_params(request.name, params, grid), arguments, of_job, slow, params)
            if isinstance(trained, int):
                failure = failure or trained
                if len(grid) == 1 or trained != EXIT_FAILED:
                    return trained
            else:
                trainings.append(trained)
    except UsageError as error:
        return usage_error(PROG, error)
    if trainings:
        _show(trainings, arguments, out)
    if len(grid) > 1 and (best := best_of(trainings)):
        sys.stdout.write(f"best by held-out loss: {best.name}\n")
    return failure


def _train(
    name: str, arguments: argparse.Namespace, settings: dict[str, Any], slow: dict[int, float], params: Params
) -> Training | int:
    """The results of one job, or the exit code with which it failed."""
    sys.stdout.write(f"== {name}\n")
    sys.stdout.flush()
    logs = Path(tempfile.mkdtemp(prefix="psruntime-compare-"))
    code = run_job(*_job(arguments, settings, slow, logs, params))
    if code != EXIT_DONE:
        return code
    text = "\n".join(log.read_text(errors="replace") for log in sorted(logs.glob("worker-*.log")))
    return training_of(name, read_records(logs / RECORD), held_out_of(text))


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Runs a job on this machine in one mode after the other, with records, and draws the results into one "
        "HTML page: loss over steps and time, staleness, steps per second, waiting, metrics on held-out data.",
        first=(*OF_THE_WORKERS, *OF_THE_JOB),
    )
    parser.add_settings(WorkerConfig, only=OF_THE_WORKERS)
    parser.add_settings(
        JobConfig, only=OF_THE_JOB, defaults={"train_steps": TRAIN_STEPS},
        helps={"train_steps": "global steps of each job, in mode sync the rounds that have as many batches"},
    )  # fmt: skip
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--modes", default="", metavar="MODES", help="separated by ;, each with further flags of the job behind it "
        f"if wanted, as 'async; async --staleness-lr inverse; bounded 0' (default: '{WANTED}'; {ASYNC} alone where a "
        "parameter has several values)",
    )  # fmt: skip
    most_used.add_argument(
        "--set", dest="grid", action="append", default=[], metavar="NAME=VALUE,...", help="a parameter of the model; "
        "with several values, as lr=0.1,0.3, there is a job for each, and the best is named; may be repeated",
    )  # fmt: skip
    most_used.add_argument(
        "--workers",
        type=flags.whole_number,
        default=WORKERS,
        metavar="N",
        help=f"number of worker processes (default: {WORKERS})",
    )
    most_used.add_argument(
        "--slow", default="", metavar="WORKER:TIMESx", help="let a worker be so many times slower, by waits in its "
        "steps; several with commas between them",
    )  # fmt: skip
    most_used.add_argument("--out", default=OUT, type=local_file, metavar="FILE", help=f"the page (default: {OUT})")
    return parser


def _settings_of(request: ModeRequest, arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the job in this mode, all checked."""
    LauncherConfig(workers=arguments.workers)
    of_mode = flags.Parser(f"{PROG}: --modes '{request.name}'", "")
    of_mode.add_settings(JobConfig)
    more = flags.given(of_mode.parse_args(request.more), JobConfig)
    for name in ("mode", "bound", "schedule"):
        if name in more:
            raise UsageError(f"--modes '{request.name}': --{name} stands there already, without dashes")
    common = {"train_steps": TRAIN_STEPS, **flags.given(arguments, JobConfig)}
    common["train_steps"] = request.schedule.steps_of(common["train_steps"], arguments.workers)
    settings = {**request.settings, "linger_s": 0.0, "min_workers": arguments.workers, **common, **more}
    JobConfig(**settings)
    return settings


def _job(
    arguments: argparse.Namespace, settings: dict[str, Any], slow: dict[int, float], logs: Path, params: Params = ()
) -> tuple[LocalJob, Path, Patience]:
    """The arguments of run_job."""
    job = JobConfig(**settings)
    worker = {**flags.given(arguments, WorkerConfig), "record": str(logs / RECORD), "set": params}
    own = {index: {"slowdown": times} for index, times in slow.items()}
    launcher = LauncherConfig(workers=arguments.workers)
    patience = Patience(job.drain_timeout_s + END_S, job.stop_grace_s + END_S)
    return LocalJob(launcher, job.ps, settings, worker, {}, False, own), logs, patience


def _writable(path: str) -> Path:
    """The path of the page, in a folder that is made if need be."""
    out = Path(path)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):
            pass
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror}") from error
    return out


def _show(trainings: list[Training], arguments: argparse.Namespace, out: Path) -> None:
    model = flags.worker_config(arguments).model
    slow = f", slow: {arguments.slow}" if arguments.slow else ""
    how = f"{arguments.workers} workers, {vars(arguments).get('ps', 1)} ps, on one machine{slow}"
    out.write_text(page_of(trainings, f"{model} by mode", how), encoding="utf-8")
    columns, rows = rows_of(trainings)
    for name, *numbers in rows:
        results = ", ".join(f"{column} {number}" for column, number in zip(columns[1:], numbers, strict=True))
        sys.stdout.write(f"{name}: {results}\n")
    sys.stdout.write(f"wrote {out}\n")


MOST_TIMES = 1000.0
_VALUES = re.compile(r'(?:(?<=,)|^)("[^"]*"|[^,]*)(?=,|$)')
_SLOW = re.compile(r"(\d{1,6}):(\d{1,6}(?:\.\d{1,6})?)x")


@dataclass(frozen=True)
class ModeRequest:
    """One training.

    name: as in the request.  schedule: its modes.  within: the range of its bounds, of mode bounded alone; then the
    schedule has the least of them.  more: further flags of the job, as words.
    """

    name: str
    schedule: Schedule
    within: BoundRange | None = None
    more: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str | int]:
        """The job's settings of its mode."""
        first, *others = self.schedule.stages
        if others:
            return {"schedule": str(self.schedule)}
        if self.within:
            return {"mode": first.mode, "bound": str(self.within)}
        return {"mode": first.mode} if first.bound is None else {"mode": first.mode, "bound": first.bound}


def modes_of(text: str) -> list[ModeRequest]:
    """The modes of `async; bounded 4; bounded auto:1-8; async:500, sync`, the last a schedule, each with further flags
    of the job behind it if wanted: `async --pipeline 2`.

    Raises:
        UsageError: there is no mode, an unknown one, one twice, or a bound that is none.
    """
    requests = [_mode_of(" ".join(part.split())) for part in text.split(";") if part.strip()]
    if not requests:
        raise UsageError("--modes names no mode; for example --modes 'async; bounded 4; sync'")
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--modes has '{name}' twice")
    return requests


def _mode_of(name: str) -> ModeRequest:
    words = name.split()
    flags = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    mode, more = " ".join(words[:flags]), tuple(words[flags:])
    within, is_range = None, mode.startswith(f"{BOUNDED} {AUTO}")
    if not is_range and not {",", ":"} & set(mode):
        _check_mode(mode, name)
    try:
        if is_range:
            within = BoundRange.of(mode.removeprefix(f"{BOUNDED} "))
            mode = named(BOUNDED, within.least)
        schedule = Schedule.of(mode)
    except UsageError as error:
        raise UsageError(f"--modes '{name}': {error}") from error
    assert schedule is not None, "its first word is a mode"
    return ModeRequest(name, schedule, within, more)


def _check_mode(mode: str, name: str) -> None:
    word, *words = mode.split() or [""]
    if word not in MODES:
        raise UsageError(
            f"--modes: '{word}' is no mode{suggestion(word, MODES) or '; there are async, bounded N and sync'}"
        )
    if word == BOUNDED and (not words or not words[0].isdecimal()):
        raise UsageError(f"--modes: bounded needs its bound, as bounded 4, got '{name}'")
    if len(words) > (word == BOUNDED):
        raise UsageError(f"--modes: '{words[-1]}' is unexpected in '{name}'; separate modes by ;")


def grid_of(words: Sequence[str]) -> list[Params]:
    """The parameters of each job, for every combination of the values of `lr=0.1,0.3` and `hidden=6`.

    A value in double quotes is one text, with its commas.

    Raises:
        UsageError: a word is no NAME=VALUE,...; a name, or a value of one, is given twice.
    """
    grid: dict[str, list[Value]] = {}
    for word in words:
        try:
            name, _ = param_of(word)
        except UsageError as error:
            raise UsageError(f"--set {error}") from error
        values = [value_of(found) for found in _VALUES.findall(word.partition("=")[2])]
        if name in grid or len({value_text(each) for each in values}) < len(values):
            raise UsageError(f"--set {name}: {'the name' if name in grid else 'a value'} is given twice")
        grid[name] = values
    return [tuple(zip(grid, each, strict=True)) for each in product(*grid.values())]


def with_params(name: str, params: Params, grid: Sequence[Params]) -> str:
    """The name of a training with those of its parameters that are not the same in all of the grid."""
    fixed = set.intersection(*(set(param_words(each)) for each in grid))
    return " ".join([name, *(text for text in param_words(params) if text not in fixed)])


def slow_of(text: str, workers: int) -> dict[int, float]:
    """Worker index -> the factor by which it is slowed, of `3:5x,2:1.5x`.

    Raises:
        UsageError: it is not of this form, names a worker that there is not, or one twice.
    """
    slow: dict[int, float] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = _SLOW.fullmatch(part)
        if found is None or not 1 <= float(found[2]) <= MOST_TIMES:
            raise UsageError(
                f"--slow must be WORKER:TIMESx, from 1x to {MOST_TIMES:g}x, as 3:5x for a worker 3 that is five times "
                f"slower, got '{part}'"
            )
        worker = int(found[1])
        if worker >= workers:
            raise UsageError(f"--slow names worker {worker}; there are {workers}, from 0 to {workers - 1}")
        if worker in slow:
            raise UsageError(f"--slow names worker {worker} twice")
        slow[worker] = float(found[2])
    return slow
