"""Gates: places in a test's model at which a process can be held, and is seen to stand.

A gate is a file in a folder that the model knows; it is closed while the file is there.  Whoever comes to a closed
gate leaves a mark, and takes it away when it goes on.  So a test steers the moment of a fault from outside:

    gates.close("compute-1")
    gates.wait_at("compute-1", worker)  # it has pulled, and waits there
    faults.kill(worker)
    gates.open("compute-1")

On a ps no Python of the test runs; there a gate is made of files that operations of TensorFlow read and write.

tests/support/gated.py says which gates there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.cluster import Proc
from tests.support.polling import poll_until

CLOSED, MARK = ".closed", ".mark"
READ, VALUES = ".read", ".values"  # an order to read the variables, and what was read
OPTIMIZERS = ("sgd", "momentum", "adam")  # that the model of gated.py may have
GROUPED, DYNAMIC = "grouped", "dynamic"  # tables that the model of gated.py may have
UNSEEN = 0.05  # each entry of the initial rows of the dynamic one
ON_PS = ("apply-kernel", "apply-head")
PIPES = (".in", ".out")
LOOK_S = 0.005
WAIT_S = 60.0


class Gates:
    """The test's side of the gates in a folder, which is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._on_ps = {name: _PsGate(folder / name) for name in ON_PS}

    def close(self, *names: str) -> None:
        for name in names:
            if name in ON_PS:
                self._on_ps[name].close()
            else:
                self._mark(name).unlink(missing_ok=True)  # of a process that was killed there
                self._closed(name).touch()

    def open(self, *names: str) -> None:
        for name in names:
            if name in ON_PS:
                self._on_ps[name].open()
            else:
                self._closed(name).unlink(missing_ok=True)

    def open_all(self) -> None:
        self.open(*(path.name.removesuffix(CLOSED) for path in self.folder.glob(f"*{CLOSED}")), *ON_PS)

    def stands(self, name: str, proc: Proc | None = None) -> bool:
        """Whether a process stands at the gate; this one, if it is given."""
        if name in ON_PS:
            return self._on_ps[name].stands()
        try:
            who = self._mark(name).read_text()
        except FileNotFoundError:
            return False
        return proc is None or who == str(proc.pid)

    def wait_at(self, name: str, proc: Proc | None = None, timeout_s: float = WAIT_S) -> None:
        whom = proc.name if proc else "somebody"
        poll_until(lambda: self.stands(name, proc), timeout_s, f"{whom} at the gate {name}")

    def let_one_pass(self, name: str, timeout_s: float = WAIT_S) -> None:
        """Who stands there goes on, and the next time the gate is closed again.  Not for a gate on a ps."""
        self.open(name)
        poll_until(lambda: not self.stands(name), timeout_s, f"the gate {name} to be passed")
        self.close(name)

    def set_pace(self, step_s: float, worker: int | None = None) -> None:
        """From now on a computation takes at least so long; of this worker alone, if one is named."""
        new = self.folder / "pace.new"
        new.write_text(str(step_s))
        new.rename(self.folder / ("pace" if worker is None else f"pace-{worker}"))

    def _closed(self, name: str) -> Path:
        return self.folder / f"{name}{CLOSED}"

    def _mark(self, name: str) -> Path:
        return self.folder / f"{name}{MARK}"


class _PsGate:
    """The test's side of a gate on a ps: a file, and the two that it names, which the ps writes to one after the other.

    An open gate names nothing, and both are /dev/null.  Closed, it names two pipes: what comes through the first says
    that an update has arrived, and who opens the second waits for its reader.  A new pair each time, so that an update
    finds all of one or all of another.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pairs = 0
        self._arrived = False
        self._readers: list[int] = []
        for end in PIPES:
            Path(f"{path}{end}").symlink_to(os.devnull)
        self._name("")

    def close(self) -> None:
        if len(self._readers) == 1:
            return
        self._pairs, self._arrived = self._pairs + 1, False
        for end in PIPES:
            os.mkfifo(self._pipe(end))
        while self._readers:
            os.close(self._readers.pop())
        self._readers.append(self._reader(PIPES[0]))
        self._name(f".{self._pairs}")

    def open(self) -> None:
        if len(self._readers) == 1:
            self._name("")
            self._readers.append(self._reader(PIPES[1]))  # for who stands, and who has yet to come by the pair

    def stands(self) -> bool:
        with suppress(BlockingIOError):
            self._arrived = self._arrived or bool(self._readers and os.read(self._readers[0], 1))
        return self._arrived and len(self._readers) == 1

    def _name(self, pair: str) -> None:
        new = Path(f"{self._path}.new")
        new.write_text(pair)
        new.rename(self._path)

    def _pipe(self, end: str) -> str:
        return f"{self._path}.{self._pairs}{end}"

    def _reader(self, end: str) -> int:
        return os.open(self._pipe(end), os.O_RDONLY | os.O_NONBLOCK)


def write_model(
    folder: Path, gates: Path, optimizer: str = "sgd", name: str = "gated_model", tables: Sequence[str] = ()
) -> str:
    """A module with the model of gated.py, next to the logs of a test; returns its name."""
    (folder / f"{name}.py").write_text(
        "from tests.support.gated import make\n"
        f"input_fn, model_fn = make({str(gates)!r}, {optimizer!r}, {list(tables)!r})\n"
        "__all__ = ['input_fn', 'model_fn']\n"
    )
    return name


def stand_at(folder: str, name: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The model's side: returns at once at an open gate, and at a closed one when it is opened."""
    closed, mark = f"{folder}/{name}{CLOSED}", f"{folder}/{name}{MARK}"
    if not os.path.exists(closed):
        return
    new = f"{mark}.{os.getpid()}"
    Path(new).write_text(str(os.getpid()))
    os.rename(new, mark)
    while os.path.exists(closed):
        meanwhile()
        time.sleep(LOOK_S)
    Path(mark).unlink(missing_ok=True)


def keep_pace(folder: str, worker: int) -> None:
    """The model's side of `set_pace`."""
    for name in (f"pace-{worker}", "pace"):
        with suppress(FileNotFoundError):
            time.sleep(float(Path(folder, name).read_text()))
            return
