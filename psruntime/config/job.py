"""The settings of a job with all their checks, the job's name, and the settings of its stages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from psruntime.config.job_settings import AT_MOST, JobSettings
from psruntime.config.schedule import BOUNDED, LOCAL, Schedule, named
from psruntime.config.settings import at_least, check_choices, flag_of
from psruntime.config.values import BoundRange, Metric, StalenessLr, StepRange, earlier_names, pattern_of
from psruntime.errors import UsageError

FROM_ONE = ("ps", "min_workers", "max_workers", "save_steps", "keep", "slice_bytes", "local_steps", "pipeline")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class JobConfig(JobSettings):
    """The job's settings, the same for every process.

    A job without a name gets one that is made of its settings, so that the same command is the same job.

    Raises:
        UsageError: a value is out of range; the message names the setting and the range.
    """

    def __post_init__(self) -> None:
        check_choices(self)
        self._begin_range()
        self._begin_schedule()
        for name in FROM_ONE:
            at_least(name, getattr(self, name), 1)
        if self.wire_error_feedback == "on" and (self.wire == "float32" or self.pipeline > 1):
            raise UsageError(
                "wire_error_feedback is for wire bfloat16 or float16, and pipeline 1: a push needs what the last left"
            )
        if self.top_k is not None and not 0 < self.top_k < 1:
            raise UsageError(f"top_k must be above 0 and below 1, a fraction of the entries, got {self.top_k}")
        if self.top_k is not None and self.pipeline > 1:
            raise UsageError("top_k is for pipeline 1: a push needs what the last left")
        for name, most in AT_MOST.items():
            if getattr(self, name) > most:
                raise UsageError(f"{name} must be at most {most}, got {getattr(self, name)}")
        at_least("save_secs", self.save_secs, 0.0)
        at_least("delta_every", self.delta_every, 0)
        if self.delta_every and not self.checkpoint_dir:
            raise UsageError("delta_every needs checkpoint_dir, the folder of the checkpoints")
        if self.delta_every >= self.save_steps:
            raise UsageError(
                f"delta_every ({self.delta_every}) must be below save_steps ({self.save_steps}), the steps between two "
                "whole checkpoints"
            )
        at_least("summary_steps", self.summary_steps, 0)
        at_least("replicate_every", self.replicate_every, 0)
        at_least("min_ps_bytes", self.min_ps_bytes, 0)
        if self.replicate_every and self.ps < 2:
            raise UsageError("replicate_every needs ps 2 at least: the copy of a ps is on the next one")
        if self.train_steps is not None:
            at_least("train_steps", self.train_steps, 1)
        if self.epochs is not None:
            at_least("epochs", self.epochs, 1)
        self._check_mode()
        self._check_trace()
        self._check_best()
        self._check_warm_start()
        if self.min_workers > self.max_workers:
            raise UsageError(f"min_workers ({self.min_workers}) must not exceed max_workers ({self.max_workers})")
        at_least("lease_s", self.lease_s, 0.5)
        at_least("ps_timeout_s", self.ps_timeout_s, self.lease_s)
        at_least("drain_timeout_s", self.drain_timeout_s, 1.0)
        at_least("link_timeout_s", self.link_timeout_s, 1.0)
        at_least("linger_s", self.linger_s, 0.0)
        at_least("stop_grace_s", self.stop_grace_s, 0.0)
        self._check_stages()
        object.__setattr__(self, "job_id", check_job_id("job_id", self.job_id or _made_of(self)))

    def _begin_range(self) -> None:
        """The bound is the least of a range that was given."""
        if isinstance(self.bound, str):  # as users give it
            found = BoundRange.of(self.bound)
            object.__setattr__(self, "bound", found.least)
            object.__setattr__(self, "max_bound", found.most)
        if self.max_bound is not None and (self.bound is None or self.max_bound <= self.bound):
            raise UsageError(f"max_bound ({self.max_bound}) must be above bound ({self.bound})")

    def _begin_schedule(self) -> None:
        """The mode is that of its first stage."""
        schedule = Schedule.of(self.schedule)
        object.__setattr__(self, "schedule", str(schedule or ""))  # so that it is the same text, however it was typed
        if schedule is None:
            return
        first = schedule.stages[0]
        if (self.mode, self.bound) not in ((first.mode, first.bound), ("async", None)):
            raise UsageError(f"schedule says the mode; leave out mode and bound, got {named(self.mode, self.bound)}")
        if self.bound_range:
            raise UsageError(f"schedule says the bounds; leave out bound {self.bound_range}")
        if self.replicate_every:
            raise UsageError("schedule is not for replicate_every: a replica is of one mode; leave out either")
        if self.epochs is not None:
            raise UsageError("schedule is not for epochs, which needs data shards; leave out either")
        if schedule.has_local:
            self._check_local()
        object.__setattr__(self, "mode", first.mode)
        object.__setattr__(self, "bound", first.bound)

    def _check_local(self) -> None:
        """What does not fit a local stage: what is computed, or sent, otherwise than by a step of one worker alone."""
        for name, wanted in (("backup_workers", 0), ("batch_policy", "fixed"), ("wire", "float32"), ("top_k", None)):
            if (value := getattr(self, name)) != wanted:
                raise UsageError(f"schedule has stage '{LOCAL}', which is not for {name} {value}; leave out either")

    def _check_stages(self) -> None:
        """The job must be one that could be started in each of them."""
        schedule = Schedule.of(self.schedule)
        if schedule and schedule.ends and self.train_steps is not None and self.train_steps <= schedule.ends[-1]:
            raise UsageError(
                f"schedule: stage '{schedule.stages[-1]}' begins at global step {schedule.ends[-1]}, and the job ends "
                f"at {self.train_steps} (train_steps)"
            )
        for stage in schedule.stages[1:] if schedule else ():
            try:
                as_started_so(self, stage.mode, stage.bound)
            except UsageError as error:
                raise UsageError(f"schedule has stage '{stage}': {error}") from error

    def _check_mode(self) -> None:
        self._check_backup_workers()
        self._check_batch_policy()
        for name, mode in (("bound", "bounded"), ("max_staleness", "async")):
            value = getattr(self, name)
            if value is None:
                continue
            at_least(name, value, 0)
            if self.mode != mode:
                raise UsageError(f"{name} is for mode {mode}, the mode is {self.mode}")
        if StalenessLr.of(self.staleness_lr) and self.mode == "sync":
            raise UsageError("staleness_lr is for mode async and bounded: in mode sync no update is stale")
        if self.mode == "bounded" and self.bound is None:
            raise UsageError("mode bounded needs bound: how many steps may a worker start ahead of the slowest?")
        if self.on_ps_loss == "partial" and self.mode == "sync":
            raise UsageError("on_ps_loss partial is not for mode sync, where all variables are those of one round")
        if self.pipeline > 1 and self.mode == "sync":
            raise UsageError(
                "pipeline is for mode async and bounded: a round of mode sync begins when the last is applied"
            )
        at_least("round_warn_s", self.round_warn_s, 0.0)

    def _check_backup_workers(self) -> None:
        at_least("backup_workers", self.backup_workers, 0)
        if not self.backup_workers:
            return
        if self.mode != "sync":
            raise UsageError(f"backup_workers is for mode sync, the mode is {self.mode}")
        if self.backup_workers >= self.min_workers:
            raise UsageError(
                f"backup_workers ({self.backup_workers}) must be below min_workers ({self.min_workers}): a round needs "
                "a gradient"
            )
        if self.replicate_every:
            raise UsageError(
                "backup_workers is not for replicate_every: a round may close while a replica is made; leave out either"
            )
        if self.wire_error_feedback == "on" or self.top_k is not None:
            raise UsageError(
                "backup_workers is not for wire_error_feedback or top_k: a gradient that comes too late would take "
                "with it what the ones before left"
            )

    def _check_batch_policy(self) -> None:
        if self.batch_policy == "fixed":
            return
        if self.mode != "sync":
            raise UsageError(f"batch_policy {self.batch_policy} is for mode sync, the mode is {self.mode}")
        if self.backup_workers:
            raise UsageError(
                f"batch_policy {self.batch_policy} is not for backup_workers: who is in a round is not known when it "
                "begins; leave out either"
            )
        if self.local_steps > 1:
            raise UsageError(
                f"batch_policy {self.batch_policy} is for local_steps 1: a share is one batch, got {self.local_steps}"
            )

    def _check_trace(self) -> None:
        StepRange.of("trace_steps", self.trace_steps)
        if self.trace_steps and not self.checkpoint_dir:
            raise UsageError("trace_steps needs checkpoint_dir, the folder of the checkpoints")
        if self.trace_steps and "://" in self.checkpoint_dir:
            raise UsageError(f"trace_steps needs a checkpoint_dir that is a folder, got {self.checkpoint_dir}")

    def _check_best(self) -> None:
        Metric.of("keep_best", self.keep_best)
        if self.keep_best and not self.checkpoint_dir:
            raise UsageError("keep_best needs checkpoint_dir, the folder of the checkpoints")

    def _check_warm_start(self) -> None:
        pattern_of(self.warm_start_vars)
        earlier_names(self.warm_start_names)
        for name in ("warm_start_vars", "warm_start_names"):
            if getattr(self, name) and not self.warm_start:
                raise UsageError(f"{name} is for warm_start, the checkpoint to begin from; give that too")


def as_started_so(job: JobConfig, mode: str, bound: int | None) -> JobConfig:
    """The job's settings as if it had been started in this mode; bound: of mode bounded.

    Raises:
        UsageError: they do not fit each other.
    """
    return replace(job, mode=mode, bound=bound if mode == BOUNDED else None, max_bound=None, schedule="")


def as_trained_alone(job: JobConfig) -> JobConfig:
    """The settings by which one worker takes the steps of a local stage: those of mode async, without what is done
    around steps.

    Raises:
        UsageError: they do not fit each other.
    """
    return replace(
        job, mode="async", bound=None, max_bound=None, schedule="", rounds_log="", checkpoint_dir="", delta_every=0,
        keep_best="", trace_steps="", warm_start="", warm_start_vars="", warm_start_names="",
    )  # fmt: skip


def check_job_id(name: str, value: str) -> str:
    """The value, if it can name a job.  `name` is that of the setting or the field.

    Raises:
        UsageError: it cannot.
    """
    if not _JOB_ID.fullmatch(value):
        raise UsageError(
            f"{name} must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or a digit, "
            f"got '{value[:80]}'"
        )
    return value


def require_one_mode(given: Mapping[str, Any]) -> None:
    """Raises UsageError if the settings that were given say the mode twice."""
    twice = [flag_of(name) for name in ("mode", "bound") if name in given]
    if given.get("schedule", "").strip() and twice:
        raise UsageError(f"--schedule says the modes and bounds; leave it out, or {' and '.join(twice)}")


def contradictions(given: dict[str, Any], job: JobConfig) -> list[str]:
    """One text for each setting in `given` that differs from the job's."""
    if given.get("schedule"):
        given = {**given, "schedule": str(Schedule.of(given["schedule"]) or "")}
    job_has = {**vars(job), "bound": job.bound if job.bound_range is None else str(job.bound_range)}
    return [
        f"{flag_of(name)} {value} here, {job_has[name]} in the job"
        for name, value in given.items()
        if value != job_has[name]
    ]


def _made_of(job: JobConfig) -> str:
    """8 hexadecimal digits, others for other settings.  A default does not count, so a setting that is new neither."""
    given = [
        f"{f.name}={float(value) if isinstance(value, int) else value}"  # a file may have 3 where a flag is 3.0
        for f in fields(job)
        if (value := getattr(job, f.name)) != f.default
    ]
    return hashlib.sha256("\n".join(given).encode("utf-8", "backslashreplace")).hexdigest()[:8]
