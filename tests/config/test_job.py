"""The settings: what is out of range is refused, in a message that names the setting and the value."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.config.job import check_job_id, contradictions
from psruntime.config.process import ProcessConfig, WorkerConfig, split_address
from psruntime.config.settings import settings_of
from psruntime.errors import EXIT_USAGE, UsageError

JOB_REFUSALS = [
    ("mode", "stale", "mode must be one of async, bounded, sync, got 'stale'"),
    ("mode", "bounded", "mode bounded needs bound: how many steps may a worker start ahead of the slowest?"),
    ("bound", -1, "bound must be at least 0, got -1"),
    ("bound", 2, "bound is for mode bounded, the mode is async"),
    ("bound", "auto:1-8", "bound is for mode bounded, the mode is async"),
    ("bound", "auto", "bound must be a whole number or auto:LOW-HIGH, as auto:1-8, got 'auto'"),
    ("bound", "auto:4-4", "bound auto:LOW-HIGH needs a LOW that is below HIGH, got 'auto:4-4'"),
    ("max_bound", 4, "max_bound (4) must be above bound (None)"),
    ("staleness_lr", "linear", "staleness_lr must be inverse or exponential:RATE, got 'linear'"),
    ("staleness_lr", "exponential:0", "staleness_lr exponential:RATE needs a number above 0, per version, got '0'"),
    ("summary_workers", "none", "summary_workers must be one of chief, all, got 'none'"),
    ("trace_steps", "100", "trace_steps must be FIRST:LAST, two global steps as in 100:110, got '100'"),
    ("trace_steps", "9:9", "trace_steps must name 1 to 100 global steps, the first from 1, got '9:9'"),
    ("trace_steps", "1:9", "trace_steps needs checkpoint_dir: the trace is written there"),
    ("eval_every", 100, "eval_every needs checkpoint_dir: checkpoints are measured"),
    ("patience", 3, "patience needs keep_best: no better by which metric?"),
    ("patience", 0, "patience must be at least 1, got 0"),
    ("epochs", 0, "epochs must be at least 1, got 0"),
    ("backup_workers", -1, "backup_workers must be at least 0, got -1"),
    ("backup_workers", 1, "backup_workers is for mode sync, the mode is async"),
    ("batch_policy", "speed", "batch_policy must be one of fixed, throughput, got 'speed'"),
    ("batch_policy", "throughput", "batch_policy throughput is for mode sync, the mode is async"),
    ("round_warn_s", -1.0, "round_warn_s must be at least 0.0, got -1.0"),
    (
        "job_id",
        "my job",
        "job_id must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or a digit, got 'my job'",
    ),
    ("on_nan", "ignore", "on_nan must be one of stop, continue, got 'ignore'"),
    ("on_data_error", "pass", "on_data_error must be one of fail, skip, got 'pass'"),
    ("on_ps_loss", "ignore", "on_ps_loss must be one of rollback, partial, got 'ignore'"),
    ("ps", 0, "ps must be at least 1, got 0"),
    ("min_workers", 0, "min_workers must be at least 1, got 0"),
    ("max_workers", 0, "max_workers must be at least 1, got 0"),
    ("train_steps", 0, "train_steps must be at least 1, got 0"),
    ("save_steps", -5, "save_steps must be at least 1, got -5"),
    ("keep", 0, "keep must be at least 1, got 0"),
    ("summary_steps", -1, "summary_steps must be at least 0, got -1"),
    ("delta_every", -1, "delta_every must be at least 0, got -1"),
    ("delta_every", 10, "delta_every needs checkpoint_dir: deltas are written there"),
    ("keep_best", "least:loss", "keep_best must be NAME, min:NAME or max:NAME, got 'least:loss'"),
    ("keep_best", "loss", "keep_best needs checkpoint_dir: the best checkpoint is kept there"),
    ("warm_start_vars", "a", "warm_start_vars needs warm_start: the names are of its variables"),
    ("warm_start_vars", "*", "warm_start_vars must be a regular expression, got '*': nothing to repeat at position 0"),
    ("warm_start_names", "a=b", "warm_start_names needs warm_start: the names are of its variables"),
    ("warm_start_names", "a=b,c", "warm_start_names must be NEW=OLD,..., names of variables, got 'c'"),
    ("warm_start_names", "a=b,a=c", "warm_start_names says a twice"),
    ("replicate_every", -1, "replicate_every must be at least 0, got -1"),
    ("replicate_every", 20, "replicate_every is not for ps 1: the copy of a ps is on the next one"),
    ("plan", "packs", "plan must be one of packed, per-variable, got 'packs'; did you mean packed?"),
    ("wire", "int8", "wire must be one of float32, bfloat16, float16, got 'int8'"),
    ("wire_error_feedback", "yes", "wire_error_feedback must be one of off, on, got 'yes'"),
    (
        "wire_error_feedback",
        "on",
        "wire_error_feedback is for wire bfloat16 and float16, got float32: float32 is not rounded",
    ),
    ("top_k", 0.0, "top_k must be above 0 and below 1, a fraction of the entries, got 0.0"),
    ("top_k", 1.0, "top_k must be above 0 and below 1, a fraction of the entries, got 1.0"),
    ("top_k", float("nan"), "top_k must be above 0 and below 1, a fraction of the entries, got nan"),
    ("local_steps", 0, "local_steps must be from 1 to 256, got 0"),
    ("local_steps", 257, "local_steps must be from 1 to 256, got 257"),
    ("save_secs", -1.0, "save_secs must be at least 0.0, got -1.0"),
    ("start_over", "yes", "start_over must be one of off, on, got 'yes'"),
    ("pipeline", 0, "pipeline must be from 1 to 32, got 0"),
    ("pipeline", 33, "pipeline must be from 1 to 32, got 33"),
    ("slice_bytes", 0, "slice_bytes must be at least 1, got 0"),
    ("min_ps_bytes", -1, "min_ps_bytes must be at least 0, got -1"),
    ("max_staleness", -1, "max_staleness must be at least 0, got -1"),
    ("lease_s", 0.25, "lease_s must be at least 0.5, got 0.25"),
    ("lease_s", math.nan, "lease_s must be at least 0.5, got nan"),
    ("ps_timeout_s", 9.0, "lease_s (10.0) must not exceed ps_timeout_s (9.0)"),
    ("drain_timeout_s", 0.5, "drain_timeout_s must be at least 1.0, got 0.5"),
    ("link_timeout_s", 0.5, "link_timeout_s must be at least 1.0, got 0.5"),
    ("linger_s", -0.5, "linger_s must be at least 0.0, got -0.5"),
    ("stop_grace_s", -1.0, "stop_grace_s must be at least 0.0, got -1.0"),
]


@pytest.mark.parametrize(("name", "value", "message"), JOB_REFUSALS)
def test_a_job_setting_out_of_range_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        JobConfig(**{name: value})
    assert str(refused.value) == message
    assert refused.value.exit_code == EXIT_USAGE


def test_a_step_that_needs_what_the_last_left_is_alone() -> None:
    with pytest.raises(UsageError, match="top_k is for pipeline 1, got 2: a push needs what the last left"):
        JobConfig(top_k=0.01, pipeline=2)
    lossy: dict[str, Any] = {"wire": "bfloat16", "wire_error_feedback": "on"}
    with pytest.raises(UsageError, match="wire_error_feedback is for pipeline 1, got 2: a push needs what the last"):
        JobConfig(**lossy, pipeline=2)


@pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "a/b", "größe", "a" * 65, "a\n", "a:b"])
def test_what_is_no_plain_word_names_no_job(name: str) -> None:
    with pytest.raises(UsageError, match="job_id must be 1 to 64 letters, digits"):
        check_job_id("job_id", name)


@pytest.mark.parametrize("name", ["a", "7", "run-1", "2026-11-21_ads.ctr", "A" * 64])
def test_a_job_has_the_name_that_it_was_given(name: str) -> None:
    assert JobConfig(job_id=name).job_id == name


def test_a_job_without_a_name_is_named_after_its_settings() -> None:
    assert re.fullmatch("[0-9a-f]{8}", JobConfig().job_id)
    assert JobConfig(ps=2, lease_s=3).job_id == JobConfig(lease_s=3.0, ps=2).job_id
    jobs = [JobConfig(), *(JobConfig(ps=n) for n in (2, 3)), JobConfig(keep=2), JobConfig(checkpoint_dir="2")]
    assert len({job.job_id for job in jobs}) == len(jobs)
    assert JobConfig(ps=1).job_id == JobConfig().job_id, "a default, said or not"
    assert JobConfig(ps=2).job_id == "3a7515dd", "who restarts ps 0 with another release goes on with the same job"


def test_every_job_setting_that_has_a_range_is_checked() -> None:
    unchecked = {"checkpoint_dir", "warm_start", "rounds_log", "schedule"}  # any text; the last has tests of its own
    assert {name for name, _, _ in JOB_REFUSALS} | unchecked == {field.name for field in dataclasses.fields(JobConfig)}


@pytest.mark.parametrize(
    "settings",
    [
        {"ps": 1, "min_workers": 1, "max_workers": 1, "train_steps": 1, "save_steps": 1, "keep": 1, "slice_bytes": 1},
        {"max_staleness": 0},
        {"mode": "bounded", "bound": 0},
        {"mode": "sync", "rounds_log": "rounds.jsonl", "round_warn_s": 0.0},
        {"rounds_log": "of the rounds, if the job's mode becomes sync.jsonl"},
        {"max_staleness": None},
        {"top_k": 1e-9},
        {"top_k": 0.999},
        {"lease_s": 0.5, "ps_timeout_s": 0.5},
        {"link_timeout_s": 1.0, "linger_s": 0.0},
        {"min_workers": 7, "max_workers": 7},
        {"keep_best": "max:top:5", "checkpoint_dir": "run"},
        {"warm_start": "earlier", "warm_start_vars": "hidden/.*", "warm_start_names": "a=b, c=d"},
        {"on_nan": "continue", "checkpoint_dir": "gs://bucket/run"},
    ],
)
def test_the_ends_of_each_range_are_in_it(settings: dict[str, Any]) -> None:
    job = JobConfig(**settings)
    assert {name: getattr(job, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("keep_best", "metric"),
    [("loss", ("loss", False)), ("accuracy", ("accuracy", True)), ("min:error", ("error", False)),
     ("max:loss", ("loss", True)), ("max:top:5", ("top:5", True))],
)  # fmt: skip
def test_the_best_checkpoint_is_that_of_the_least_loss_or_the_greatest_metric(
    keep_best: str, metric: tuple[str, bool]
) -> None:
    assert JobConfig(keep_best=keep_best, checkpoint_dir="run").best_metric == metric


def test_deltas_are_more_frequent_than_whole_checkpoints() -> None:
    message = r"delta_every \(100\) must be below save_steps \(100\): the steps between two whole checkpoints"
    with pytest.raises(UsageError, match=message):
        JobConfig(checkpoint_dir="/saved", delta_every=100, save_steps=100)
    JobConfig(checkpoint_dir="/saved", delta_every=99, save_steps=100)


def test_a_round_with_backup_workers_needs_a_gradient_and_all_of_it() -> None:
    settings: dict[str, Any] = {"mode": "sync", "min_workers": 3}
    JobConfig(**settings, backup_workers=2)
    with pytest.raises(UsageError, match=r"^backup_workers \(3\) must be below min_workers \(3\): a round needs"):
        JobConfig(**settings, backup_workers=3)
    with pytest.raises(
        UsageError, match=r"^backup_workers is not for replicate_every 5: a round .* is made; leave out either$"
    ):
        JobConfig(**settings, backup_workers=1, replicate_every=5, ps=2)
    lossy: dict[str, dict[str, Any]] = {
        "top_k 0.1": {"top_k": 0.1},
        "wire_error_feedback on": {"wire": "bfloat16", "wire_error_feedback": "on"},
    }
    for named, given in lossy.items():
        with pytest.raises(UsageError, match=rf"^backup_workers is not for {named}: a gradient that comes too late"):
            JobConfig(**settings, backup_workers=1, **given)


def test_shares_are_those_of_members_that_are_known_and_of_one_batch() -> None:
    settings: dict[str, Any] = {"mode": "sync", "min_workers": 3, "batch_policy": "throughput"}
    JobConfig(**settings, top_k=0.1)
    with pytest.raises(UsageError, match=r"^batch_policy throughput is not for backup_workers 1: who is in a round"):
        JobConfig(**settings, backup_workers=1)
    with pytest.raises(UsageError, match=r"^batch_policy throughput is for local_steps 1, got 4: a share is one batch"):
        JobConfig(**settings, local_steps=4)


def test_more_workers_needed_than_allowed_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"min_workers \(3\) must not exceed max_workers \(2\)"):
        JobConfig(min_workers=3, max_workers=2)


def test_a_member_has_three_chances_to_renew_its_lease() -> None:
    assert JobConfig(lease_s=6.0).heartbeat_s == 2.0


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        JobConfig().ps = 2  # type: ignore[misc]


def test_every_job_setting_comes_with_its_help() -> None:
    for field in settings_of(JobConfig):
        assert field.metadata["help"], field.name
        choices = field.metadata["choices"]
        assert choices is None or field.default in choices


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index": -1}, "index must be at least 0, got -1"),
        ({"coordinator": "ps0"}, "address 'ps0' is not host:port, for example 127.0.0.1:2222"),
        ({"port": -1}, "port must be from 0 to 65535, got -1"),
        ({"port": 65536}, "port must be from 0 to 65535, got 65536"),
        ({"health_port": 70000}, "health_port must be from 0 to 65535, got 70000"),
        ({"connect_timeout_s": -1.0}, "connect_timeout_s must be at least 0.0, got -1.0"),
        ({"connect_timeout_s": math.nan}, "connect_timeout_s must be at least 0.0, got nan"),
    ],
)
def test_a_process_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        ProcessConfig(**{"index": 0, **settings})
    assert str(refused.value) == message


def test_the_ends_of_the_ports_are_in_range() -> None:
    where = ProcessConfig(0, "ps0:65535", port=65535, health_port=0, connect_timeout_s=0.0)
    assert (where.port, where.health_port) == (65535, 0)


def test_a_worker_needs_at_least_one_example_a_batch() -> None:
    assert WorkerConfig(batch_size=1).batch_size == 1
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        WorkerConfig(batch_size=0)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:2222", ("127.0.0.1", 2222)),
        ("ps-0.cluster.local:0", ("ps-0.cluster.local", 0)),
        ("[::1]:65535", ("[::1]", 65535)),
    ],
)
def test_an_address_is_split_into_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "host:http", "host:-1", "host:65536", "host:²", "host:8 0"]
)
def test_a_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        split_address(address)
    assert str(refused.value) == f"address '{address}' is not host:port, for example 127.0.0.1:2222"


def test_a_contradiction_names_the_setting_and_both_values() -> None:
    job = JobConfig(train_steps=500, max_staleness=None, on_nan="stop", lease_s=7.5)
    assert contradictions({"train_steps": 600, "max_staleness": 4, "on_nan": "stop", "lease_s": 5.0}, job) == [
        "--train-steps 600 here, 500 in the job",
        "--max-staleness 4 here, None in the job",
        "--lease 5.0 here, 7.5 in the job",
    ]


def test_what_agrees_with_the_job_or_is_not_given_is_no_contradiction() -> None:
    job = JobConfig(train_steps=500, lease_s=7.5)
    assert contradictions({}, job) == []
    assert contradictions({"train_steps": 500, "lease_s": 7.5}, job) == []


def test_mode_sync_has_no_pipeline() -> None:
    with pytest.raises(UsageError) as refused:
        JobConfig(mode="sync", pipeline=2)
    needed = "pipeline is for mode async and bounded, the mode is sync: "
    assert str(refused.value) == needed + "a round of mode sync begins when the last is applied"


def test_a_trace_is_written_to_a_folder() -> None:
    with pytest.raises(UsageError, match="trace_steps needs a checkpoint_dir that is a folder, got gs://bucket/job"):
        JobConfig(trace_steps="5:9", checkpoint_dir="gs://bucket/job")
