"""One hardship: trouble that kills nobody by itself, on a job that trains; and whether it came out as promised.

hardships.md has the table.  ps 1 and worker 2 are `away`, where a hardship needs a second machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tests.chaos.cells import MODE_SETTINGS, RESTORED, chief
from tests.chaos.storm import Storm
from tests.chaos.surroundings import AWAY, Surroundings, no_compiler
from tests.support import away, inventory, worlds
from tests.support.away import Away
from tests.support.census import take_census
from tests.support.cluster import Proc, Zygote, cluster, replayed
from tests.support.gates import DYNAMIC, GROUPED, Gates, write_model
from tests.support.inventory import newest_checkpoint
from tests.support.polling import poll_until
from tests.support.tables import rows_of

TABLE = Path(__file__).parent / "hardships.md"
COLUMNS = ["hardship", "mode", "steps", "lost", "chief", "said", "why"]
WORKERS = 3
LEASE_S = 2.0
SAVE_STEPS = 20
BEGIN_STEPS = 50
PACE_S = 0.05
SILENT_S = 150.0
SUSPENDED_S = 60.0
CUT_S = 15.0
HANGS_S = 12.0  # where nobody but the job waits for it
HOUR_S = 3600
LONG_S = 90.0
END_S = 120.0
SIZES = dict.fromkeys(range(WORKERS), 8)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Promise:
    """One row; the table says what the columns mean."""

    hardship: str
    mode: str
    steps: str
    lost: str
    chief: str
    said: str
    why: str

    @property
    def name(self) -> str:
        return f"{self.hardship} - {self.mode}"


@dataclass
class Endured:
    """What became of it."""

    lasted_s: float = 0.0
    steps: int = 0  # of the last checkpoint
    largest: float | None = None  # difference to the replay, mode sync
    seconds: float = 0.0


class Hardship:
    """`run` raises AssertionError where the outcome is another than promised."""

    def __init__(self, promise: Promise, zygote: Zygote, folder: Path) -> None:
        self.promise = promise
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.gates = Gates(folder / "gates")
        self.killed: list[Proc] = []
        self._zygote = zygote
        self._seen = Endured()

    def run(self) -> Endured:
        began_s = time.monotonic()
        kind, mode = KINDS[self.promise.hardship], self.promise.mode
        settings = {
            "mode": mode, "ps": 2, "min_workers": WORKERS, "lease_s": LEASE_S, "ps_timeout_s": 180, "link_timeout_s": 3,
            "checkpoint_dir": self.checkpoints, "save_steps": SAVE_STEPS, "keep": 1_000_000, **MODE_SETTINGS[mode],
        }  # fmt: skip
        log = self.folder / "rounds.jsonl"
        if mode == "sync":
            settings |= {"rounds_log": log, "round_warn_s": 5}
        tables = [GROUPED] if mode == "sync" else [GROUPED, DYNAMIC]  # the replay does not know dynamic ones
        self.model = write_model(self.folder, self.gates.folder, "momentum", tables=tables)
        with ExitStack() as stack:
            self.surroundings = Surroundings(self.folder, self.checkpoints, stack)
            kind.surround(self.surroundings)
            with cluster(self._zygote, self.folder, **settings, **self.surroundings.settings) as self.job:
                self._endure(kind.strike)
            if mode == "sync":
                flags = [f"--model={self.model}", f"--checkpoint-dir={self.checkpoints}"]
                differences = replayed(self._zygote, self.folder, log, SIZES, *flags)["differences"]
                self._seen.largest = max(differences.values())
                assert self._seen.largest < TOLERANCE
        self._seen.seconds = round(time.monotonic() - began_s, 1)
        return self._seen

    def _endure(self, strike: Callable[[Hardship], None]) -> None:
        for index in range(WORKERS):
            self.job.start_worker(index, f"--model={self.model}", f"--batch-size={SIZES[index]}")
        self._begin()
        struck_s = time.monotonic()
        strike(self)
        self._seen.lasted_s = round(time.monotonic() - struck_s, 1)
        Storm(self.job, self.gates, 0, WORKERS).settle()
        self._check()
        take_census(self.job, self._zygote, self.gates, list(range(WORKERS))).check()
        self.gates.set_pace(0.0)
        self.gates.close("stop")
        self.job.wait_all(END_S)
        self._check_end()

    # For the kinds.

    def kill(self, *procs: Proc) -> None:
        for proc in procs:
            proc.kill()
            self.killed.append(proc)

    @contextmanager
    def held(self, place: str, index: int) -> Iterator[None]:
        """This worker stands at this place of its step."""
        gate = f"{place}-{index}"
        self.gates.close(gate)
        self.gates.wait_at(gate, self.job.latest("worker", index))
        yield
        self.gates.open(gate)

    def since(self, proc: Proc) -> str:
        """What a process has logged since the hardship began."""
        return proc.text[self._marks.get(proc.name, 0) :]

    def wait_for(self, proc: Proc, text: str) -> None:
        """Until a process has logged this since the hardship began."""
        poll_until(lambda: text in self.since(proc), LONG_S, f"'{text}' of {proc.name}")

    # Before and after.

    def _begin(self) -> None:
        self.job.wait_for_step(BEGIN_STEPS, LONG_S)
        poll_until(lambda: (newest_checkpoint(self.checkpoints) or ("", 0))[1] > 0, LONG_S, "a checkpoint")
        self.gates.set_pace(PACE_S)
        self.chief = chief(self.job)
        self._marks = {proc.name: len(proc.text) for proc in self.job.procs}

    def _check(self) -> None:
        promise, text = self.promise, self._text_of("ps-0")
        lost = set(re.findall(r'(?:member_lost|cut_off) member="(.*?)"', text))
        killed = {name_of(proc) for proc in self.killed}
        expected = {
            "nobody": set(), "chief": {f"worker {self.chief}"}, "away": {f"{role} {index}" for role, index in AWAY},
            "killed": killed,
        }[promise.lost]  # fmt: skip
        assert lost == expected or (promise.lost == "killed" and lost < expected), lost
        if promise.chief != "may change":
            assert (chief(self.job) != self.chief) == (promise.chief == "changes")
        undone = [int(steps) for steps in re.findall(r" prepared .*steps_lost=(\d+)", text)]
        restored = re.findall(RESTORED, self._text_of("worker"))
        if promise.steps != "may roll back":
            assert bool(restored) == (promise.steps == "rolled back"), restored
        assert restored or not any(undone), undone
        if promise.said != "-":
            who, said = promise.said.split(": ")
            if who == "nobody":
                assert not any(said in self.since(proc) for proc in self.job.procs)
            else:
                known = {"chief": f"worker-{self.chief}", "killed": self.killed[0].name if self.killed else ""}
                text = self._text_of(known.get(who, who))
                assert said in text, text

    def _check_end(self) -> None:
        job = self.job
        strange = {proc.name: proc.code for proc in job.procs if proc.code != (-9 if proc in self.killed else 0)}
        assert not strange, strange
        for index in range(2):
            assert "balanced=True" in job.latest("ps", index).wait_for(" ledger ")
        assert not any("Traceback" in proc.text or " defect " in proc.text for proc in job.procs)
        saved = newest_checkpoint(self.checkpoints)
        assert saved
        assert inventory.of_checkpoint(self._zygote, self.folder, saved[0]).values["global_step"] == [saved[1]]
        self._seen.steps = saved[1]

    def _text_of(self, name: str) -> str:
        """Of all processes whose name begins so."""
        return "".join(self.since(proc) for proc in self.job.procs if proc.name.startswith(name))


def name_of(proc: Proc) -> str:
    """As the coordinator says it."""
    return proc.name.partition(".")[0].replace("-", " ")


@dataclass(frozen=True)
class Kind:
    """strike: begins it, and returns when it is over.  surround: adds what it needs.

    needs: why it is not possible here; empty if it is.
    """

    strike: Callable[[Hardship], None]
    surround: Callable[[Surroundings], None] = field(default=lambda _: None)
    needs: Callable[[], str] = field(default=lambda: "")


def silent(hardship: Hardship) -> None:
    with hardship.held("compute", next(index for index in range(WORKERS) if index != hardship.chief)):
        time.sleep(SILENT_S)  # the silence


def input_hangs(hardship: Hardship) -> None:
    with hardship.held("draw", hardship.chief):
        if hardship.promise.chief == "changes":
            hardship.wait_for(hardship.job.ps[0], " cut_off ")
            poll_until(lambda: chief(hardship.job) != hardship.chief, LONG_S, "another chief")
        else:
            time.sleep(HANGS_S)  # the hardship itself


def suspended(hardship: Hardship) -> None:
    faults = Storm(hardship.job, hardship.gates, 0, WORKERS).faults
    procs = [hardship.job.latest(*who) for who in AWAY]
    for proc in procs:
        faults.stop(proc)
    time.sleep(SUSPENDED_S)  # the hardship itself
    for proc in procs:
        faults.cont(proc)


def cut(direction: Callable[[Away], None]) -> Callable[[Hardship], None]:
    def strike(hardship: Hardship) -> None:
        machine = hardship.surroundings.machine
        assert machine
        direction(machine)
        for role, index in AWAY:
            hardship.wait_for(hardship.job.ps[0], f'member_lost member="{role} {index}"')
        time.sleep(CUT_S)  # the hardship itself
        machine.mend()

    return strike


def disk_is_full(hardship: Hardship) -> None:
    disk, job = hardship.surroundings.disk, hardship.job
    assert disk
    disk.fill()
    hardship.wait_for(job.latest("worker", hardship.chief), " checkpoint_failed ")
    job.wait_for_step(job.status().global_step + SAVE_STEPS, LONG_S)
    disk.free()
    newest = (newest_checkpoint(hardship.checkpoints) or ("", 0))[1]
    poll_until(lambda: (newest_checkpoint(hardship.checkpoints) or ("", 0))[1] > newest, LONG_S, "a new checkpoint")


def sees_another_folder(hardship: Hardship) -> None:
    """The chief dies and comes back where the folder is empty; then the next view has to be prepared."""
    job, (other, last) = hardship.job, [index for index in range(WORKERS) if index != hardship.chief]
    first = job.latest("worker", hardship.chief)
    hardship.kill(first)
    hardship.surroundings.start_blind(job, first).wait_for(" first_step ", LONG_S)
    hardship.kill(*(job.latest("worker", index) for index in (other, last)), job.latest("ps", 1))
    poll_until(lambda: chief(job) == hardship.chief, LONG_S, "the one that sees nothing as chief")
    job.start_again(job.latest("worker", last))
    job.start_again(job.latest("ps", 1))
    hardship.wait_for(job.ps[0], f" relieved worker={hardship.chief} ")
    poll_until(lambda: chief(job) == last, LONG_S, "another chief")
    job.start_again(job.latest("worker", other))
    hardship.surroundings.check_nothing_hidden()


def name_is_late(hardship: Hardship) -> None:
    job, index = hardship.job, next(index for index in range(WORKERS) if index != hardship.chief)
    first = job.latest("worker", index)
    hardship.kill(first)
    worker, make_known = hardship.surroundings.start_unresolved(job, first)
    worker.wait_for(" unresolved ", LONG_S)
    make_known()
    worker.wait_for(" first_step ", LONG_S)


def clocks_are_set_back(hardship: Hardship) -> None:
    hardship.surroundings.set_clocks(-HOUR_S)
    before = datetime.now(timezone.utc) - timedelta(seconds=HOUR_S)
    worker = hardship.job.latest("worker", 0)

    def is_back() -> bool:
        times = re.findall(r"^(\S+)Z worker 0 progress ", hardship.since(worker), re.MULTILINE)
        return any(abs(datetime.fromisoformat(f"{time}+00:00") - before) < timedelta(minutes=5) for time in times)

    poll_until(is_back, LONG_S, "a line of worker 0 with the clock set back")
    hardship.job.wait_for_step(hardship.job.status().global_step + 3 * SAVE_STEPS, LONG_S)


KINDS: Mapping[str, Kind] = {
    "a step of 150 s": Kind(silent),
    "the chief's input hangs": Kind(input_hangs),
    "away is suspended for a minute": Kind(suspended),
    "what away sends is lost": Kind(cut(Away.cut_from), Surroundings.add_machine, away.refusal),
    "what is sent to away is lost": Kind(cut(Away.cut_to), Surroundings.add_machine, away.refusal),
    "the disk is full": Kind(disk_is_full, Surroundings.add_disk, worlds.refusal),
    "the next chief sees another folder": Kind(sees_another_folder, needs=worlds.refusal),
    "a name is known late": Kind(name_is_late, needs=worlds.refusal),
    "clocks are set back an hour": Kind(clocks_are_set_back, Surroundings.add_clocks, no_compiler),
}


def read_promises() -> dict[str, Promise]:
    """The rows of the table by their names."""
    promises = [Promise(*row) for row in rows_of(TABLE, COLUMNS)]
    assert all(promise.hardship in KINDS for promise in promises), promises
    return {promise.name: promise for promise in promises}
