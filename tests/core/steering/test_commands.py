"""Commands on a real coordinator, one after the other: what is refused, what is answered, what members are told."""

from __future__ import annotations

from typing import Any

import pytest

from psruntime.core.coordinator.answers import job_status
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.core.shards.shard_messages import START
from psruntime.core.steering.commands import Command, Kind, Outcome, Overrides
from psruntime.errors import JobDoneError, UnreachableError, UsageError
from tests.core.steering.steered_job import SteeredJob

ASYNC: dict[str, Any] = {"mode": "async"}
BOUNDED: dict[str, Any] = {"mode": "bounded", "bound": 4}
SYNC: dict[str, Any] = {"mode": "sync"}
MODES = [ASYNC, BOUNDED, SYNC]


def named(mode: dict[str, Any]) -> str:
    return str(mode["mode"])


@pytest.mark.parametrize("mode", MODES, ids=named)
def test_a_pause_holds_everybody_until_it_is_resumed(mode: dict[str, Any]) -> None:
    job = SteeredJob(**mode)
    job.run(5)
    pause = job.ask(Kind.PAUSE)
    assert job.reply(pause).outcome is Outcome.PENDING
    job.run(5)
    done = job.reply(pause)
    assert done.outcome is Outcome.DONE and done.text == f"paused at global step {job.global_step}"
    before = job.global_step
    job.run(50)
    assert job.global_step == before
    status = job_status(job.core.state, job.now_s)
    assert status.steering.settings == Overrides(
        1, before, mode.get("bound"), paused=True, mode=mode.get("mode", "async")
    )
    assert f"paused by control at global step {before}" in status.reason and not status.steering.pending
    resume = job.ask(Kind.RESUME)
    job.run(5)
    assert job.reply(resume).text == f"resumed at global step {before}"
    assert job.global_step > before


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES, ids=named)
def test_a_paused_job_is_late_with_nothing(mode: dict[str, Any]) -> None:
    """For hours, in which the checkpoint would have been overdue, the chief relieved, the round slow."""
    job = SteeredJob(save_secs=20, save_steps=3, checkpoint_dir="/c", **mode)
    job.run(5)
    job.ask(Kind.PAUSE)
    job.run(5)
    job.take_events()
    job.run(7200)
    assert job.core.state.phase is Phase.TRAINING and job.take_events() == []
    assert len(job.core.state.members.live(Role.WORKER)) == 2
    job.ask(Kind.RESUME)
    job.run(3)
    assert [name for name in job.take_events() if name not in ("control", "steered")] == []


def test_a_new_bound_is_told_to_the_ps_before_anybody_steps_under_it() -> None:
    job = SteeredJob(**BOUNDED)
    job.run(5)
    assert job.ps_told(0).max_staleness == 9 and job.ps_told(0).settings.bound == 4
    job.ask(Kind.BOUND, bound=1)
    job.beat_workers()
    job.beat_workers()
    assert job.ps_told(0).max_staleness == 3, "nobody is in a step, so the ps are told"
    assert job.worker_told(0).settings.bound == 4 and job.worker_told(0).pause_epoch, "and no worker steps yet"
    job.beat_ps(0)
    assert job.worker_told(0).pause_epoch, "one of two has written it"
    job.beat_ps(1)
    assert job.worker_told(0).settings.bound == 1 and not job.worker_told(0).pause_epoch
    assert job.core.state.pace.clocks.bound == 1


def test_a_worker_in_its_step_is_waited_for_and_named() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    job.steppers[0].stuck = True
    scale = job.ask(Kind.LEARNING_RATE_SCALE, scale=0.5)
    job.run(3)
    assert job.reply(scale).text == "waits for worker 0 to end its step"
    assert job_status(job.core.state, job.now_s).steering.pending == ("learning-rate-scale 0.5",)
    job.lose(Role.WORKER, 0)
    job.run(3)
    assert job.reply(scale).text == f"learning-rate-scale 0.5 at global step {job.reply(scale).global_step}"
    assert job.ps_told(1).settings.learning_rate_scale == 0.5


def test_who_joins_a_paused_job_is_held_from_its_beginning() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    job.ask(Kind.PAUSE)
    job.run(3)
    before = job.global_step
    job.join(Role.WORKER, 2)
    assert job.worker_told(2).pause_epoch
    job.run(20)
    assert job.global_step == before


def test_the_settings_outlive_the_coordinator() -> None:
    job = SteeredJob(**BOUNDED)
    job.run(5)
    for kind, more in ((Kind.BOUND, {"bound": 2}), (Kind.LEARNING_RATE_SCALE, {"scale": 0.25}), (Kind.PAUSE, {})):
        job.ask(kind, **more)
        job.run(5)
    before, settings = job.global_step, job.core.state.steering.settings
    assert (settings.revision, settings.bound, settings.learning_rate_scale, settings.paused) == (3, 2, 0.25, True)
    job.lose_the_coordinator()
    job.run(20)
    assert job.core.state.phase is Phase.TRAINING and job.core.state.steering.settings == settings
    assert job.global_step == before and job.ps_told(0).settings == settings
    assert job.core.state.pace.clocks.bound == 2
    job.ask(Kind.RESUME)
    job.run(5)
    assert job.global_step > before and job.core.state.steering.settings.revision == 4


def test_a_change_goes_on_in_the_view_after_a_lost_ps() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    scale = job.ask(Kind.LEARNING_RATE_SCALE, scale=0.5)
    job.beat_workers()
    job.beat_workers()
    job.beat_ps(0)
    job.lose(Role.PS, 1)
    assert "waiting for ps 1 of 2" in job.reply(scale).text
    assert job.reply(scale).outcome is Outcome.PENDING
    job.join(Role.PS, 1)
    job.run(10)
    assert job.reply(scale).outcome is Outcome.DONE
    assert {job.ps_told(index).settings.learning_rate_scale for index in range(2)} == {0.5}


def test_a_repeated_request_is_taken_once() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    pause = job.ask(Kind.PAUSE)
    job.run(3)
    job.ask(Kind.RESUME)
    job.run(3)
    step = job.global_step
    assert job.ask(Kind.PAUSE, request_id=pause) == pause
    job.run(3)
    assert job.global_step > step, "it was paused by this request once, and is not again"
    assert job.reply(pause).text.startswith("paused at global step")


def test_what_changes_nothing_is_done_at_once() -> None:
    job = SteeredJob(**BOUNDED)
    job.run(5)
    assert job.reply(job.ask(Kind.RESUME)).text.startswith("resumed already at global step")
    assert job.reply(job.ask(Kind.BOUND, bound=4)).text.startswith("bound 4 already at global step")


@pytest.mark.parametrize("mode", [ASYNC, SYNC], ids=named)
@pytest.mark.parametrize("paused", [False, True])
def test_a_checkpoint_is_asked_of_the_chief(mode: dict[str, Any], paused: bool) -> None:
    job = SteeredJob(checkpoint_dir="/c", **mode)
    job.run(5)
    if paused:
        job.ask(Kind.PAUSE)
        job.run(3)
    save = job.ask(Kind.SAVE)
    assert job.worker_told(0).save and not job.worker_told(1).save
    assert job.reply(save).text == "waits for worker 0, the chief, to write a checkpoint"
    job.run(5)
    assert job.reply(save).text == f"saved at global step {job.core.state.past.saved_step}"
    assert not job.worker_told(0).save


def test_a_checkpoint_of_the_step_that_is_known_is_not_new_enough_while_steps_are_made() -> None:
    job = SteeredJob(checkpoint_dir="/c", **ASYNC)
    job.run(5)
    first = job.ask(Kind.SAVE)
    job.run(3)
    saved = job.reply(first).global_step
    job.core.state.global_step = saved  # others were made, and not heard of yet
    again = job.ask(Kind.SAVE)
    assert job.reply(again).outcome is Outcome.PENDING
    job.run(3)
    assert job.reply(again).global_step > saved
    job.ask(Kind.PAUSE)
    job.run(3)
    last = job.ask(Kind.SAVE)
    job.run(3)
    at_rest = job.reply(last).global_step
    assert at_rest == job.global_step and job.reply(job.ask(Kind.SAVE)).text == f"saved at global step {at_rest}"


@pytest.mark.parametrize("mode", MODES, ids=named)
@pytest.mark.parametrize("paused", [False, True])
def test_drain_ends_the_job_as_its_end_would(mode: dict[str, Any], paused: bool) -> None:
    job = SteeredJob(**mode)
    job.run(5)
    if paused:
        job.ask(Kind.PAUSE)
        job.run(3)
    waiting = job.ask(Kind.BOUND, bound=9) if mode is BOUNDED else None
    drain = job.ask(Kind.DRAIN)
    job.run(8)
    assert job.core.state.phase is Phase.DONE
    assert job.reply(drain).text == f"drained; the job is done at global step {job.core.state.global_step}"
    if waiting:
        assert job.reply(waiting).outcome is not Outcome.PENDING
    with pytest.raises(JobDoneError):
        job.ask(Kind.PAUSE)
    assert job.ask(Kind.DRAIN, request_id=drain) == drain


@pytest.mark.parametrize("mode", MODES, ids=named)
def test_a_worker_that_is_drained_leaves_and_the_others_go_on(mode: dict[str, Any]) -> None:
    job = SteeredJob(**mode)
    job.run(5)
    drain = job.ask(Kind.DRAIN_WORKER, worker=0)
    assert job.worker_told(0).leave and not job.worker_told(1).leave
    job.run(5)
    assert job.reply(drain).text.startswith("worker 0 has left at global step")
    before = job.global_step
    job.run(5)
    assert job.core.state.phase is Phase.TRAINING and job.global_step > before
    with pytest.raises(UsageError, match="worker 1 is the only one that stays, and the job would stop with it"):
        job.ask(Kind.DRAIN_WORKER, worker=1)


def test_the_last_that_would_stay_is_not_drained() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    job.ask(Kind.DRAIN_WORKER, worker=0)
    with pytest.raises(UsageError, match="worker 1 is the only one that stays"):
        job.ask(Kind.DRAIN_WORKER, worker=1)
    with pytest.raises(UsageError, match="there is no worker 7; live are: 0, 1"):
        job.ask(Kind.DRAIN_WORKER, worker=7)


@pytest.mark.parametrize(
    ("mode", "kind", "facts", "line"),
    [
        (ASYNC, Kind.BOUND, {"bound": 3}, "bound is for mode bounded, and the job's mode is async"),
        (BOUNDED, Kind.BOUND, {"bound": -1}, "bound must be from 0 to 9007199254740991, got -1"),
        (ASYNC, Kind.LEARNING_RATE_SCALE, {"scale": 0.0}, "learning-rate-scale must be a number from 1e-30 to 1e"),
        (ASYNC, Kind.LEARNING_RATE_SCALE, {"scale": float("nan")}, "learning-rate-scale must be a number from"),
        (ASYNC, Kind.LEARNING_RATE_SCALE, {"scale": float("inf")}, "learning-rate-scale must be a number from"),
        (ASYNC, Kind.SAVE, {}, "the job has no --checkpoint-dir, so nothing is saved"),
    ],
)  # fmt: skip
def test_what_the_job_cannot_do_is_refused(mode: dict[str, Any], kind: Kind, facts: dict[str, Any], line: str) -> None:
    job = SteeredJob(**mode)
    job.run(5)
    with pytest.raises(UsageError, match=line):
        job.ask(kind, **facts)


@pytest.mark.parametrize(
    ("kind", "line"),
    [(Kind.SAVE, "a script's own: its own hooks save"), (Kind.LEARNING_RATE_SCALE, "its optimizers are its own")],
)
def test_a_script_saves_and_updates_by_itself(kind: Kind, line: str) -> None:
    job = SteeredJob(checkpoint_dir="/c", specs=(), **ASYNC)
    job.run(5)
    with pytest.raises(UsageError, match=line):
        job.ask(kind)


def test_each_command_and_its_outcome_is_told() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    job.take_facts()
    job.ask(Kind.PAUSE, by="10.0.0.9:555")
    job.run(3)
    (asked, *_), (done, *_) = job.take_facts("control", "steered")
    assert (asked["command"], asked["by"]) == ("pause", "10.0.0.9:555")
    assert done["reason"] == f"paused at global step {job.global_step}"


def test_a_checkpoint_is_written_once_for_a_save_that_a_rollback_overtakes() -> None:
    job = SteeredJob(**ASYNC, checkpoint_dir="/c")
    job.run(60)
    job.lose(Role.PS, 1)
    save = job.ask(Kind.SAVE)
    job.global_step -= 50
    job.join(Role.PS, 1)
    job.run(10)
    assert job.reply(save).outcome is Outcome.DONE
    assert not any(job.worker_told(index).save for index in job.steppers)


def test_a_bound_that_comes_too_late_for_its_mode_is_given_up() -> None:
    job = SteeredJob(**BOUNDED)
    job.run(5)
    job.steppers[0].stuck = True
    job.ask(Kind.MODE, mode="async")
    bound = job.ask(Kind.BOUND, bound=5)
    job.run(3)
    job.steppers[0].stuck = False
    job.run(10)
    assert job.reply(bound).outcome is Outcome.GIVEN_UP
    assert job.reply(bound).text == "given up: bound is for mode bounded, and the job's mode is async"
    assert job.core.state.steering.settings.bound is None and job.ps_told(0).max_staleness is None


def test_resume_withdraws_a_change_that_somebody_keeps_from_taking_effect() -> None:
    job = SteeredJob(**ASYNC)
    job.run(5)
    job.steppers[0].stuck = True
    pause = job.ask(Kind.PAUSE)
    job.run(3)
    before = job.global_step
    resume = job.ask(Kind.RESUME)
    job.run(10)
    assert (job.reply(pause).outcome, job.reply(pause).text) == (Outcome.GIVEN_UP, "withdrawn by resume")
    assert job.reply(resume).outcome is Outcome.DONE
    assert job.global_step > before and not job.worker_told(1).pause_epoch


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (Kind.SAVE, {}),
        (Kind.LEARNING_RATE_SCALE, {"scale": 0.5}),
        (Kind.MODE, {"mode": "sync"}),
        (Kind.DRAIN_WORKER, {}),
    ],
)
def test_what_is_not_known_before_the_first_view_is_asked_again(kind: Kind, facts: dict[str, Any]) -> None:
    """The next coordinator is asked before the members have told it what they know."""
    job = SteeredJob(**ASYNC, checkpoint_dir="/c")
    job.core = Coordinator(job.job, 0.0)
    with pytest.raises(UnreachableError, match="it is not known yet what the job can do: FORMING"):
        job.ask(kind, **facts)


def test_data_shards_are_known_before_the_first_is_asked_for() -> None:
    job = SteeredJob(**ASYNC)
    job.core.state.shards.restore(START)
    job.run(5)
    with pytest.raises(UsageError, match="data shards"):
        job.ask(Kind.MODE, mode="bounded", bound=4)


@pytest.mark.parametrize("began_in", ["sync", "async"])
def test_the_rounds_log_tells_what_another_mode_undoes(began_in: str) -> None:
    """Else rounds would seem to be held that a return to an older state undid; a job without rounds logs nothing."""
    job = SteeredJob(mode=began_in)
    job.run(9)
    job.ask(Kind.MODE, mode="async")
    job.run(9)
    job.lose(Role.PS, 1)
    job.global_step = 1
    job.join(Role.PS, 1)
    job.run(9)
    told = [record for record in job.records if record["record"] == "prepared"]
    if began_in == "async":
        assert not told
    else:
        assert [record["mode"] for record in told] == ["sync", "async", "async"] and told[-1]["global_step"] == 1


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_of_command_says_all_of_itself(kind: Kind) -> None:
    command = Command(kind, "id", bound=7, scale=0.5, mode="sync", worker=3)
    typed = {Kind.BOUND: "bound 7", Kind.LEARNING_RATE_SCALE: "learning-rate-scale 0.5", Kind.MODE: "mode sync"}
    assert str(command) == {**typed, Kind.DRAIN_WORKER: "drain worker 3"}.get(kind, kind.value)
    assert bool(kind.argument) == (str(command) != kind.value)
    assert command.done == (kind.done or str(command))
    before = Overrides(bound=4, mode="bounded", paused=kind is Kind.RESUME)
    assert not kind.changes or command.change(before) != before
