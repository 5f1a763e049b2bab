"""Who lacks the graph of the mode that comes: looked through anew whenever something of it has changed."""

from __future__ import annotations

from psruntime.core.coordinator.job_state import Unbuilt, WorkerBeats
from psruntime.core.members.membership import JudgedClock, Member, Membership, Role
from psruntime.core.members.messages import GraphsBuilt, WorkerBeat

PUSHES, BOTH = GraphsBuilt(pushes=True), GraphsBuilt(rounds=True, pushes=True)


class Workers:
    """Live ones, and what they say."""

    def __init__(self, count: int) -> None:
        self.members, self.beats, self.unbuilt = Membership(10.0, JudgedClock(0.0)), WorkerBeats(), Unbuilt()
        for index in range(count):
            self.join(index)

    def join(self, index: int) -> None:
        where = f"a:{index}"
        self.members.admit(Member(Role.WORKER, index, where, where, where, 100 + index))

    def say(self, index: int, graphs: GraphsBuilt, stopped: bool = False) -> None:
        self.beats.take(100 + index, WorkerBeat(view=1, stopped=stopped, graphs=graphs), 1, False)

    def late(self, mode: str = "sync", number: int = 1) -> list[int]:
        self.unbuilt.look(mode, number, self.members, self.beats)
        return self.unbuilt.late


def test_every_worker_that_steps_is_waited_for() -> None:
    workers = Workers(3)
    assert workers.late() == [0, 1, 2]
    for index in range(3):
        workers.say(index, PUSHES)
    assert workers.late() == [0, 1, 2] and workers.late("bounded") == [] and workers.late("") == []
    workers.say(0, BOTH)
    workers.say(1, PUSHES, stopped=True)
    assert workers.late() == [2]
    workers.join(3)
    assert workers.late() == [2, 3]
    workers.members.remove(workers.members.get(Role.WORKER, 2, 102))
    workers.beats.forget(102)
    assert workers.late() == [3]


def test_a_failure_counts_for_the_change_of_which_it_is() -> None:
    workers = Workers(2)
    workers.say(0, PUSHES)
    workers.say(1, GraphsBuilt(False, True, "no optimizer", 1))
    assert workers.late(number=2) == [0, 1] and workers.unbuilt.failed is None
    assert workers.late(number=1) == [0, 1] and workers.unbuilt.failed == (1, "no optimizer")
    workers.say(1, BOTH)
    assert workers.late(number=1) == [0] and workers.unbuilt.failed is None
