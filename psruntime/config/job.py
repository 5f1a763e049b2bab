"""The settings of a job with all their checks, the job's name, and the settings of its stages.

What settings need of each other is a table, of which docs/operations.md is made, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from psruntime.config.job_settings import WIRES, JobSettings
from psruntime.config.schedule import ASYNC, BOUNDED, LOCAL, SYNC, Schedule, named
from psruntime.config.settings import check_values, flag_of
from psruntime.config.values import BoundRange
from psruntime.errors import UsageError

_DEFAULTS = {field.name: field.default for field in fields(JobSettings)}


@dataclass(frozen=True)
class Case:
    """A setting that has one of these values; without values any but its default."""

    name: str
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        stage = "with stage " if self.name == "schedule" else ""
        return f"{self.name} {stage}{' and '.join(map(str, self.values))}" if self.values else self.name

    def holds(self, job: JobSettings) -> bool:
        """Whether it is the case in this job."""
        if self.name == "schedule" and self.values:
            return any(str(stage) in self.values for stage in (job.mode_schedule.stages if job.mode_schedule else ()))
        value = getattr(job, self.name)
        return value in self.values if self.values else value != _DEFAULTS[self.name]


@dataclass(frozen=True)
class Rule:
    """In the case `given` the case `other` must hold, or must not.  why: empty where it is plain."""

    given: Case
    needs: bool
    other: Case
    why: str = ""

    def refusal(self, job: JobSettings) -> str:
        """What is wrong in this job."""
        name, value = self.other.name, getattr(job, self.other.name)
        because = f": {self.why}" if self.why else ""
        if not self.needs:
            either = "; leave out either" if value != _DEFAULTS[name] else ""
            return f"{self.given} is not for {name} {value}{because}{either}"
        if not self.other.values:
            return f"{self.given} needs {name}{because}"
        return f"{self.given} is for {self.other}, {'the mode is' if name == 'mode' else 'got'} {value}{because}"


@dataclass(frozen=True)
class Order:
    """A setting that must be below another one, or not above it."""

    less: str
    more: str
    below: bool = False
    why: str = ""

    def refusal(self, job: JobSettings) -> str:
        """What is wrong in this job."""
        less, more = (f"{name} ({getattr(job, name)})" for name in (self.less, self.more))
        return f"{less} must {'be below' if self.below else 'not exceed'} {more}{self.why and f': {self.why}'}"

    def holds(self, job: JobSettings) -> bool:
        less, more = getattr(job, self.less), getattr(job, self.more)
        return bool(less < more if self.below else less <= more)


def _is(name: str, *values: Any) -> Case:
    return Case(name, values)


NEEDS, EXCLUDES = True, False
_SHARES = _is("batch_policy", "throughput")
_NEXT_PUSH = "a push needs what the last left"
_LATE = "a gradient that comes too late would take with it what the ones before left"
RULES = (
    Rule(_is("mode", BOUNDED), NEEDS, _is("bound"), "how many steps may a worker start ahead of the slowest?"),
    Rule(_is("bound"), NEEDS, _is("mode", BOUNDED)),
    Rule(_is("max_staleness"), NEEDS, _is("mode", ASYNC)),
    Rule(_is("staleness_lr"), NEEDS, _is("mode", ASYNC, BOUNDED), "in mode sync no update is stale"),
    Rule(_is("pipeline"), NEEDS, _is("mode", ASYNC, BOUNDED), "a round of mode sync begins when the last is applied"),
    Rule(_is("on_ps_loss", "partial"), NEEDS, _is("mode", ASYNC, BOUNDED), "all variables are those of one round"),
    Rule(_is("backup_workers"), NEEDS, _is("mode", SYNC)),
    Rule(_is("backup_workers"), EXCLUDES, _is("replicate_every"), "a round may close while a replica is made"),
    Rule(_is("backup_workers"), EXCLUDES, _is("wire_error_feedback"), _LATE),
    Rule(_is("backup_workers"), EXCLUDES, _is("top_k"), _LATE),
    Rule(_SHARES, NEEDS, _is("mode", SYNC)),
    Rule(_SHARES, EXCLUDES, _is("backup_workers"), "who is in a round is not known when it begins"),
    Rule(_SHARES, NEEDS, _is("local_steps", 1), "a share is one batch"),
    Rule(_is("schedule"), EXCLUDES, _is("replicate_every"), "a replica is of one mode"),
    Rule(_is("schedule"), EXCLUDES, _is("epochs"), "epochs need data shards"),
    *(
        Rule(_is("schedule", LOCAL), EXCLUDES, _is(other), "a worker takes its steps by itself there")
        for other in ("backup_workers", "batch_policy", "wire", "top_k")
    ),
    Rule(_is("wire_error_feedback"), NEEDS, _is("wire", *WIRES[1:]), "float32 is not rounded"),
    Rule(_is("wire_error_feedback"), NEEDS, _is("pipeline", 1), _NEXT_PUSH),
    Rule(_is("top_k"), NEEDS, _is("pipeline", 1), _NEXT_PUSH),
    Rule(_is("delta_every"), NEEDS, _is("checkpoint_dir"), "deltas are written there"),
    Rule(_is("trace_steps"), NEEDS, _is("checkpoint_dir"), "the trace is written there"),
    Rule(_is("keep_best"), NEEDS, _is("checkpoint_dir"), "the best checkpoint is kept there"),
    Rule(_is("eval_every"), NEEDS, _is("checkpoint_dir"), "checkpoints are measured"),
    Rule(_is("patience"), NEEDS, _is("keep_best"), "no better by which metric?"),
    Rule(_is("warm_start_vars"), NEEDS, _is("warm_start"), "the names are of its variables"),
    Rule(_is("warm_start_names"), NEEDS, _is("warm_start"), "the names are of its variables"),
    Rule(_is("replicate_every"), EXCLUDES, _is("ps", 1), "the copy of a ps is on the next one"),
)
ORDERS = (
    Order("min_workers", "max_workers"),
    Order("backup_workers", "min_workers", below=True, why="a round needs a gradient"),
    Order("delta_every", "save_steps", below=True, why="the steps between two whole checkpoints"),
    Order("lease_s", "ps_timeout_s"),
)


def check_rules(job: JobSettings) -> None:
    """Raises UsageError at the first rule that a job does not keep."""
    for rule in RULES:
        if rule.given.holds(job) and rule.other.holds(job) != rule.needs:
            raise UsageError(rule.refusal(job))
    for order in ORDERS:
        if not order.holds(job):
            raise UsageError(order.refusal(job))


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
        keep_best="", eval_every=0, patience=None, trace_steps="", warm_start="", warm_start_vars="",
        warm_start_names="",
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
