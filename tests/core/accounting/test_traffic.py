"""Rates of the members, and who of the ps is told to carry too much, and when."""

from __future__ import annotations

from typing import Any

import pytest

from psruntime.core.accounting.traffic import HEAVY, LEAST_BYTES_PER_S, RELIEVED, WINDOW_S, TrafficRates, why_heavy
from psruntime.core.coordinator.answers import job_status
from psruntime.core.members.job_status import PsTraffic, WorkerTraffic
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import BytesMoved, PsBeat, PsStats, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase
from tests.core.coordinator.scenario import Scenario

MB = 1_000_000
BEAT_S = 3.0


def member(role: Role, index: int, incarnation: int) -> Member:
    return Member(role, index, "h:1", "h:2", "id", incarnation, 0.0, 0.0, 0.0)


class Job:
    """So many ps that beat every BEAT_S, each a while after the one before it; incarnation 100 + index."""

    def __init__(self, num_ps: int, lease_s: float = 9.0, empty: set[int] | None = None) -> None:
        """empty: the ps without buckets, where some may be so on purpose."""
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.empty = empty or set()
        self.traffic = TrafficRates(
            num_ps, lease_s, lambda name, **facts: self.told.append((name, facts)), some_empty=empty is not None
        )
        self.now_s = 1000.0  # of a clock that began long ago
        self.moved = [BytesMoved()] * num_ps

    def run(self, for_s: float, *rates: float, trains: bool = True) -> list[str]:
        """The names of what is told while the ps move so many bytes a second, half in and half out."""
        before, until_s = len(self.told), self.now_s + for_s
        while self.now_s < until_s:
            self.beat(*rates, trains=trains)
        return [f"{name} {facts['ps']}" for name, facts in self.told[before:]]

    def beat(self, *rates: float, trains: bool = True) -> None:
        for index, rate in enumerate(rates):
            self.now_s += BEAT_S / len(rates)
            last, more = self.moved[index], int(rate * BEAT_S / 2)
            self.moved[index] = BytesMoved(last.sent + more, last.received + more)
            self.tell(index, trains)

    def tell(self, index: int, trains: bool = True) -> None:
        stats = PsStats(moved=self.moved[index], buckets=int(index not in self.empty))
        self.traffic.update(member(Role.PS, index, 100 + index), stats, trains, self.now_s)

    def shares(self) -> list[float | None]:
        return [each.share for _, each in sorted(self.traffic.of_ps().items())]


def test_a_ps_has_a_rate_once_it_has_told_twice() -> None:
    job = Job(1)
    assert job.traffic.of_ps() == {}
    job.beat(4 * MB)
    assert job.traffic.of_ps() == {}
    job.beat(4 * MB)
    assert job.traffic.of_ps() == {100: PsTraffic(2 * MB, 2 * MB, 1.0)}


def test_directions_are_not_mixed_up() -> None:
    traffic = TrafficRates(1, 9.0, print)
    for now_s, moved in ((0.0, BytesMoved(10, 20)), (2.0, BytesMoved(110, 820))):
        traffic.update(member(Role.PS, 0, 1), PsStats(moved=moved), True, now_s)
    assert traffic.of_ps() == {1: PsTraffic(50.0, 400.0, 1.0)}


def test_rates_are_those_of_the_last_windows() -> None:
    job = Job(2)
    job.run(100, 9 * MB, 1 * MB)
    job.run(2 * WINDOW_S + 2 * BEAT_S, 1 * MB, 3 * MB)
    assert job.shares() == pytest.approx([0.25, 0.75])
    assert job.traffic.of_ps()[101].sent_per_s == pytest.approx(1.5 * MB)


def test_no_share_is_told_while_one_ps_is_not_known() -> None:
    job = Job(2)
    job.run(60, 5 * MB)
    assert job.shares() == [None] and not job.told


def test_an_even_job_is_told_nothing() -> None:
    job = Job(4)
    assert job.run(600, 5 * MB, 5 * MB, 5 * MB, 6 * MB) == []
    assert not any(each.heavy for each in job.traffic.of_ps().values())


def test_one_that_carries_too_much_is_told_of_once() -> None:
    job = Job(4)
    assert job.run(600, 1 * MB, 1 * MB, 1 * MB, 3 * MB) == ["ps_heavy 3"]
    facts = job.told[0][1]
    assert facts["share"] == "50%" and facts["bytes_per_s"] == 3 * MB
    assert "ps 3 carries 2.0 times its share of the traffic of 4 ps" in facts["reason"]
    assert "psruntime plan" in facts["reason"]
    assert [each.heavy for _, each in sorted(job.traffic.of_ps().items())] == [False, False, False, True]


@pytest.mark.parametrize(("times", "told"), [(HEAVY - 0.02, []), (HEAVY + 0.02, ["ps_heavy 0"])])
def test_the_limit_is_that_of_the_law(times: float, told: list[str]) -> None:
    assert Job(3).run(300, times * MB, (3 - times) / 2 * MB, (3 - times) / 2 * MB) == told


def test_two_of_many_may_be_heavy() -> None:
    assert Job(6).run(300, 5 * MB, 5 * MB, 1 * MB, 1 * MB, 1 * MB, 1 * MB) == ["ps_heavy 0", "ps_heavy 1"]


def test_one_ps_alone_is_never_heavy() -> None:
    assert Job(1).run(300, 500 * MB) == []


def test_a_ps_that_is_empty_on_purpose_has_no_share() -> None:
    assert Job(3, empty={1, 2}).run(300, 500 * MB, 0, 0) == []
    job = Job(4, empty={2, 3})
    assert job.run(300, 1 * MB, 4 * MB, 0, 0) == ["ps_heavy 1"]
    assert "ps 1 carries 1.6 times its share of the traffic of 2 ps" in job.told[0][1]["reason"]
    assert job.told[0][1]["share"] == "80%"
    assert job.run(300, 1 * MB, 1 * MB, 0, 0) == ["ps_relieved 1"]


def test_what_lasts_for_a_moment_is_not_told() -> None:
    job = Job(2)
    job.run(100, 5 * MB, 5 * MB)
    for _ in range(5):
        assert job.run(BEAT_S, 500 * MB, 1 * MB) == []
        assert job.run(4 * WINDOW_S, 5 * MB, 5 * MB) == []


def test_one_at_the_limit_does_not_flap() -> None:
    job = Job(2)
    above, below = (HEAVY + 0.1) * MB, (RELIEVED + 0.1) * MB
    assert job.run(100, above, 2 * MB - above) == ["ps_heavy 0"]
    for _ in range(5):
        assert job.run(60, below, 2 * MB - below) == []
        assert job.run(60, above, 2 * MB - above) == []


def test_the_end_of_it_is_told_and_the_next_one_too() -> None:
    job = Job(2)
    assert job.run(100, 9 * MB, 1 * MB) == ["ps_heavy 0"]
    assert job.run(100, 5 * MB, 5 * MB) == ["ps_relieved 0"]
    assert not any(each.heavy for each in job.traffic.of_ps().values())
    assert job.run(100, 1 * MB, 9 * MB) == ["ps_heavy 1"]
    assert job.run(100, 9 * MB, 1 * MB) == ["ps_relieved 1", "ps_heavy 0"]


def test_a_job_that_moves_next_to_nothing_is_not_judged() -> None:
    job = Job(2)
    assert job.run(300, 0.9 * LEAST_BYTES_PER_S, 0) == []
    assert job.run(100, 9 * MB, 1 * MB) == ["ps_heavy 0"]
    assert job.run(300, 0, 0.1 * LEAST_BYTES_PER_S) == [], "a pause is no relief"
    assert job.run(300, 9 * MB, 1 * MB) == []


def test_only_training_is_judged() -> None:
    job = Job(2)
    assert job.run(300, 9 * MB, 1 * MB, trains=False) == []
    for _ in range(5):
        job.run(WINDOW_S, 9 * MB, 1 * MB)
        assert job.run(BEAT_S, 9 * MB, 1 * MB, trains=False) == []
    assert job.told == []


def test_a_training_that_begins_is_even_although_the_ps_tell_of_it_at_different_times() -> None:
    for offset in range(12):
        job = Job(2)
        job.run(60 + offset, 0, 0)
        job.beat(0, 0)
        assert job.run(100, 5 * MB, 5 * MB) == []


def test_a_ps_that_came_late_is_not_compared_by_what_it_missed() -> None:
    job = Job(2)
    job.run(25, 5 * MB)
    assert job.run(100, 5 * MB, 5 * MB) == []


def test_a_ps_that_comes_back_begins_anew() -> None:
    job = Job(2)
    job.run(100, 5 * MB, 5 * MB)
    job.traffic.forget(101)
    assert set(job.traffic.of_ps()) == {100}
    job.moved[1] = BytesMoved()
    job.beat(5 * MB, 5 * MB)
    job.beat(5 * MB, 5 * MB)
    traffic = job.traffic.of_ps()[101]
    assert traffic.sent_per_s == pytest.approx(2.5 * MB)
    assert job.run(100, 5 * MB, 5 * MB) == []


def test_windows_hold_a_few_heartbeats_of_a_long_lease() -> None:
    job = Job(2, lease_s=90.0)
    job.run(89, 9 * MB, 1 * MB)
    assert job.run(60, 9 * MB, 1 * MB) == []
    assert job.run(200, 9 * MB, 1 * MB) == ["ps_heavy 0"]


def test_sums_that_fall_are_no_traffic() -> None:
    """No honest member tells such."""
    job = Job(2)
    job.run(30, 5 * MB, 5 * MB)
    job.moved[0] = BytesMoved()
    job.tell(0)
    assert job.traffic.of_ps()[100].sent_per_s == 0
    worker = member(Role.WORKER, 0, 1)
    for pushes in (10, 5):
        job.traffic.update(worker, WorkerStats(pushes=pushes, moved=BytesMoved(pushes, pushes)), True, job.now_s)
    assert job.traffic.of_worker(1) is None


def test_bytes_for_each_push_of_a_worker() -> None:
    traffic, worker = TrafficRates(1, 9.0, print), member(Role.WORKER, 0, 1)
    assert traffic.of_worker(1) is None
    for now_s, pushes, moved in ((0.0, 0, BytesMoved(1_000, 2_000)), (3.0, 0, BytesMoved(9_000, 9_000))):
        traffic.update(worker, WorkerStats(pushes=pushes, moved=moved), True, now_s)
        assert traffic.of_worker(1) is None
    traffic.update(worker, WorkerStats(pushes=40, moved=BytesMoved(49_000, 26_000)), True, 6.0)
    assert traffic.of_worker(1) == WorkerTraffic(48_000 / 40, 24_000 / 40)
    traffic.forget(1)
    assert traffic.of_worker(1) is None


def test_what_a_worker_moved_before_it_trained_is_forgotten_after_some_steps() -> None:
    traffic, worker = TrafficRates(1, 9.0, print), member(Role.WORKER, 0, 1)
    restored = 5_000 * MB
    for beat in range(200):  # a step in 3 s: LEAST_STEPS take longer than a window
        stats = WorkerStats(pushes=beat, moved=BytesMoved(100 * beat, 300 * beat + (restored if beat else 0)))
        traffic.update(worker, stats, True, 3.0 * beat)
    assert traffic.of_worker(1) == WorkerTraffic(100, 300)


def test_who_knows_nothing_is_not_there() -> None:
    traffic = TrafficRates(1, 9.0, print)
    for now_s in range(0, 60, 3):
        traffic.update(member(Role.PS, 0, 1), PsStats(), True, now_s)
        traffic.update(member(Role.WORKER, 0, 2), WorkerStats(pushes=now_s), True, now_s)
    assert traffic.of_ps() == {} and traffic.of_worker(2) is None


def test_what_to_do_is_said_in_one_line() -> None:
    assert why_heavy(2, 1.84, 3).startswith("ps 2 carries 1.8 times its share of the traffic of 3 ps")
    assert why_heavy(2, 1.84, 3).isprintable()


def test_the_coordinator_tells_it_in_its_log_and_its_status() -> None:
    job = Scenario("ps=2 lease_s=9 train_steps=1000000 job_id=j")
    for line in (
        "join ps 0 at=h:1",
        "join ps 1 at=h:2",
        "join worker 0 at=h:3",
        "beat ps 0",
        "beat ps 1",
        "beat worker 0",
    ):
        job.act(line)
    job.act("prepared worker 0 step=0")
    core, told = job.core, []
    assert core.state.phase is Phase.TRAINING
    for beat in range(30):
        job.now_s += BEAT_S
        for index, rate in enumerate((9 * MB, 1 * MB)):
            stats = PsStats(moved=BytesMoved(beat * rate, 2 * beat * rate))
            said = PsBeat(core.state.fence.revision, core.state.view.number, 0, stats)
            core.heartbeat(Role.PS, index, job.latest[f"ps {index}"], said, job.now_s)
        stats = WorkerStats(pushes=10 * beat, moved=BytesMoved(beat * 500, beat * 700))
        beat_0 = WorkerBeat(core.state.view.number, stats=stats)
        core.heartbeat(Role.WORKER, 0, job.latest["worker 0"], beat_0, job.now_s)
        told += [event for event in core.take_effects().events if event.name.startswith("ps_")]
    assert [(event.name, event.facts["ps"]) for event in told] == [("ps_heavy", 0)]
    first, second, worker = job_status(core.state, job.now_s).members
    assert first.ps_traffic and second.ps_traffic and worker.ps_traffic is None
    assert first.ps_traffic.share == pytest.approx(0.9) and first.ps_traffic.heavy and not second.ps_traffic.heavy
    assert first.ps_traffic.received_per_s == pytest.approx(2 * first.ps_traffic.sent_per_s)
    assert worker.worker_traffic == WorkerTraffic(50, 70)
    core.confirm_lost(job.latest["ps 1"], job.now_s)
    (alone,) = [m for m in job_status(core.state, job.now_s).members if m.role is Role.PS]
    assert alone.ps_traffic is not None and alone.ps_traffic.share is None
