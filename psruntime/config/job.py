"""The settings of a job with all their checks, the job's name, and the settings of its stages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from psruntime.config.job_settings import JobSettings
from psruntime.config.rules import check_rules
from psruntime.config.schedule import ASYNC, BOUNDED, Schedule, named
from psruntime.config.settings import check_values, flag_of
from psruntime.config.values import BoundRange
from psruntime.errors import UsageError

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class JobConfig(JobSettings):
    """The job's settings, the same for every process.

    A job without a name gets one that is made of its settings, so that the same command is the same job.

    Raises:
        UsageError: a value is out of range; the message names the setting and the range.
    """

    def __post_init__(self) -> None:
        self._begin_range()
        check_values(self)
        self._begin_schedule()
        _ = self.staleness_rule, self.traced_steps, self.best_metric, self.warm_start_pattern, self.earlier_names
        if self.top_k is not None and not 0 < self.top_k < 1:
            raise UsageError(f"top_k must be above 0 and below 1, a fraction of the entries, got {self.top_k}")
        check_rules(self)
        if self.trace_steps and "://" in self.checkpoint_dir:
            raise UsageError(f"trace_steps needs a checkpoint_dir that is a folder, got {self.checkpoint_dir}")
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
        schedule = self.mode_schedule
        object.__setattr__(self, "schedule", str(schedule or ""))  # so that it is the same text, however it was typed
        if schedule is None:
            return
        first = schedule.stages[0]
        if (self.mode, self.bound) not in ((first.mode, first.bound), (ASYNC, None)):
            raise UsageError(f"schedule says the mode; leave out mode and bound, got {named(self.mode, self.bound)}")
        if self.bound_range:
            raise UsageError(f"schedule says the bounds; leave out bound {self.bound_range}")
        object.__setattr__(self, "mode", first.mode)
        object.__setattr__(self, "bound", first.bound)

    def _check_stages(self) -> None:
        """The job must be one that could be started in each of them."""
        schedule = self.mode_schedule
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
        job, mode=ASYNC, bound=None, max_bound=None, schedule="", rounds_log="", checkpoint_dir="", delta_every=0,
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
