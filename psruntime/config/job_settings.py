"""What a user can set of a job: its settings, with their defaults and their help, and what follows from them.

The job's settings are given once, to ps 0; every other process learns them from the coordinator.
Units are in the names: `_s` seconds, `_bytes` bytes, `_steps` global steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from psruntime.config.schedule import ASYNC, MODES, Schedule
from psruntime.config.settings import setting
from psruntime.config.values import BoundRange, Metric, StalenessLr, StepRange, bound_of, earlier_names, pattern_of

SUMMARY_WORKERS = ("chief", "all")
ON_NAN = ("stop", "continue")
ON_PS_LOSS = ("rollback", "partial")
PLANS = ("packed", "per-variable")
WIRES = ("float32", "bfloat16", "float16")
ON = "on"
SWITCH = ("off", ON)
ON_DATA_ERROR = ("fail", "skip")
BATCH_POLICIES = ("fixed", "throughput")
PACK_BYTES = 4 << 20  # of a bucket of several variables at most
MOST_UNDER_WAY = 32  # steps of a worker; a bucket remembers nearly twice as many pushes (graph/push/guard.py)
AT_MOST = {"pipeline": MOST_UNDER_WAY, "local_steps": 256}  # each mini-batch of a step is a copy of the model


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job, unchecked: `JobConfig` is checked."""

    mode: str = setting("consistency", ASYNC, "how updates are combined", choices=MODES)
    bound: int | None = setting(
        "consistency", None, "mode bounded: steps that a worker may start ahead of the slowest; auto:LOW-HIGH: the "
        "coordinator chooses", metavar="N|auto:LOW-HIGH", reads=bound_of, least=0,
    )  # fmt: skip
    max_bound: int | None = field(default=None)  # with bound auto:LOW-HIGH HIGH, and bound is LOW
    schedule: str = setting(
        "consistency", "", "modes with their global steps, in place of --mode, as 'async:500, bounded 4:2000, sync'; "
        "'local:200' first: 200 steps of each worker by itself, then their mean", metavar="MODES",
    )  # fmt: skip
    ps: int = setting("job", 1, "number of ps processes", least=1)
    min_workers: int = setting("job", 1, "workers that must be there before training starts", least=1)
    max_workers: int = setting(
        "job", 1024, "limit of worker indices; each costs up to 40 bytes per bucket on its ps", least=1
    )
    train_steps: int | None = setting(
        "job", None, "global step at which the job ends; without it, when its workers end", least=1
    )
    epochs: int | None = setting(
        "job", None, "epochs of data shards (context.shards) after which the job ends", least=1
    )
    checkpoint_dir: str = setting("checkpoints", "", "folder of the checkpoints; without it there are none")
    save_steps: int = setting("checkpoints", 1000, "global steps between checkpoints", least=1)
    save_secs: float = setting(
        "checkpoints", 600.0, "a checkpoint is due after this time, if anything was trained; 0: never", least=0.0
    )
    delta_every: int = setting(
        "checkpoints", 0, "global steps between deltas, checkpoints of only the touched rows of tables; 0: none",
        least=0,
    )  # fmt: skip
    keep: int = setting("checkpoints", 5, "checkpoints kept", least=1)
    summary_steps: int = setting("checkpoints", 100, "global steps between summaries for TensorBoard; 0: none", least=0)
    summary_workers: str = setting(
        "checkpoints", "chief", "workers that write summaries: the chief, or all, each to its own run",
        choices=SUMMARY_WORKERS,
    )  # fmt: skip
    trace_steps: str = setting(
        "checkpoints", "", "trace the steps from global step FIRST to before LAST", metavar="FIRST:LAST"
    )
    keep_best: str = setting(
        "checkpoints", "", "also keep the checkpoint with the least loss, or the greatest of another held-out metric; "
        "min:NAME and max:NAME choose the direction", metavar="METRIC",
    )  # fmt: skip
    eval_every: int = setting(
        "checkpoints", 0, "global steps between measurements on held-out data, each of a checkpoint that is made for "
        "it, while the training continues; with --keep-best, or loss as its metric", least=0,
        default_is="with --keep-best each checkpoint is measured",
    )  # fmt: skip
    patience: int | None = setting(
        "checkpoints", None, "end the job, as psruntime control drain does, when the metric got no better in so many "
        "measured checkpoints in a row", default_is="it is not ended", least=1,
    )  # fmt: skip
    warm_start: str = setting(
        "checkpoints", "", "checkpoint, or folder of checkpoints, from which a new job takes its initial variables",
        metavar="CHECKPOINT",
    )  # fmt: skip
    warm_start_vars: str = setting(
        "checkpoints", "", "only variables whose names begin with a match of this expression",
        metavar="REGEX", default_is="all",
    )  # fmt: skip
    warm_start_names: str = setting(
        "checkpoints", "", "variables with another name in that checkpoint", metavar="NEW=OLD,..."
    )
    replicate_every: int = setting(
        "faults", 0, "global steps between copies of each ps on the next one; 0: none", least=0
    )
    plan: str = setting(
        "network", "packed", "small variables share buckets, or each variable has its own", choices=PLANS
    )
    wire: str = setting("network", "float32", "type in which float32 travels between workers and ps", choices=WIRES)
    wire_error_feedback: str = setting(
        "network", "off", "add the rounding error of a push to the next one", choices=SWITCH
    )
    top_k: float | None = setting(
        "network", None, "fraction of each dense gradient that a worker sends, the largest entries; it adds the others "
        "to the next", metavar="FRACTION",
    )  # fmt: skip
    local_steps: int = setting(
        "consistency", 1, "mini-batches whose mean gradient a worker pushes", least=1, most=AT_MOST["local_steps"]
    )
    pipeline: int = setting(
        "consistency", 1, "mode async and bounded: steps that a worker has under way", least=1, most=AT_MOST["pipeline"]
    )
    slice_bytes: int = setting("network", 16 << 20, "larger variables are cut into slices of about this size", least=1)
    min_ps_bytes: int = setting(
        "network", 0, "dense variables are on no more ps than have this many bytes of them each; 0: on all; with table "
        "groups at least 65536; not with --plan per-variable", least=0,
    )  # fmt: skip
    max_staleness: int | None = setting(
        "consistency", None, "mode async: a ps refuses an update staler than this, in versions", least=0
    )
    staleness_lr: str = setting(
        "consistency", "", "mode async and bounded: learning rate of a stale update: rate / staleness, or rate x "
        "exp(-RATE x staleness)", metavar="inverse|exponential:RATE",
    )  # fmt: skip
    on_nan: str = setting(
        "faults", "stop", "what to do when a loss or gradient is not finite: stop the job, or drop the update and "
        "continue", choices=ON_NAN,
    )  # fmt: skip
    on_data_error: str = setting(
        "faults", "fail", "what to do with a batch that the input or the model cannot process: fail the job, or skip "
        "it", choices=ON_DATA_ERROR,
    )  # fmt: skip
    on_ps_loss: str = setting(
        "faults", "rollback", "what returns to the checkpoint when a ps lost its variables: all, or in mode async and "
        "bounded only those", choices=ON_PS_LOSS,
    )  # fmt: skip
    backup_workers: int = setting("consistency", 0, "mode sync: workers that a round does not wait for", least=0)
    batch_policy: str = setting(
        "consistency", "fixed", "mode sync: a worker's examples in a round: its batch size, or a share by its measured "
        "speed", choices=BATCH_POLICIES,
    )  # fmt: skip
    start_over: str = setting(
        "faults", "off", "train from the start when all training is lost, or from an older checkpoint when the newest "
        "is gone; off: fail", choices=SWITCH,
    )  # fmt: skip
    rounds_log: str = setting(
        "consistency", "", "mode sync: file of ps 0 with a line of JSON for every round", metavar="FILE"
    )
    round_warn_s: float = setting(
        "consistency", 30.0, "mode sync: log what a round waits for after this time", least=0.0
    )
    lease_s: float = setting(
        "faults", 10.0, "a member silent for longer is lost; a busy machine may miss a short lease", least=0.5
    )
    ps_timeout_s: float = setting(
        "faults", 300.0, "time to wait for a lost ps or coordinator before the job fails; give more than a restart "
        "takes",
    )  # fmt: skip
    drain_timeout_s: float = setting(
        "faults", 300.0, "time at the end for a worker to stop, and for progress of the chief, before it is cut off",
        least=1.0,
    )  # fmt: skip
    link_timeout_s: float = setting(
        "faults", 10.0, "a connection is closed when the other machine has acknowledged nothing for this time",
        least=1.0,
    )  # fmt: skip
    linger_s: float = setting(
        "faults", 30.0, "time that ps 0 stays after the end, so that late processes exit with 0", least=0.0
    )
    stop_grace_s: float = setting(
        "faults", 20.0, "time for a last checkpoint when the job is asked to stop; 0: a signal ends a process at once",
        least=0.0,
    )  # fmt: skip
    job_id: str = setting("job", "", "name of the job, one word; by default made of the other settings", metavar="NAME")

    @property
    def evaluation_limit_s(self) -> float:
        """What the evaluation at the end may take in all."""
        return 5 * self.drain_timeout_s

    @property
    def bound_range(self) -> BoundRange | None:
        """In which the coordinator chooses the bound; None: it does not."""
        return None if self.bound is None or self.max_bound is None else BoundRange(self.bound, self.max_bound)

    @cached_property
    def mode_schedule(self) -> Schedule | None:
        """The modes by global step, of `schedule`; None if that is empty."""
        return Schedule.of(self.schedule)

    @cached_property
    def staleness_rule(self) -> StalenessLr | None:
        """The rule of `staleness_lr`; None if that is empty."""
        return StalenessLr.of(self.staleness_lr)

    @cached_property
    def traced_steps(self) -> StepRange:
        """The global steps of `trace_steps`."""
        return StepRange.of("trace_steps", self.trace_steps)

    @property
    def measures(self) -> bool:
        """Whether the chief measures checkpoints on held-out data, and keeps the best."""
        return bool(self.keep_best or self.eval_every)

    @cached_property
    def best_metric(self) -> Metric:
        """The metric by which it compares them."""
        return Metric.of("keep_best", self.keep_best or ("loss" if self.eval_every else ""))

    @property
    def whole_every(self) -> int:
        """Global steps between checkpoints that are no deltas: each measurement has one, too."""
        return min(self.save_steps, self.eval_every or self.save_steps)

    @cached_property
    def warm_start_pattern(self) -> re.Pattern[str]:
        """The names that `warm_start_vars` matches from their beginning."""
        return pattern_of(self.warm_start_vars)

    @cached_property
    def earlier_names(self) -> dict[str, str]:
        """The names of `warm_start_names`: of a variable of this model -> of the one in the checkpoint."""
        return earlier_names(self.warm_start_names)

    @property
    def has_error_feedback(self) -> bool:
        return self.wire_error_feedback == ON

    @property
    def may_start_over(self) -> bool:
        return self.start_over == ON

    @property
    def stops_on_nan(self) -> bool:
        return self.on_nan == "stop"

    @property
    def skips_bad_batches(self) -> bool:
        return self.on_data_error == "skip"

    @property
    def has_shares(self) -> bool:
        """Whether the examples of a worker in a round follow its speed."""
        return self.batch_policy == "throughput"

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
