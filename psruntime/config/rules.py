"""What settings of a job need of each other: the table by which jobs are checked and docs/settings.md is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from psruntime.config.job_settings import WIRES, JobSettings
from psruntime.config.schedule import ASYNC, BOUNDED, LOCAL, SYNC
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
