"""What the processes of a job run in, where a test can trouble it: a second machine, a small disk, clocks, names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support import away, worlds
from tests.support.away import Away
from tests.support.cluster import Cluster, Proc
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.worlds import World

CLOCK = Path(__file__).parent / "clock.c"
HOSTS = "/etc/hosts"
AWAY = (("ps", 1), ("worker", 2))  # on the second machine, where there is one


def no_compiler() -> str:
    """Why no process can have a clock of its own here; empty if it can."""
    return "" if shutil.which("cc") else "needs a C compiler, cc"


class Surroundings:
    """Of one job.  folder: of its logs; what is made lies in it, until the stack is closed.

    settings: what the job has to be told, beside its own.
    machine: the second one.  disk: of the checkpoints.  Each None until it is added.
    """

    def __init__(self, folder: Path, checkpoints: Path, stack: ExitStack) -> None:
        self.machine: Away | None = None
        self.disk: SmallDisk | None = None
        self.empty = folder / "empty"  # what is seen instead of the folder of the checkpoints by who is blind
        self._folder = folder
        self._checkpoints = checkpoints
        self._stack = stack
        self._worlds: dict[str, World] = {}
        self._clock = folder / "clock"
        self._names = 0

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"worlds": self._worlds}
        return settings | ({"host": self.machine.here} if self.machine else {})

    def add_machine(self) -> None:
        self.machine = self._stack.enter_context(away.away())
        for role, index in AWAY:
            self._worlds[f"{role}-{index}"] = World(network=self.machine.network)

    def add_disk(self) -> None:
        self.disk = self._stack.enter_context(small_disk(self._checkpoints))

    def add_clocks(self) -> None:
        """For ps 0 and worker 0."""
        library = self._folder / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK), "-ldl"], check=True)
        self.set_clocks(0)
        own = {"LD_PRELOAD": str(library), "PSRUNTIME_TEST_CLOCK": str(self._clock)}
        for name in ("ps-0", "worker-0"):
            self._worlds[name] = World(environment=own)

    def add_all(self) -> None:
        """Whatever is possible here."""
        if not away.refusal():
            self.add_machine()
        if not worlds.refusal():
            self.add_disk()
        if not no_compiler():
            self.add_clocks()

    @property
    def has_clocks(self) -> bool:
        return self._clock.exists()

    def set_clocks(self, seconds: int) -> None:
        """So far from the true time, from now on."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._clock)

    def start_blind(self, job: Cluster, proc: Proc) -> Proc:
        """The command of a process that is gone, where the folder of the checkpoints is empty."""
        self.empty.mkdir(exist_ok=True)
        with self._seen_by(job, proc, {str(self._checkpoints): str(self.empty)}):
            return job.start_again(proc)

    def check_nothing_hidden(self) -> None:
        """Who was blind has saved nothing that nobody else sees."""
        assert not self.empty.exists() or not list(self.empty.iterdir()), sorted(self.empty.iterdir())

    def start_unresolved(self, job: Cluster, proc: Proc) -> tuple[Proc, Callable[[], None]]:
        """The command of a worker that is gone, with a name of the coordinator that nobody knows yet.

        And what makes it known.
        """
        self._names += 1
        hosts, name = self._folder / f"hosts-{self._names}", f"psruntime-late-{self._names}.test"
        shutil.copy(HOSTS, hosts)
        host, _, port = job.coordinator.rpartition(":")
        role, index, _, *flags = proc.argv

        def make_known() -> None:
            with hosts.open("a") as file:
                file.write(f"{host} {name}\n")

        with self._seen_by(job, proc, {HOSTS: str(hosts)}):
            started = job.start(role, int(index.partition("=")[2]), f"--coordinator={name}:{port}", *flags)
        started.argv = proc.argv  # a successor knows the name that everybody knows
        return started, make_known

    @contextmanager
    def _seen_by(self, job: Cluster, proc: Proc, binds: Mapping[str, str]) -> Iterator[None]:
        """Who is started meanwhile in the place of this process sees other files; its successors do not."""
        name = proc.name.partition(".")[0]
        before = job.worlds.get(name, World())
        job.worlds[name] = replace(before, binds=binds)
        yield
        job.worlds[name] = before
