"""What happened, from two statuses."""

from __future__ import annotations

from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure, JobStatus, PsTraffic
from psruntime.core.members.messages import LeaveKind
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.steering.commands import Overrides, SteeringStatus
from psruntime.dashboard.job_events import events_between
from tests.observe.test_render import JOB, PS, STATUS, WORKER

LOST = Departure(WORKER.role, 5, "0055", None, "silent for 10.0 s", 4.0)
LEFT = Departure(PS.role, 1, "0066", LeaveKind.ASKED, "asked to stop", 2.0)
NOW_S = 1000.0


def told(before: JobStatus | None, now: JobStatus, job: JobConfig = JOB) -> list[tuple[float, str]]:
    return [(event.at_s, str(event)) for event in events_between(before, now, job, NOW_S)]


def test_nothing_new_is_no_event() -> None:
    full = replace(STATUS, departures=(LOST,), saved_step=400)
    assert told(full, replace(full, global_step=501, floor=41, reason="another")) == []


def test_who_is_gone_is_told_with_its_reason_also_by_the_first_look() -> None:
    both = [(996.0, "lost: worker 5, silent for 10.0 s"), (998.0, "left (asked): ps 1, asked to stop")]
    assert told(None, replace(STATUS, departures=(LOST, LEFT))) == both
    assert (
        told(replace(STATUS, departures=(LOST,)), replace(STATUS, departures=(replace(LOST, ago_s=5.0), LEFT)))
        == (both[1:])
    )


def test_who_joins_is_told_and_whether_again() -> None:
    new = replace(WORKER, index=5, incarnation="0099", admitted_s=0.5, chief=False)
    assert told(STATUS, replace(STATUS, members=(PS, WORKER, new))) == [(999.5, "joined: worker 5")]
    before, now = (replace(STATUS, departures=(LOST,), members=m) for m in ((PS, WORKER), (PS, WORKER, new)))
    assert told(before, now) == [(999.5, "joined: worker 5, again, as a new incarnation")]


def test_who_is_gone_without_a_departure_is_told_all_the_same() -> None:
    """Of twenty that are lost between two looks a status has the last sixteen."""
    crowd = [replace(WORKER, index=i, incarnation=f"{i:04}", chief=False) for i in range(20)]
    lost = tuple(Departure(each.role, each.index, each.incarnation, None, "silent", 1.0) for each in crowd[4:])
    before = replace(STATUS, members=(PS, *crowd))
    found = [text for _, text in told(before, replace(STATUS, members=(PS,), departures=lost))]
    assert found[16:] == [f"gone: worker {i}, the log of ps 0 has the reason" for i in range(4)]
    assert found[:16] == [f"lost: worker {i}, silent" for i in range(4, 20)]
    again = replace(STATUS, members=(PS, replace(crowd[0], incarnation="new", admitted_s=0.0), *crowd[1:]))
    assert [text for _, text in told(before, again)] == [
        "gone: worker 0, the log of ps 0 has the reason", "joined: worker 0, again, as a new incarnation",
    ]  # fmt: skip


def test_who_leaves_at_the_end_or_is_unknown_to_a_new_coordinator_is_not_told_as_gone() -> None:
    done = replace(STATUS, phase=Phase.DONE, members=(PS,))
    assert not any("gone" in text for _, text in told(STATUS, done))
    new = replace(STATUS, members=(replace(PS, incarnation="new"),))
    assert not any("gone" in text for _, text in told(STATUS, new))


def test_moves_of_phase_view_and_chief() -> None:
    forming = replace(
        STATUS, phase=Phase.FORMING, reason="waiting for ps 1 of 2", view=View(3, (PsEntry(1, "a:1", 0),)),
        members=(PS, replace(WORKER, chief=False)),
    )  # fmt: skip
    assert [text for _, text in told(STATUS, forming)] == [
        "phase: TRAINING -> FORMING, waiting for ps 1 of 2", "view: 2 -> 3, ps 1 live", "chief: worker 3 -> none",
    ]  # fmt: skip


def test_what_was_changed_while_it_runs() -> None:
    bounded = SteeringStatus(Overrides(1, 480, bound=4, mode="bounded"), bound_reason="steps take 0.1 to 0.4 s")
    assert [text for _, text in told(STATUS, replace(STATUS, steering=bounded))] == [
        "mode: async -> bounded, from global step 480", "bound: None -> 4, steps take 0.1 to 0.4 s",
    ]  # fmt: skip
    paused = SteeringStatus(Overrides(1, 490, paused=True, learning_rate_scale=0.5), pending=("save",))
    assert [text for _, text in told(STATUS, replace(STATUS, steering=paused))] == [
        "control: save, to take effect", "control: paused, from global step 490",
        "control: learning rates times 0.5, from global step 490",
    ]  # fmt: skip


def test_checkpoints_rollbacks_ledgers_and_heavy_ps() -> None:
    assert told(STATUS, replace(STATUS, saved_step=480, saved_ago_s=0.25)) == [(999.75, "checkpoint: global step 480")]
    lost = replace(STATUS, steps_lost=32, global_step=480, reason="view 2 is complete")
    assert [text for _, text in told(STATUS, lost)] == [
        "rollback: 20 steps lost, global step 480; view 2 is complete",
    ]
    assert [text for _, text in told(STATUS, replace(STATUS, balanced=False))] == [
        "ledger: does not balance, received is not applied + dropped + rolled back"
    ]
    heavy = replace(PS, ps_traffic=PsTraffic(1.0, 1.0, 0.9, heavy=True))
    (event,) = told(STATUS, replace(STATUS, members=(heavy, WORKER)), replace(JOB, ps=2))
    assert event[1].startswith("heavy: ps 0, ps 0 carries 1.8 times its share")
