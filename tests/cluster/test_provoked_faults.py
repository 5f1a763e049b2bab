"""The table of faults of docs/troubleshooting.md, each row of it provoked in a real process.

faulty_models.py fails at a place with an error, both as --data-dir names them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Container
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.view import Phase
from psruntime.faults import CODES, ERRNOS, FATES, FaultKind, Place
from psruntime.graph.checkpoint.listing import CheckpointList, newest_step
from tests.cluster.test_faults import end
from tests.support import worlds
from tests.support.bad_files import cut_in_half, make_folder, make_full, make_unreadable
from tests.support.cluster import Proc, Zygote, cluster
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.cluster

MODEL = "--model=tests.cluster.faulty_models"
FEW = {FaultKind.MACHINE: "OSError-5", FaultKind.PATH: "OSError-2", FaultKind.CODE: "KeyError"}
OF_PYTHON = {
    FaultKind.MACHINE: ("MemoryError", "ConnectionRefusedError", "TimeoutError", "OSError"),
    FaultKind.PATH: ("FileNotFoundError",),
    FaultKind.CODE: (
        "ValueError", "TypeError", "IndexError", "AttributeError", "ImportError", "ZeroDivisionError", "AssertionError",
        "RecursionError", "NotImplementedError", "UnicodeError", "SystemExit",
    ),
}  # fmt: skip
ALL = {kind: [*(f"OSError-{n}" for n in ERRNOS.get(kind, ())), *OF_PYTHON[kind], *CODES[kind]] for kind in FaultKind}
AT_ONCE = 4  # processes that fail beside each other
SHARES = 4  # of the errors of one place: all of them, one after the other, take some two minutes on a busy machine

IN_A_WORKER = (Place.BUILD, Place.INPUT, Place.STEP, Place.HOOK, Place.RATE)  # which need not be the chief
OF_THE_CHIEF = (Place.INITIAL, Place.FOLDER, Place.SAVE, Place.LAST_SAVE, Place.HOOK_END, Place.EVALUATION, Place.BEST)
OF_FILES = (Place.EVALUATOR, Place.OUT)  # in a process that reads checkpoints
OF_BAD_FILES = (Place.WARM_START, Place.RESTORE, Place.OPENING, Place.OBSERVING)  # tests/support/bad_files.py


def fault(place: Place, error: str) -> str:
    return f"--data-dir=fault://{place.name}={error}"


def code_at(place: Place, kind: FaultKind) -> int:
    """That of the process in which it comes; 0: it is passed over."""
    fate = FATES[place][kind]
    return fate.exit_code if fate else 0


def cells(places: tuple[Place, ...], *codes: int, few: Container[str] = ()) -> list[Any]:
    """Those in which a process ends with one of these codes; few: ids of those that are not long."""
    found = [(place, kind) for place in places for kind in FATES[place] if code_at(place, kind) in codes]
    names = {(place, kind): f"{place.name}-{kind.name}" for place, kind in found}
    return [pytest.param(*cell, id=name, marks=() if name in few else pytest.mark.long) for cell, name in names.items()]


def errors_at(place: Place, *codes: int) -> list[tuple[Place, FaultKind, str]]:
    """All errors with which a process ends with one of these codes."""
    return [(place, kind, error) for kind in FATES[place] if code_at(place, kind) in codes for error in ALL[kind]]


def require(proc: Proc, place: Place, kind: FaultKind, error: str) -> None:
    assert proc.wait() == code_at(place, kind), (place, error, proc.text)
    assert f"provoked {place.name}={error}" in proc.text, (place, error, proc.text)
    assert " crash " not in proc.text, (place, error, proc.text)


def test_every_row_is_provoked() -> None:
    assert {*IN_A_WORKER, *OF_THE_CHIEF, *OF_FILES, *OF_BAD_FILES} == set(Place)


def fail_beside_a_job(zygote: Zygote, folder: Path, cells: list[tuple[Place, FaultKind, str]]) -> None:
    """Each in a worker of its own; the job trains through all of them."""
    with cluster(zygote, folder, train_steps=1_000_000, max_workers=1 + AT_ONCE) as job:
        job.start_worker(0, MODEL)
        job.wait_for_phase(Phase.TRAINING)
        for first in range(0, len(cells), AT_ONCE):
            started = [
                (job.start_worker(index, MODEL, fault(place, error)), place, kind, error)
                for index, (place, kind, error) in enumerate(cells[first : first + AT_ONCE], start=1)
            ]
            for each in started:
                require(*each)
        assert job.status().phase is Phase.TRAINING
        end(job)


@pytest.mark.long
def test_what_ends_one_worker_leaves_the_job_alone(zygote: Zygote, tmp_path: Path) -> None:
    params = [cell.values for cell in cells(IN_A_WORKER, 2, 75)]
    fail_beside_a_job(zygote, tmp_path, [(place, kind, FEW[kind]) for place, kind in params])


@pytest.mark.long
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("place", IN_A_WORKER)
def test_every_error_that_ends_one_worker_leaves_the_job_alone(
    zygote: Zygote, tmp_path: Path, place: Place, share: int
) -> None:
    of_sessions = ("AbortedError", "UnavailableError") if place is Place.HOOK else ()  # a hook hands them on
    errors = [cell for cell in errors_at(place, 2, 75) if cell[2] not in of_sessions]
    fail_beside_a_job(zygote, tmp_path, errors[share::SHARES])


def end_a_job(zygote: Zygote, folder: Path, place: Place, kind: FaultKind, error: str) -> None:
    with cluster(zygote, folder, train_steps=1_000_000, checkpoint_dir=folder / "c") as job:
        require(job.start_worker(0, MODEL, fault(place, error)), place, kind, error)
        assert job.ps[0].wait() == 1
    assert (newest_step(str(folder / "c")) or 0) > 0


@pytest.mark.parametrize(("place", "kind"), cells(IN_A_WORKER, 1, few=["STEP-CODE"]))
def test_what_ends_the_job_saves_it_first(zygote: Zygote, tmp_path: Path, place: Place, kind: FaultKind) -> None:
    end_a_job(zygote, tmp_path, place, kind, FEW[kind])


@pytest.mark.long
@pytest.mark.parametrize("error", ALL[FaultKind.CODE])
@pytest.mark.parametrize("place", [Place.INPUT, Place.STEP, Place.HOOK, Place.RATE])
def test_every_error_that_ends_the_job_saves_it_first(zygote: Zygote, tmp_path: Path, place: Place, error: str) -> None:
    end_a_job(zygote, tmp_path, place, FaultKind.CODE, error)


LOGGED = {Place.SAVE: " checkpoint_failed ", Place.HOOK_END: " hook_failed ", Place.BEST: " best_failed "}
STEPS = 60


@pytest.mark.parametrize(("place", "kind"), cells(OF_THE_CHIEF, 0, 1, 2, 75))
def test_what_fails_in_a_chief(zygote: Zygote, tmp_path: Path, place: Place, kind: FaultKind) -> None:
    job_flags = {
        "train_steps": STEPS, "save_steps": 10_000 if place is Place.LAST_SAVE else 10, "drain_timeout_s": 4,
        "checkpoint_dir": tmp_path / "c", **({"keep_best": "min:loss"} if place is Place.BEST else {}),
    }  # fmt: skip
    code = code_at(place, kind)
    with cluster(zygote, tmp_path, **job_flags) as job:
        chief = job.start_worker(0, MODEL, fault(place, FEW[kind]))
        require(chief, place, kind, FEW[kind])
        assert LOGGED.get(place, "") in chief.text
        if code == 75:
            assert job.start_worker(0, MODEL).wait() == 0
        is_done = code in (0, 75) or place is Place.EVALUATION
        assert job.ps[0].wait() == (0 if is_done else 1)
    saved = {Place.INITIAL: None, Place.FOLDER: None, Place.LAST_SAVE: 0}
    assert newest_step(str(tmp_path / "c")) == (STEPS if is_done else saved[place])


@pytest.fixture(scope="module")
def trained(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the checkpoints of a job."""
    folder = tmp_path_factory.mktemp("trained")
    with cluster(zygote, folder, train_steps=4, checkpoint_dir=folder / "c") as job:
        job.start_worker(0, MODEL)
        assert set(job.wait_all().values()) == {0}
    return str(folder / "c")


OF_COMMANDS = [
    pytest.param(command, *cell.values, id=f"{command}-{cell.id}", marks=cell.marks)
    for command in ("evaluate", "export")
    for cell in cells(OF_FILES if command == "export" else (Place.EVALUATOR,), 1, 2, 75)
]


def start_command(
    zygote: Zygote, folder: Path, checkpoints: str, command: str, place: Place, error: str, number: int = 0
) -> Proc:
    out = [f"--out={folder / 'exported'}", "--report"] if command == "export" else []
    argv = [command, f"--checkpoint-dir={checkpoints}", MODEL, fault(place, error), *out]
    return zygote.start(command, argv, folder / f"{number}.txt", [str(folder)])


@pytest.mark.parametrize(("command", "place", "kind"), OF_COMMANDS)
def test_what_fails_in_a_command(
    zygote: Zygote, tmp_path: Path, trained: str, command: str, place: Place, kind: FaultKind
) -> None:
    proc = start_command(zygote, tmp_path, trained, command, place, FEW[kind])
    require(proc, place, kind, FEW[kind])
    assert not (tmp_path / "exported").exists()


@pytest.mark.long
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("place", [Place.BUILD, Place.EVALUATOR])
def test_every_error_ends_a_command_with_its_code(
    zygote: Zygote, tmp_path: Path, trained: str, place: Place, share: int
) -> None:
    cells = errors_at(place, 1, 2, 75)[share::SHARES]
    for first in range(0, len(cells), AT_ONCE):
        beside = cells[first : first + AT_ONCE]
        procs = [
            start_command(zygote, tmp_path, trained, "evaluate", place, error, number)
            for number, (_, _, error) in enumerate(beside, start=first)
        ]
        for proc, cell in zip(procs, beside, strict=True):
            require(proc, *cell)


@pytest.mark.parametrize(("place", "kind"), cells((Place.EVALUATOR,), 1, 2, 75))
def test_what_fails_in_an_evaluator(zygote: Zygote, tmp_path: Path, place: Place, kind: FaultKind) -> None:
    with cluster(zygote, tmp_path, train_steps=1_000_000, checkpoint_dir=tmp_path / "c", save_steps=50) as job:
        job.start_worker(0, MODEL)
        job.wait_for_phase(Phase.TRAINING)
        evaluator = zygote.start(
            "evaluator",
            ["evaluator", f"--coordinator={job.coordinator}", MODEL, fault(place, FEW[kind])],
            tmp_path / "evaluator.log",
            [str(tmp_path)],
        )
        require(evaluator, place, kind, FEW[kind])
        assert job.status().phase is Phase.TRAINING
        end(job)


@pytest.mark.long
def test_a_warm_start_that_cannot_be_read(zygote: Zygote, tmp_path: Path, trained: str) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "warm"))
    path = CheckpointList(str(folder)).require_newest()
    index, whole = Path(f"{path}.index"), Path(f"{path}.index").read_bytes()
    with cluster(zygote, tmp_path, train_steps=4, warm_start=path) as job:
        for kind, damage in {
            FaultKind.MACHINE: partial(make_unreadable, opens=False), FaultKind.PATH: Path.unlink,
            FaultKind.CODE: lambda file: file.write_bytes(b"no index"),
        }.items():  # fmt: skip
            damage(index)
            worker = job.start_worker(0, MODEL)
            assert worker.wait() == code_at(Place.WARM_START, kind), worker.text
            said = worker.wait_for(" error ")
            assert f"--warm-start {path} " in said and " crash " not in worker.text
            index.unlink(missing_ok=True)
            index.write_bytes(whole)
        job.start_worker(0, MODEL)
        assert job.ps[0].wait() == 0


BAD_CHECKPOINTS: dict[FaultKind, Callable[[Path], None]] = {
    FaultKind.MACHINE: make_unreadable,
    FaultKind.PATH: make_folder,
    FaultKind.CODE: cut_in_half,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", BAD_CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_restored(zygote: Zygote, tmp_path: Path, kind: FaultKind) -> None:
    folder = tmp_path / "c"
    with cluster(zygote, tmp_path, train_steps=8, save_steps=4, checkpoint_dir=folder) as job:
        job.start_worker(0, MODEL)
        assert set(job.wait_all().values()) == {0}
    BAD_CHECKPOINTS[kind](folder / "model.ckpt-8.data-00000-of-00001")
    logs = tmp_path / "again"
    logs.mkdir()
    with cluster(zygote, logs, train_steps=12, checkpoint_dir=folder) as job:
        chief = job.start_worker(0, MODEL)
        assert set(job.wait_all().values()) == {code_at(Place.RESTORE, kind)}, chief.text
        if code_at(Place.RESTORE, kind):
            said = chief.wait_for(" error ")
            assert "model.ckpt-8 cannot be read: " in said and "Input/output error" in said
            assert newest_step(str(folder)) == 8
            return
        assert "instead=" + str(folder / "model.ckpt-4") in chief.text
        assert " restored global_step=4 " in chief.text
    assert newest_step(str(folder)) == 12


@pytest.mark.long
def test_what_cannot_be_opened_to_observe_a_job(zygote: Zygote, tmp_path: Path) -> None:
    """A path that leads to no file is refused; a disk that fails costs the record, and not the training."""
    make_unreadable(tmp_path / "rounds.jsonl", opens=False)
    make_unreadable(tmp_path / "record-0.jsonl", opens=False)
    make_folder(tmp_path / "folder-1.jsonl")
    settings = {"mode": "sync", "train_steps": STEPS, "rounds_log": tmp_path / "rounds.jsonl"}
    with cluster(zygote, tmp_path, **settings) as job:
        refused = job.start_worker(1, MODEL, f"--record={tmp_path / 'folder.jsonl'}")
        assert refused.wait() == code_at(Place.OPENING, FaultKind.PATH), refused.text
        assert f"record {tmp_path / 'folder-1.jsonl'} cannot be written: Is a directory" in refused.wait_for(" error ")
        worker = job.start_worker(0, MODEL, f"--record={tmp_path / 'record.jsonl'}")
        assert worker.wait() == code_at(Place.OPENING, FaultKind.MACHINE), worker.text
        assert job.ps[0].wait() == 0
        require_counted(worker, "record_failed", "records_lost")
        require_counted(job.ps[0], "rounds_log_failed", "records_lost")
    argv = ["ps", "--index=0", "--coordinator=127.0.0.1:0", "--mode=sync", f"--rounds-log={tmp_path}"]
    ps = zygote.start("ps-refused", argv, tmp_path / "refused.log", [str(tmp_path)])
    assert ps.wait() == code_at(Place.OPENING, FaultKind.PATH), ps.text
    assert f"rounds log {tmp_path} cannot be written: Is a directory" in ps.text


def require_counted(proc: Proc, event: str, count: str) -> None:
    """The log has a line of the first loss and one of how many there were, and no more."""
    first, last = (line for line in proc.text.splitlines() if f" {event} " in line)
    assert "reason=" in first and count not in first
    assert int(re.findall(rf"{count}=(\d+)", last)[0]) > 1


@pytest.mark.long
@pytest.mark.parametrize("kind", FATES[Place.OBSERVING])
def test_what_cannot_be_written_to_observe_a_job(zygote: Zygote, tmp_path: Path, kind: FaultKind) -> None:
    summaries = tmp_path / "c" / "workers"
    summaries.parent.mkdir()
    if kind is FaultKind.MACHINE and worlds.refusal():
        pytest.skip(worlds.refusal())
    with ExitStack() as stack:
        if kind is FaultKind.MACHINE:
            stack.enter_context(small_disk(summaries, "64k")).fill()
        else:
            summaries.write_text("no folder")
        make_full(tmp_path / "rounds.jsonl")
        make_full(tmp_path / "record-0.jsonl")
        settings = {
            "mode": "sync", "train_steps": STEPS, "rounds_log": tmp_path / "rounds.jsonl", "summary_steps": 5,
            "summary_workers": "all", "checkpoint_dir": tmp_path / "c",
        }  # fmt: skip
        job = stack.enter_context(cluster(zygote, tmp_path, **settings))
        worker = job.start_worker(0, MODEL, f"--record={tmp_path / 'record.jsonl'}")
        assert worker.wait() == code_at(Place.OBSERVING, kind), worker.text
        assert job.ps[0].wait() == 0
        require_counted(worker, "record_failed", "records_lost")
        require_counted(worker, "summaries_failed", "summaries_lost")
        require_counted(job.ps[0], "rounds_log_failed", "records_lost")
        assert " crash " not in worker.text
    assert newest_step(str(tmp_path / "c")) == STEPS


WITHOUT_AN_END = """
import threading
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import model_fn

def wait_for_ever(value):
    threading.Event().wait()

def input_fn(context):
    dataset = models.input_fn(context)
    if context.mode == "eval":
        never = tf1.data.Dataset.range(1).map(lambda i: tf1.ensure_shape(
            tf1.numpy_function(wait_for_ever, [i], tf1.float32), [8, 4]))
        dataset = dataset.concatenate(never.map(lambda x: (x, tf1.ones([8]))))
    return dataset
"""


@pytest.mark.long
def test_an_evaluation_whose_next_batch_never_comes_ends_at_its_limit(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(WITHOUT_AN_END)
    with cluster(zygote, tmp_path, train_steps=STEPS, drain_timeout_s=2, checkpoint_dir=tmp_path / "c") as job:
        worker = job.start_worker(0, "--model=endless")
        assert worker.wait() == 1
        assert job.ps[0].wait() == 0
    said = worker.wait_for(" error ")
    assert "the job is done, and saved in " in said
    assert "it did not end within 10 s (5 times --drain-timeout): 1 batches, 8 examples" in said
    assert newest_step(str(tmp_path / "c")) == STEPS
