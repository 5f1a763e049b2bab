"""--schedule: which mode a job has at which global step, and what is no schedule."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime import ps, run
from psruntime.config import JobConfig
from psruntime.config.job import as_started_so, as_trained_alone, contradictions
from psruntime.config.schedule import MOST_STAGES, Schedule, Stage
from psruntime.errors import UsageError

TEXT = "async:500, bounded 4:2000, sync"


def schedule(text: str) -> Schedule:
    found = Schedule.of(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("global_step", "mode"),
    [
        (0, "async"),
        (499, "async"),
        (500, "bounded 4"),
        (2499, "bounded 4"),
        (2500, "sync"),
        (9**9, "sync"),
    ],
)
def test_the_mode_follows_from_the_global_step(global_step: int, mode: str) -> None:
    assert str(schedule(TEXT).at(global_step)) == mode


def test_a_schedule_in_words() -> None:
    assert schedule(TEXT).whole(499) == "async until global step 500, then bounded 4"
    assert schedule(TEXT).whole(500) == "bounded 4 until global step 2500, then sync"
    assert schedule(TEXT).whole(2500) == "sync to the end"


@given(
    st.lists(st.tuples(st.sampled_from(["async", "bounded 0", "bounded 3", "sync"]), st.integers(1, 9)), min_size=1),
    st.integers(0, 99),
)
def test_stages_last_as_long_as_they_say(drawn: list[tuple[str, int]], global_step: int) -> None:
    stages = [each for place, each in enumerate(drawn) if place == 0 or drawn[place - 1][0] != each[0]][:MOST_STAGES]
    *limited, (last, _) = stages
    made = schedule(", ".join([*(f"{mode}:{steps}" for mode, steps in limited), last]))
    assert Schedule.of(str(made)) == made
    modes = [mode for mode, steps in limited for _ in range(steps)]
    assert str(made.at(global_step)) == (modes[global_step] if global_step < len(modes) else last)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("async:500 sync", "schedule: 'async:500 sync' is no stage; for example async:200, bounded 4:500, sync"),
        ("asyn:5, sync", "'asyn:5' is no stage; did you mean async"),
        ("async:5,", "'' is no stage"),
        ("async:-5, sync", "'async:-5' is no stage"),
        ("async, sync", "'async' needs how many global steps it lasts"),
        ("async:0, sync", "'async' needs how many global steps it lasts"),
        ("async:5, sync:5", "the last stage, 'sync', lasts to the end of the job; leave out its steps"),
        ("bounded:5, sync", "bounded needs its bound, as bounded 4, got 'bounded:5'"),
        ("async 500, sync", "async has no bound; steps stand behind :, as async:500, got 'async 500'"),
        ("async:5, local:5", "the last stage cannot be local; add the one in which the job continues"),
        ("local 5, sync", "local has no bound; steps stand behind :, as local:500, got 'local 5'"),
        ("loca:5, sync", "'loca:5' is no stage; did you mean local"),
        ("async:5, async:5, sync", "'async' follows itself; give one stage with the steps of both"),
        (", ".join(["async:1", "sync:1"] * MOST_STAGES), f"at most {MOST_STAGES} stages, got {2 * MOST_STAGES}"),
    ],
)
def test_what_is_no_schedule(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        JobConfig(schedule=text)


def test_a_local_stage_is_one_of_mode_sync() -> None:
    found = schedule("async:10, local:20, sync:5, async")
    assert str(found) == "async:10, local:20, sync:5, async" and found.has_local
    assert [found.local_end_at(step) for step in (9, 10, 29, 30, 35)] == [None, 30, 30, None, None]
    assert found.at(10) == Stage("sync", steps=20, is_local=True)
    assert found.whole(10) == "local until global step 30, then sync"
    assert JobConfig(schedule="local:20, async").mode == "sync"
    assert not schedule(TEXT).has_local


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"backup_workers": 1, "min_workers": 3}, "backup_workers 1"),
        ({"batch_policy": "throughput"}, "batch_policy throughput"),
        ({"wire": "bfloat16"}, "wire bfloat16"),
        ({"top_k": 0.01}, "top_k 0.01"),
    ],
)
def test_what_does_not_fit_a_local_stage(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        JobConfig(schedule="local:20, sync", **settings)
    assert str(refused.value) == (
        f"schedule with stage local is not for {named}: a worker takes its steps by itself there; leave out either"
    )


def test_a_worker_by_itself_has_nothing_around_its_steps() -> None:
    job = JobConfig(
        schedule="local:20, sync", checkpoint_dir="/c", keep_best="accuracy", delta_every=2, trace_steps="1:2",
        rounds_log="/r", warm_start="/w", warm_start_vars="a", warm_start_names="a=b", local_steps=3, on_nan="continue",
    )  # fmt: skip
    alone = as_trained_alone(job)
    assert (alone.mode, alone.local_steps, alone.on_nan) == ("async", 3, "continue")
    assert alone == replace(JobConfig(local_steps=3, on_nan="continue"), job_id=job.job_id)


def test_a_job_begins_in_its_first_stage() -> None:
    job = JobConfig(schedule="bounded 3:9, async")
    assert (job.mode, job.bound) == ("bounded", 3)
    assert JobConfig(mode="bounded", bound=3, schedule="bounded 3:9, async") == job, "as it comes from the coordinator"
    assert as_started_so(job, "sync", None).schedule == ""
    typed = JobConfig(schedule="bounded 3 :9,async")
    assert typed == job, "however it was typed it is the same job"
    assert not contradictions({"schedule": "bounded 3 :9,async"}, job)
    assert contradictions({"schedule": "async"}, job) == ["--schedule async here, bounded 3:9, async in the job"]
    assert JobConfig(schedule=" ") == JobConfig()
    assert Schedule.of("") is None and schedule("sync").stages == (Stage("sync"),)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "sync"}, "schedule says the mode; leave out mode and bound, got sync"),
        ({"mode": "bounded", "bound": 2}, "schedule says the mode; leave out mode and bound, got bounded 2"),
        ({"pipeline": 2}, "schedule has stage 'sync': pipeline is for mode async and bounded"),
        ({"max_staleness": 9}, "schedule has stage 'bounded 4': max_staleness is for mode async, the mode is bounded"),
        ({"replicate_every": 9, "ps": 2}, "schedule is not for replicate_every 9: a replica is of one mode"),
        ({"ps": 0}, "ps must be"),
        ({"epochs": 2}, "schedule is not for epochs 2: epochs need data shards; leave out either"),
        ({"train_steps": 2500}, "stage 'sync' begins at global step 2500, and the job ends at 2500"),
    ],
)
def test_a_job_must_be_one_of_every_stage(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        JobConfig(schedule=TEXT, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "batches", "steps"),
    [
        ("async", 100, 100),
        ("sync", 100, 25),
        ("async:60, sync", 100, 70),
        ("sync:10, async", 100, 70),
        (TEXT, 100, 100),
    ],
)
def test_as_many_batches_whatever_the_modes(text: str, batches: int, steps: int) -> None:
    assert schedule(text).steps_of(batches, workers=4) == steps


@pytest.mark.parametrize("flag", ["--mode=async", "--bound=3"])
def test_the_mode_is_said_once(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (run.main, ps.main):
        own = ["--index=0"] if main is ps.main else []
        with suppress(SystemExit):
            assert main([*own, "--schedule=bounded 3:5, sync", flag]) == 2
        said = capsys.readouterr().err
        assert f"--schedule says the modes and bounds; leave it out, or {flag.split('=')[0]}" in said
