"""Who went, in the order of their going, and who of them is missed."""

from __future__ import annotations

from psruntime.core.members.departures import KEPT, NAMED, Departures, missing
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind


def worker(index: int, tag: str = "00aa") -> tuple[Role, int, str]:
    return Role.WORKER, index, tag


def test_each_is_kept_with_its_reason_and_the_time_since() -> None:
    departures = Departures()
    departures.add(*worker(0), 10.0, "two labels short", LeaveKind.ERROR)
    departures.add(Role.PS, 1, "00bb", 12.0, "silent for 3.2 s")
    departures.add(*worker(2, tag=""), 13.0, "no module named 'm'", LeaveKind.USAGE)
    assert [str(departure) for departure in departures.at(22.4)] == [
        "worker 0 left 12 s ago (error): two labels short",
        "ps 1 was lost 10 s ago: silent for 3.2 s",
        "worker 2 ended before it joined, 9 s ago (usage): no module named 'm'",
    ]
    assert [departure.ago_s for departure in departures.at(9.0)] == [0.0] * 3


def test_a_silence_is_explained_to_which_a_process_was_lost() -> None:
    departures = Departures()
    departures.add(*worker(0), 5.0, "silent for 10 s")
    departures.add(*worker(0), 20.0, "silent for 10 s")
    departures.add(*worker(1), 20.0, "silent for 10 s")
    departures.add(*worker(0), 21.0, "asked to stop", LeaveKind.ASKED)
    departures.explain(Role.WORKER, 0, 10.0, "no Python ran")
    assert [departure.reason for departure in departures.at(30.0)] == [
        "silent for 10 s", "silent for 10 s: no Python ran", "silent for 10 s", "asked to stop",
    ]  # fmt: skip


def test_who_leaves_because_the_job_is_over_is_not_kept() -> None:
    departures = Departures()
    departures.add(*worker(0), 10.0, "the job is done", LeaveKind.OVER)
    assert departures.at(10.0) == ()


def test_the_latest_ones_are_kept() -> None:
    departures = Departures()
    for index in range(KEPT + 5):
        departures.add(*worker(index), float(index), "gone")
    assert [departure.index for departure in departures.at(99.0)] == list(range(5, KEPT + 5))


def test_those_are_missed_whose_index_nobody_has_the_latest_first() -> None:
    departures = Departures()
    for now_s, index in enumerate([3, 0, 1, 2, 0]):
        departures.add(*worker(index), float(now_s), f"reason {now_s}")
    departures.add(Role.PS, 5, "00bb", 5.0, "a ps")
    assert missing(departures.at(5.0), Role.WORKER, {1}) == [
        "worker 0 was lost 1 s ago: reason 4",
        "worker 2 was lost 2 s ago: reason 3",
        "worker 3 was lost 5 s ago: reason 0",
    ]
    assert len(missing(departures.at(5.0), Role.WORKER, ())) == NAMED
    assert missing(departures.at(5.0), Role.WORKER, range(6)) == []
