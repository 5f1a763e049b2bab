"""No limit of the coordinator counts the time in which its own process did not run; what was measured over it does."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from psruntime.core.coordinator.answers import job_status
from psruntime.core.members.job_status import PsTraffic
from psruntime.core.members.messages import BytesMoved, PsBeat, PsStats
from tests.core.coordinator.scenario import Scenario

PAUSE_S = 100
JOB = "lease_s=10 checkpoint_dir=/saved"
JOINED = ["join ps 0 at=host-a:700", "join worker 0 at=host-b:700", "join worker 1 at=host-c:700", "beat ps 0"]
TRAINS = [*JOINED, "beat worker 0", "prepared worker 0 step=0", "beat worker 0", "beat worker 1", "beat ps 0"]
DRAINS = [*TRAINS, "beat ps 0 step=10"]
STOPPED = [f"beat worker {index} steps=5 step=10 stopped" for index in range(2)]
HICCUPS = ("80,10,10,10,10,10,10,10", "10,10,10,10,80,10,10,10")  # ms of the steps of each worker
JOIN_AND_FAIL = ["join worker 1 at=host-c:700 as=again", "leave worker 1 error: no disk"]


class Timer(NamedTuple):
    """A limit of the coordinator.

    settings: of the job, beside JOB.  before: the inputs until the time runs.  beat: the members that are heard
    meanwhile.  limit_s: seconds until `sign`, a regular expression, is found in the answers and events.
    """

    settings: str
    before: list[str]
    beat: str
    limit_s: int
    sign: str


ALL = "ps 0, worker 0, worker 1"
TIMERS = {
    "lease of a worker": Timer("ps=1", TRAINS, "ps 0, worker 0", 10, "member_lost member=worker 1"),
    "lease of a ps": Timer("ps=1", TRAINS, "worker 0, worker 1", 10, "member_lost member=ps 0"),
    "return of a ps": Timer(
        "ps=1 ps_timeout_s=30", [*TRAINS, "gone ps 0"], "worker 0, worker 1", 31, "now=FAILED .*ps 0 did not return"
    ),
    "return of a ps after ps 0": Timer(
        "ps=2 ps_timeout_s=30", ["join ps 0 at=host-a:700", "join worker 0 at=host-b:700 knows=100"], "ps 0, worker 0",
        31, "now=FAILED .*ps 1 did not return",
    ),
    "return of a worker": Timer(
        "ps=1", [*TRAINS, "wait 20 s while ps 0, worker 0, worker 1 beat", STOPPED[0], "gone worker 1"],
        "ps 0, worker 0", 10, "now=DRAINING reason=all workers have stopped",
    ),
    "end of a step in the drain": Timer(
        "ps=1 train_steps=10 drain_timeout_s=20", [*DRAINS, STOPPED[0]], ALL, 20, "cut_off member=worker 1"
    ),
    "close": Timer(
        "ps=1 train_steps=10 drain_timeout_s=20", [*DRAINS, *STOPPED], ALL, 20, "cut_off .*did not finish within 20 s"
    ),
    "worker that closes": Timer(
        "ps=1 train_steps=10 drain_timeout_s=20", [*DRAINS, "gone worker 0", "gone worker 1"], "ps 0", 20,
        "now=FAILED reason=no worker is left",
    ),
    "half of the grace": Timer(
        "ps=1 stop_grace_s=20", [*TRAINS, "beat ps 0 asked", STOPPED[1]], ALL, 10, "cut_off .*half of stop_grace_s"
    ),
    "grace": Timer("ps=1 stop_grace_s=20", [*TRAINS, "beat ps 0 asked", *STOPPED], ALL, 20, "now=STOPPED .*not saved"),
    "ps that is asked to stop": Timer(
        "ps=2 checkpoint_dir=", ["join ps 1 at=host-a:701", *TRAINS, "beat ps 1 asked"], f"ps 1, {ALL}", 1,
        "ps 1.* leave",
    ),
    "begin of a preparation": Timer(
        "ps=1 drain_timeout_s=40", [*JOINED, "beat worker 0"], ALL, 30, "cut_off member=worker 0 .*did not begin"
    ),
    "preparation": Timer(
        "ps=1 drain_timeout_s=40", [*JOINED, "beat worker 0 prepares=1"], ALL, 40, "cut_off .*worker 0 .*no progress"
    ),
    "checkpoint after steps": Timer(
        "ps=1 save_steps=100 save_secs=0", [*TRAINS, "beat worker 1 steps=350 step=350"], ALL, 30, "checkpoint_overdue",
    ),
    "checkpoint after seconds": Timer(
        "ps=1 save_secs=20", [*TRAINS, "beat worker 1 steps=9 step=9"], ALL, 60, "checkpoint_overdue"
    ),
    "stuck chief": Timer(
        "ps=1 save_steps=100 save_secs=0",
        [*TRAINS, "beat worker 1 steps=350 step=350", f"wait 20 s while {ALL} beat", "beat worker 0 steps=1 step=351"],
        ALL, 30, "cut_off member=worker 0",
    ),
    "relief of a chief": Timer(
        "ps=1", [*JOINED[:2], "refuses worker 0 no file"], "ps 0, worker 0", 10, "chief worker=0"
    ),
    "obstacle for all": Timer(
        "ps=1 lease_s=4 ps_timeout_s=8", [*JOINED[:2], "refuses worker 0 no file"], "ps 0, worker 0", 9,
        "now=FAILED .*no file",
    ),
    "failures": Timer(
        "ps=1 ps_timeout_s=30", [*TRAINS, "leave worker 1 error: no disk", *(9 * JOIN_AND_FAIL)], "ps 0, worker 0", 30,
        "now=FAILED .*failed 10 times",
    ),
    "too few workers at first": Timer(
        "ps=1 min_workers=2", [*JOINED[:2], "ends worker 1 usage: no such flag"], "ps 0, worker 0", 50,
        "now=FAILED .*has ended for good",
    ),
    "too few workers": Timer(
        "ps=1", [*TRAINS, "leave worker 0 usage: no such flag", "leave worker 1 usage: no such flag"], "ps 0", 20,
        "now=FAILED .*has ended for good",
    ),
    "slow round": Timer(
        "ps=1 mode=sync round_warn_s=15", [*TRAINS, "next worker 0", "next worker 1"], ALL, 16, "slow_round"
    ),
    "first round": Timer(
        "ps=1 mode=sync round_warn_s=15 min_workers=2", [*TRAINS, "next worker 0"], ALL, 16, "ask for your next action"
    ),
    "update under way": Timer(
        "ps=1 mode=bounded bound=2",
        [*TRAINS, "gone worker 1", *(f"beat worker 0 steps={n} step={n}" for n in (1, 2)), "beat ps 0"],
        "ps 0, worker 0", 10, "ps 0#1: TRAINING",
    ),
    "choice of the bound": Timer(
        "ps=1 mode=bounded bound=auto:1-8",
        [*TRAINS, *(f"beat worker {n} steps=64 step={64 * n + 64} took={t}" for n, t in enumerate(HICCUPS))],
        ALL, 7, "bound_chosen",
    ),
}  # fmt: skip


@pytest.mark.parametrize("paused_s", [0, PAUSE_S])
@pytest.mark.parametrize("timer", TIMERS.values(), ids=TIMERS.keys())
def test_a_limit_is_reached_after_its_time_but_for_pauses(timer: Timer, paused_s: int) -> None:
    job = Scenario(f"{JOB} {timer.settings}")
    for line in timer.before:
        job.act(line)
    first_s = timer.limit_s // 2
    lines = job.act(f"wait {first_s} s while {timer.beat} beat")
    lines += job.act(f"pause {paused_s} s")
    lines += job.act(f"wait {timer.limit_s - 1 - first_s} s while {timer.beat} beat")
    assert not found(timer.sign, lines), "too early"
    lines = job.act(f"wait 2 s while {timer.beat} beat")
    assert found(timer.sign, lines), "too late"


def found(sign: str, lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(sign, line)]


def test_ages_and_rates_are_of_the_time_with_its_pauses() -> None:
    job = Scenario(f"{JOB} ps=1")
    for line in [*TRAINS, "beat worker 0 steps=5 step=5 saved=5", "leave worker 1 error: no disk"]:
        job.act(line)
    for moved in (BytesMoved(0, 0), BytesMoved(400, 200)):
        job.core.heartbeat(*job.who("ps 0"), PsBeat(stats=PsStats(moved=moved)), job.now_s)
        job.act(f"pause {PAUSE_S} s")
    status = job_status(job.core.state, job.now_s)
    assert [(member.admitted_s, member.silent_s) for member in status.members] == [(200.0, 100.0), (200.0, 200.0)]
    assert (status.saved_ago_s, status.departures[0].ago_s) == (200.0, 200.0)
    assert status.members[0].ps_traffic == PsTraffic(sent_per_s=4.0, received_per_s=2.0, share=1.0)
