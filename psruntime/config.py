"""What a user can set of a job: one frozen dataclass, with all checks.

The job's settings are given once, to ps 0; every other process learns them from the coordinator.
Units are in the names: `_s` seconds, `_bytes` bytes, `_steps` global steps.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from psruntime.bound_range import BoundRange, bound_of
from psruntime.errors import UsageError
from psruntime.metric import Metric
from psruntime.modes import BOUNDED, MODES, named
from psruntime.schedule import LOCAL, Schedule
from psruntime.settings import at_least, check_choices, flag_of, setting
from psruntime.staleness_lr import StalenessLr
from psruntime.step_range import StepRange
from psruntime.warm_names import earlier_names, pattern_of

SUMMARY_WORKERS = ("chief", "all")
ON_NAN = ("stop", "continue")
ON_PS_LOSS = ("rollback", "partial")
PLANS = ("packed", "per-variable")
WIRES = ("float32", "bfloat16", "float16")
SWITCH = ("off", "on")
ON_DATA_ERROR = ("fail", "skip")
BATCH_POLICIES = ("fixed", "throughput")
PACK_BYTES = 4 << 20  # of a bucket of several variables at most
FROM_ONE = ("ps", "min_workers", "max_workers", "save_steps", "keep", "slice_bytes", "local_steps", "pipeline")
MOST_UNDER_WAY = 32  # steps of a worker; a bucket remembers nearly twice as many pushes (graph/push/push_window.py)
AT_MOST = {"pipeline": MOST_UNDER_WAY, "local_steps": 256}  # each mini-batch of a step is a copy of the model
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class JobConfig:
    """The job's settings, the same for every process.

    A job without a name gets one that is made of its settings, so that the same command is the same job.

    Raises:
        UsageError: a value is out of range; the message names the setting and the range.
    """

    mode: str = setting("consistency", "async", "how updates are combined", choices=MODES)
    bound: int | None = setting(
        "consistency", None, "mode bounded: steps that a worker may start ahead of the slowest; auto:LOW-HIGH lets "
        "the coordinator choose it in that range, by the durations of the workers' steps", metavar="N|auto:LOW-HIGH",
        reads=bound_of,
    )  # fmt: skip
    max_bound: int | None = field(default=None)  # with bound auto:LOW-HIGH HIGH, and bound is LOW
    schedule: str = setting(
        "consistency", "", "modes by global step, instead of --mode, as 'async:500, bounded 4:2000, sync': 500 "
        "global steps of the first, 2000 of the second, then the last; 'local:200' in front: 200 steps of each "
        "worker by itself, then the mean", metavar="MODES",
    )  # fmt: skip
    ps: int = setting("job", 1, "number of ps processes")
    min_workers: int = setting("job", 1, "workers that must be there before training starts")
    max_workers: int = setting("job", 1024, "worker indices are below this; each costs 40 bytes per bucket on its ps")
    train_steps: int | None = setting(
        "job", None, "global step at which the job ends; without it, when its workers end"
    )
    epochs: int | None = setting(
        "job", None, "times that the input is read before the job ends; input_fn has to call context.shards"
    )
    checkpoint_dir: str = setting("checkpoints", "", "folder of the checkpoints; none are written without it")
    save_steps: int = setting("checkpoints", 1000, "global steps between checkpoints")
    save_secs: float = setting(
        "checkpoints", 600.0, "seconds after which a checkpoint is due in any case, if anything was trained; 0: never"
    )
    delta_every: int = setting(
        "checkpoints", 0, "global steps between deltas, checkpoints of only the rows of tables that were touched "
        "since the last whole one; 0: none",
    )  # fmt: skip
    keep: int = setting("checkpoints", 5, "checkpoints kept")
    summary_steps: int = setting(
        "checkpoints", 100, "global steps between summaries for TensorBoard, beside the checkpoints; 0: none"
    )
    summary_workers: str = setting(
        "checkpoints", "chief", "which workers write summaries: the chief, to the folder of the checkpoints, or "
        "all, each to its own run in workers/ there", choices=SUMMARY_WORKERS,
    )  # fmt: skip
    trace_steps: str = setting(
        "checkpoints", "", "trace the steps from global step FIRST to before LAST, to a file beside the checkpoints "
        "for Perfetto and psruntime trace", metavar="FIRST:LAST",
    )  # fmt: skip
    keep_best: str = setting(
        "checkpoints", "", "also keep the checkpoint that is best by a held-out metric, the least loss or the "
        "greatest of any other; min:NAME and max:NAME choose the direction", metavar="METRIC",
    )  # fmt: skip
    warm_start: str = setting(
        "checkpoints", "", "checkpoint, or folder of checkpoints, from which a job without its own takes the values "
        "of variables of the same names", metavar="CHECKPOINT",
    )  # fmt: skip
    warm_start_vars: str = setting(
        "checkpoints", "", "only variables whose names begin with a match of this regular expression",
        metavar="REGEX", default_is="all",
    )  # fmt: skip
    warm_start_names: str = setting(
        "checkpoints", "", "variables with another name in that checkpoint", metavar="NEW=OLD,..."
    )
    replicate_every: int = setting(
        "faults", 0, "global steps between copies of each ps on the next one, which restore it without a disk; 0: "
        "none",
    )  # fmt: skip
    plan: str = setting(
        "network", "packed", "whether small variables share buckets, or each variable has its own",
        choices=PLANS,
    )  # fmt: skip
    wire: str = setting(
        "network", "float32", "type in which float32 travels between workers and ps; half precision halves the "
        "bytes",
        choices=WIRES,
    )  # fmt: skip
    wire_error_feedback: str = setting(
        "network", "off", "add the rounding error of a push to the next one", choices=SWITCH
    )
    top_k: float | None = setting(
        "network", None, "fraction of the entries of each dense gradient that a worker sends, the largest; the "
        "others are added to the next gradient", metavar="FRACTION",
    )  # fmt: skip
    local_steps: int = setting("consistency", 1, "mini-batches whose mean gradient a worker pushes")
    pipeline: int = setting("consistency", 1, "mode async and bounded: steps that a worker has under way at a time")
    slice_bytes: int = setting("network", 16 << 20, "a larger variable is cut into slices of about this many bytes")
    min_ps_bytes: int = setting(
        "network", 0, "variables other than tables are on no more ps than have this many bytes of them each; 0: on "
        "all; with table groups at least 65536; not with --plan per-variable",
    )  # fmt: skip
    max_staleness: int | None = setting(
        "consistency", None, "mode async: a ps refuses an update staler than this many versions"
    )
    staleness_lr: str = setting(
        "consistency", "", "mode async and bounded: lower the learning rate of an update by its staleness, to rate "
        "/ staleness or rate x exp(-RATE x staleness)", metavar="inverse|exponential:RATE",
    )  # fmt: skip
    on_nan: str = setting(
        "faults",
        "stop",
        "what to do when a loss or gradient is not finite: stop the job, or drop the update and continue",
        choices=ON_NAN,
    )
    on_data_error: str = setting(
        "faults", "fail", "what to do with a batch that the input or the model cannot process: fail the job, or "
        "skip, count and log it", choices=ON_DATA_ERROR,
    )  # fmt: skip
    on_ps_loss: str = setting(
        "faults", "rollback", "which variables return to the checkpoint when a ps lost its own: all, or in mode "
        "async and bounded only those of that ps", choices=ON_PS_LOSS,
    )  # fmt: skip
    backup_workers: int = setting(
        "consistency", 0, "mode sync: workers that a round does not wait for; a later gradient is dropped"
    )
    batch_policy: str = setting(
        "consistency", "fixed", "mode sync: examples of each worker in a round: its batch size, or a share of all "
        "by its measured speed", choices=BATCH_POLICIES,
    )  # fmt: skip
    start_over: str = setting(
        "faults", "off", "start the training again when all of it is lost, or from an older checkpoint when the "
        "newest is gone; off: the job fails", choices=SWITCH,
    )  # fmt: skip
    rounds_log: str = setting(
        "consistency", "", "mode sync: file of ps 0 with a line of JSON for every round", metavar="FILE"
    )
    round_warn_s: float = setting(
        "consistency", 30.0, "mode sync: log once what a round waits for when it waits longer"
    )
    lease_s: float = setting("faults", 10.0, "a member that is silent for longer is lost")
    ps_timeout_s: float = setting(
        "faults", 300.0, "time to wait for a lost ps, and in every process for a lost coordinator, before the job fails"
    )
    drain_timeout_s: float = setting(
        "faults", 300.0, "at the end, time for a worker to stop and for the chief to make progress before it is cut "
        "off",
    )  # fmt: skip
    link_timeout_s: float = setting(
        "faults", 10.0, "time after which a connection between ps and workers is closed if the other machine "
        "acknowledges nothing",
    )  # fmt: skip
    linger_s: float = setting("faults", 30.0, "time that ps 0 stays after the end of the job, for latecomers")
    stop_grace_s: float = setting(
        "faults", 20.0, "time for a last checkpoint when the job is asked to stop by SIGTERM or Ctrl-C; 0: a signal "
        "ends a process at once",
    )  # fmt: skip
    job_id: str = setting(
        "job", "", "name of the job, a word; without one it is made of the other settings", metavar="NAME"
    )

    @property
    def evaluation_limit_s(self) -> float:
        """What the evaluation at the end may take in all."""
        return 5 * self.drain_timeout_s

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

    @property
    def bound_range(self) -> BoundRange | None:
        """In which the coordinator chooses the bound; None: it does not."""
        return None if self.bound is None or self.max_bound is None else BoundRange(self.bound, self.max_bound)

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

    @property
    def best_metric(self) -> Metric:
        """By which the best checkpoint is kept."""
        return Metric.of("keep_best", self.keep_best)

    @property
    def pack_bytes(self) -> int:
        """Largest size of a bucket of several variables; 0: there is none."""
        return PACK_BYTES if self.plan == "packed" else 0

    @property
    def plan_sizes(self) -> tuple[int, int, int]:
        """What decides the plan beside the model and the number of ps, as `make_plan` takes it."""
        return self.slice_bytes, self.pack_bytes, self.min_ps_bytes

    @property
    def of_rounds(self) -> dict[str, Any]:
        """What decides the bits of a round beside the model, as the rounds log has it."""
        lossy = {"wire": self.wire, "top_k": self.top_k}
        return {"plan": [self.ps, *self.plan_sizes], **{k: v for k, v in lossy.items() if v not in ("float32", None)}}

    @property
    def heartbeat_s(self) -> float:
        """Longest time between two heartbeats of a member: three chances within a lease."""
        return self.lease_s / 3


def local_path(path: str) -> str:
    """The path of a `file:` URL, as TensorFlow reads it: without a host, and `%20` is no space; else `path` itself.

    Raises:
        UsageError: the URL names another machine, or no path from the root.
    """
    if not path.startswith("file:"):
        return path
    found = re.fullmatch(r"file:(?://(?:localhost)?)?(/.*)", path)
    if not found or (path.startswith("file://") and found[1].startswith("//")):
        raise UsageError(f"{path} is no path of this machine; give the path itself, as /folder/name")
    return found[1]


def whole_path(folder: str) -> str:
    """The folder's path from the root, in the form that everybody compares; one of `gs://...` keeps its scheme.

    Raises:
        UsageError: as `local_path`.
    """
    folder = local_path(folder)
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{os.path.normpath(rest)}" if separator else os.path.abspath(folder)


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
