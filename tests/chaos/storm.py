"""Random faults on a running job, one after the other.

Everybody who is killed is started again, and everybody who is paused goes on, so the job can always go on, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.errors import PsRuntimeError
from tests.chaos.surroundings import AWAY, Surroundings
from tests.support import worlds
from tests.support.away import Away
from tests.support.cluster import Cluster, Proc
from tests.support.faults import Faults
from tests.support.gates import Gates
from tests.support.polling import poll_until
from tests.support.small_disk import SmallDisk

NUM_PS = 2
DOWN_S = 1.0  # from a kill to the restart, at most
PAUSE_LEASES = 2.0  # at most
ARRIVE_S = 3.0  # for the victim to come to its gate: it may wait elsewhere, for others
SETTLE_S = 120.0
HOLD_LEASES = 4.0  # at most
FULL_S = CUT_S = BLIND_S = UNRESOLVED_S = 6.0  # at most
SILENT_S = 150.0
CLOCK_S = 3600
WEIGHTS = {
    "kill": 20, "pause": 20, "hold": 10, "suspend": 10, "fill": 10, "cut": 10, "clock": 5, "blind": 5, "unresolved": 5,
    "silence": 0.5,
}  # fmt: skip
OF_WORKER = ("anywhere", "draw", "compute", "stepped")  # moments; the names of gates
OF_PS = ("anywhere", "apply-kernel", "apply-head", "tear-kernel", "tear-head")


class Storm:
    """The model is that of tests/support/gated.py.  Without surroundings only processes are struck.

    told: a line for each fault.  silent: nobody can expect a step now.
    """

    def __init__(
        self, job: Cluster, gates: Gates, seed: int, workers: int, surroundings: Surroundings | None = None
    ) -> None:
        self.faults = Faults(job)
        self.told: list[str] = []
        self.silent = False
        self._surroundings = surroundings
        self._job = job
        self._gates = gates
        self._random = random.Random(seed)
        self._victims = [("ps", i) for i in range(NUM_PS)] + [("worker", i) for i in range(workers)]
        self._kinds = self._possible()

    def strike(self) -> None:
        """One fault.  Returns when it is over: the victim is started again, or goes on."""
        self.check_alive()
        kind = self._random.choices(list(self._kinds), [WEIGHTS[kind] for kind in self._kinds])[0]
        self._kinds[kind]()

    def lose_ps(self) -> None:
        """Kills the ps that does not host the coordinator, at any moment, and starts it again."""
        self.check_alive()
        victim = self._job.latest("ps", NUM_PS - 1)
        self.told.append(f"kill {victim.name} at anywhere")
        self.faults.kill(victim)
        self.faults.restart(victim)

    def _possible(self) -> dict[str, Callable[[], None]]:
        """The kinds of fault that there can be in these surroundings."""
        kinds: dict[str, Callable[[], None]] = {
            "kill": partial(self._hit, "kill"), "pause": partial(self._hit, "pause"), "hold": self._hold,
            "suspend": self._suspend,
        }  # fmt: skip
        if around := self._surroundings:
            kinds["silence"] = self._silence
            if around.disk:
                kinds["fill"] = partial(self._fill, around.disk)
            if around.machine:
                kinds["cut"] = partial(self._cut, around.machine)
            if around.has_clocks:
                kinds["clock"] = partial(self._set_clocks, around)
            if not worlds.refusal():
                kinds["blind"] = partial(self._blind, around)
                kinds["unresolved"] = partial(self._unresolved, around)
        return kinds

    def _hit(self, kind: str) -> None:
        """Kills or pauses one process at some moment."""
        role, index = self._random.choice(self._victims)
        moment = self._random.choice(OF_PS if role == "ps" else OF_WORKER)
        victim = self._job.latest(role, index)
        gate = moment if role == "ps" else f"{moment}-{index}"
        self.told.append(f"{kind} {victim.name} at {moment}")
        if moment != "anywhere":
            self._arrive(gate, victim if role == "worker" else None)
        lasts_s = self._random.uniform(0, DOWN_S if kind == "kill" else PAUSE_LEASES * self._job.settings.lease_s)
        (self.faults.kill if kind == "kill" else self.faults.stop)(victim)
        self._gates.open(gate)
        time.sleep(lasts_s)  # the fault itself
        (self.faults.restart if kind == "kill" else self.faults.cont)(victim)

    def _hold(self) -> None:
        """A worker stands still in its input, or in a step, while its heartbeats go on."""
        gate = f"{self._random.choice(OF_WORKER[1:])}-{self._random.choice(self._victims[NUM_PS:])[1]}"
        self.told.append(f"hold {gate}")
        self._arrive(gate, None)
        time.sleep(self._random.uniform(0, HOLD_LEASES * self._job.settings.lease_s))  # the fault itself
        self._gates.open(gate)

    def _suspend(self) -> None:
        """All processes of a machine stand still."""
        procs = [self._job.latest(*who) for who in AWAY]
        self.told.append(f"suspend {' '.join(proc.name for proc in procs)}")
        for proc in procs:
            self.faults.stop(proc)
        time.sleep(self._random.uniform(0, PAUSE_LEASES * self._job.settings.lease_s))  # the fault itself
        for proc in procs:
            self.faults.cont(proc)

    def _silence(self) -> None:
        """A step that takes minutes, and in which nothing is sent."""
        index = self._random.choice(self._victims[NUM_PS:])[1]
        self.told.append(f"silence worker-{index}")
        self._arrive(f"compute-{index}", None)
        self.silent = True
        time.sleep(SILENT_S)  # the fault itself
        self._gates.open(f"compute-{index}")
        self.silent = False

    def _fill(self, disk: SmallDisk) -> None:
        """Nothing more can be written into the folder of the checkpoints."""
        self.told.append("fill disk")
        disk.fill()
        time.sleep(self._random.uniform(0, FULL_S))  # the fault itself
        disk.free()

    def _cut(self, machine: Away) -> None:
        """One direction of the link between the machines."""
        direction = self._random.choice(("from", "to"))
        self.told.append(f"cut {direction} away")
        (machine.cut_from if direction == "from" else machine.cut_to)()
        time.sleep(self._random.uniform(0, CUT_S))  # the fault itself
        machine.mend()

    def _set_clocks(self, around: Surroundings) -> None:
        """Forward or back, from now on."""
        seconds = self._random.randint(-CLOCK_S, CLOCK_S)
        self.told.append(f"clock by {seconds}")
        around.set_clocks(seconds)

    def _blind(self, around: Surroundings) -> None:
        """A worker comes back where the folder of the checkpoints is empty, and again where it is not."""
        victim = self._job.latest(*self._random.choice(self._victims[NUM_PS:]))
        self.told.append(f"blind {victim.name}")
        self.faults.kill(victim)
        blind = around.start_blind(self._job, victim)
        time.sleep(self._random.uniform(0, BLIND_S))  # the fault itself
        self.check_alive()
        self.faults.kill(blind)
        around.check_nothing_hidden()
        self.faults.restart(blind)

    def _unresolved(self, around: Surroundings) -> None:
        """A worker comes back before the name of the coordinator is known."""
        victim = self._job.latest(*self._random.choice(self._victims[NUM_PS:]))
        self.told.append(f"unresolved {victim.name}")
        self.faults.kill(victim)
        started, make_known = around.start_unresolved(self._job, victim)
        started.wait_for(" unresolved ")
        time.sleep(self._random.uniform(0, UNRESOLVED_S))  # the fault itself
        make_known()

    def settle(self) -> None:
        """Until everybody is a member and every worker trains."""
        first: dict[str, int] = {}  # incarnation -> pushes when it was first seen

        def trains() -> bool:
            self.check_alive()
            status = status_of(self._job)
            if status is None or status.phase is not Phase.TRAINING or len(status.members) != len(self._victims):
                return False
            made = {m.incarnation: m.worker_stats.pushes for m in status.members if m.worker_stats}
            return all(
                made.get(m.incarnation, 0) > first.setdefault(m.incarnation, made.get(m.incarnation, 0)) + 1
                for m in status.members
                if m.role is Role.WORKER
            )

        poll_until(trains, SETTLE_S, "a job in which everybody trains")

    def check_alive(self) -> None:
        """Nobody has ended but by a kill."""
        ended = {proc.name: proc.code for proc in self._job.procs if proc.code not in (None, -9)}
        assert not ended, f"ended by themselves: {ended}, after {self.told}"

    def _arrive(self, gate: str, victim: Proc | None) -> None:
        self._gates.close(gate)
        until_s = time.monotonic() + ARRIVE_S
        while not self._gates.stands(gate, victim) and time.monotonic() < until_s:
            time.sleep(0.005)


def status_of(job: Cluster) -> JobStatus | None:
    """None while ps 0 is away."""
    try:
        return job.status()
    except PsRuntimeError:
        return None


def end_codes(procs: Sequence[Proc]) -> dict[str, int | None]:
    """Of those that have ended otherwise than a job's processes may: with 0, or killed."""
    return {proc.name: proc.code for proc in procs if proc.code not in (0, -9)}
