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
        "consistency", None, "mode bounded: steps that a worker may start ahead of the slowest; auto:LOW-HIGH lets "
        "the coordinator choose it in that range, by the durations of the workers' steps", metavar="N|auto:LOW-HIGH",
        reads=bound_of, least=0,
    )  # fmt: skip
    max_bound: int | None = field(default=None)  # with bound auto:LOW-HIGH HIGH, and bound is LOW
    schedule: str = setting(
        "consistency", "", "modes by global step, instead of --mode, as 'async:500, bounded 4:2000, sync': 500 "
        "global steps of the first, 2000 of the second, then the last; 'local:200' in front: 200 steps of each "
        "worker by itself, then the mean", metavar="MODES",
    )  # fmt: skip
    ps: int = setting("job", 1, "number of ps processes", least=1)
    min_workers: int = setting("job", 1, "workers that must be there before training starts", least=1)
    max_workers: int = setting(
        "job", 1024, "worker indices are below this; each costs 40 bytes per bucket on its ps", least=1
    )
    train_steps: int | None = setting(
        "job", None, "global step at which the job ends; without it, when its workers end", least=1
    )
    epochs: int | None = setting(
        "job", None, "times that the input is read before the job ends; input_fn has to call context.shards", least=1
    )
    checkpoint_dir: str = setting("checkpoints", "", "folder of the checkpoints; none are written without it")
    save_steps: int = setting("checkpoints", 1000, "global steps between checkpoints", least=1)
    save_secs: float = setting(
        "checkpoints", 600.0, "seconds after which a checkpoint is due in any case, if anything was trained; 0: never",
        least=0.0,
    )  # fmt: skip
    delta_every: int = setting(
        "checkpoints", 0, "global steps between deltas, checkpoints of only the rows of tables that were touched "
        "since the last whole one; 0: none", least=0,
    )  # fmt: skip
    keep: int = setting("checkpoints", 5, "checkpoints kept", least=1)
    summary_steps: int = setting(
        "checkpoints", 100, "global steps between summaries for TensorBoard, beside the checkpoints; 0: none", least=0
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
        "none", least=0,
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
    local_steps: int = setting(
        "consistency", 1, "mini-batches whose mean gradient a worker pushes", least=1, most=AT_MOST["local_steps"]
    )
    pipeline: int = setting(
        "consistency", 1, "mode async and bounded: steps that a worker has under way at a time", least=1,
        most=AT_MOST["pipeline"],
    )  # fmt: skip
    slice_bytes: int = setting(
        "network", 16 << 20, "a larger variable is cut into slices of about this many bytes", least=1
    )
    min_ps_bytes: int = setting(
        "network", 0, "variables other than tables are on no more ps than have this many bytes of them each; 0: on "
        "all; with table groups at least 65536; not with --plan per-variable", least=0,
    )  # fmt: skip
    max_staleness: int | None = setting(
        "consistency", None, "mode async: a ps refuses an update staler than this many versions", least=0
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
        "consistency", 0, "mode sync: workers that a round does not wait for; a later gradient is dropped", least=0
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
        "consistency", 30.0, "mode sync: log once what a round waits for when it waits longer", least=0.0
    )
    lease_s: float = setting("faults", 10.0, "a member that is silent for longer is lost", least=0.5)
    ps_timeout_s: float = setting(
        "faults", 300.0, "time to wait for a lost ps, and in every process for a lost coordinator, before the job fails"
    )
    drain_timeout_s: float = setting(
        "faults", 300.0, "at the end, time for a worker to stop and for the chief to make progress before it is cut "
        "off", least=1.0,
    )  # fmt: skip
    link_timeout_s: float = setting(
        "faults", 10.0, "time after which a connection between ps and workers is closed if the other machine "
        "acknowledges nothing", least=1.0,
    )  # fmt: skip
    linger_s: float = setting(
        "faults", 30.0, "time that ps 0 stays after the end of the job, for latecomers", least=0.0
    )
    stop_grace_s: float = setting(
        "faults", 20.0, "time for a last checkpoint when the job is asked to stop by SIGTERM or Ctrl-C; 0: a signal "
        "ends a process at once", least=0.0,
    )  # fmt: skip
    job_id: str = setting(
        "job", "", "name of the job, a word; without one it is made of the other settings", metavar="NAME"
    )

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

    @cached_property
    def best_metric(self) -> Metric:
        """The metric of `keep_best`."""
        return Metric.of("keep_best", self.keep_best)

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
