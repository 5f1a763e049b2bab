"""Messages between members and coordinator.  Plain data; rpc/wire has the wire form."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Annotated

from psruntime.config.job import check_job_id
from psruntime.config.schedule import SYNC
from psruntime.core.fields import (
    ADDRESS_CHARS,
    BYTES_LIMIT,
    LOCAL,
    NAME_CHARS,
    REMEMBERED,
    Address,
    AnyFloat,
    AtMost,
    Chars,
    Different,
    Incarnation,
    Line,
    Name,
    Positive,
    Tag,
    Whole,
    Words,
)
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.view import UNKNOWN, Past, Phase, View
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import UNSAID, ModelIdentity
from psruntime.core.shards.shard_messages import Position
from psruntime.core.steering.commands import UNCHANGED, Overrides
from psruntime.errors import UsageError

VERSION_CHARS = 64
JOIN_ID_CHARS = 64
SPECS = 100_000  # in one message
WORKERS = 100_000
MOST_CAUSES = 64
CAUSE_CHARS = 64
GPUS = 64  # of a machine
STEP_TIMES = 50  # of a worker
METRICS = 100  # of a measurement

Variables = Annotated[tuple[VariableSpec, ...], AtMost(SPECS), Different(attrgetter("name")), REMEMBERED]
ByWorker = Annotated[dict[int, int], AtMost(WORKERS)]
ByCause = Annotated[dict[Annotated[str, Line(CAUSE_CHARS)], int], AtMost(MOST_CAUSES)]
BytesSum = Annotated[int, Whole(limit=BYTES_LIMIT)]


@dataclass(frozen=True)
class Machine:
    """What decides how a process rounds: the model of its processor, the threads that share one operation, and the
    version of TensorFlow; empty: not known."""

    processor: Annotated[str, Chars(ADDRESS_CHARS)]
    threads: Positive
    tensorflow: Annotated[str, Chars(VERSION_CHARS)] = ""


@dataclass(frozen=True)
class Join:
    """A process asks to become a member.

    `join_id` is random text, the same in every repeat of this join; `waited_s` is the time since the
    first of them.  `job_id` names the job that the process serves.  `variables` are those of a worker's model, in
    its order, without local ones and the global step, `identity` is what else the model is; of a ps, its versions.
    `machine` is that of a ps, or of a worker that computes on the CPU.  `began_at` is the global step that the job had
    reached when a worker's process was started, on which its input depends.
    """

    role: Role
    index: int
    address: Address
    health_address: Address
    join_id: Annotated[str, Chars(JOIN_ID_CHARS, least=1)]
    job_id: Annotated[str, check_job_id]
    waited_s: float = 0.0
    variables: Variables = ()
    past: Past = UNKNOWN
    identity: ModelIdentity = UNSAID
    machine: Machine | None = None
    began_at: int = 0

    def checked(self) -> Join:
        """Itself.  Raises UsageError if it is that of a ps, and has variables."""
        if self.role is Role.PS and self.variables:
            raise UsageError(f"variables must be empty for a ps, got {len(self.variables)}")
        return self


@dataclass(frozen=True)
class NotYet:
    """The index is held by a process that may be dead.

    `tag` is that of its incarnation; `holder`, all that is known of it, stays with the coordinator.
    """

    reason: Words
    tag: Tag
    holder: Annotated[Member | None, LOCAL] = None


@dataclass(frozen=True)
class BytesMoved:
    """Bytes over the connections of TensorFlow's server, since its process started."""

    sent: BytesSum = 0
    received: BytesSum = 0


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU that a worker has allocated.

    index: of the GPU on its machine, in the order of PCI addresses.  name: of its model.  total_bytes: of the GPU.
    """

    index: int
    name: Name
    held_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class RowCounts:
    """Of the rows that a ps has of a dynamic table, or of all its rows.

    Rows of gradients: found theirs, admitted: were given one, refused: have none, and changed nothing.
    Rows that were taken back: expired, evicted.
    """

    table: Name
    rows: int
    found: int = 0
    admitted: int = 0
    refused: int = 0
    expired: int = 0
    evicted: int = 0

    @property
    def known(self) -> int:
        """Ids that have a row."""
        return self.admitted - self.expired - self.evicted

    @property
    def shown(self) -> dict[str, int]:
        """By column of a table: the ids that have a row, the rows, and each count."""
        return {"ids": self.known, **{name: count for name, count in vars(self).items() if name != "table"}}

    def plus(self, other: RowCounts) -> RowCounts:
        """Of the rows of both."""
        ours, theirs = (astuple(counts)[1:] for counts in (self, other))
        return RowCounts(self.table, *(a + b for a, b in zip(ours, theirs, strict=True)))


ROW_COLUMNS = tuple(RowCounts("", 0).shown)


@dataclass(frozen=True)
class PsStats:
    """What a ps measures on itself.  Counts are sums over its buckets."""

    bytes_held: int = 0
    buckets: int = 0
    received: int = 0
    applied: int = 0
    dropped: ByCause = field(default_factory=dict)
    max_staleness: int = 0  # largest staleness of an applied update, in versions
    pending: int = 0  # contributions to rounds that have not closed
    rolled_back: int = 0  # applied once, and undone by a return to an older state
    received_of: ByWorker = field(default_factory=dict)  # pushes that each bucket has at least
    moved: BytesMoved | None = None  # None: the system does not report it
    row_counts: Annotated[tuple[RowCounts, ...], AtMost(SPECS)] = ()  # of each dynamic table
    down_weighted: int = 0  # of the applied: with a learning rate that was lowered for their staleness


STALENESS_LIMITS = (0, *(2**power for power in range(11)))  # versions; of WorkerStats.staleness_counts


def _of_all_limits(name: str, counts: tuple[int, ...]) -> tuple[int, ...]:
    if len(counts) not in (0, len(STALENESS_LIMITS) + 1):
        raise UsageError(f"{name} must be {len(STALENESS_LIMITS) + 1} numbers or none, got {len(counts)}")
    return counts


@dataclass(frozen=True)
class WorkerStats:
    """What a worker measures on itself, over its last steps."""

    pushes: int = 0  # sent since the process started
    staleness_p50: int = 0  # versions
    staleness_p99: int = 0
    examples_per_s: float = 0.0
    loss: AnyFloat | None = None
    waiting: Words = ""  # why it does not step now; empty while it does
    max_lead: int = 0  # mode bounded: largest lead, over the floor that it knew, at which it started a step
    moved: BytesMoved | None = None  # None: the system does not report it
    step_tensors: int | None = None  # of a step, by its plan (core/plan/plan.py); None: no plan, or mode sync
    skipped: int = 0  # batches that it passed over, see on_data_error
    # pushes since the process started: up to each of STALENESS_LIMITS and above the one before it, then the staler ones
    staleness_counts: Annotated[tuple[int, ...], AtMost(len(STALENESS_LIMITS) + 1), _of_all_limits] = ()
    gpus: Annotated[tuple[GpuMemory, ...], AtMost(GPUS)] = ()  # on which it has memory, as far as the driver reports it


@dataclass(frozen=True)
class PsBeat:
    """Heartbeat of a ps.

    fence_revision: of the admitted table that it has written.  global_step: read in the prepared view `view`, on the ps
    that has it.  asked_to_stop: the process got a signal to stop.  stood_still_s: seconds for which no Python ran in
    the process, since it last reported that; 0: it ran.
    """

    fence_revision: int = 0
    view: int = 0
    global_step: int = 0
    stats: PsStats = PsStats()
    asked_to_stop: bool = False
    stood_still_s: float = 0.0


@dataclass(frozen=True)
class GraphsBuilt:
    """The graphs that a worker has built: that of rounds is for mode sync, that of pushes for the others.

    failure: why it cannot build the graph of its instructions; empty if it can.  failed_build: the build_number of
    these.
    """

    rounds: bool = False
    pushes: bool = False
    failure: Words = ""
    failed_build: int = 0

    def serve(self, mode: str) -> bool:
        """Whether it can step in this mode."""
        return self.rounds if mode == SYNC else self.pushes


@dataclass(frozen=True)
class HeldOut:
    """Metrics on held-out data by name, of the parameters at a global step.  A value need not be finite."""

    global_step: int
    values: Annotated[dict[Name, AnyFloat], AtMost(METRICS)]

    @classmethod
    def of(cls, global_step: int, values: dict[str, float]) -> HeldOut:
        """The metrics that fit into a message."""
        fitting = [(name, float(value)) for name, value in values.items() if 0 < len(name) <= NAME_CHARS]
        return cls(global_step, dict(fitting[:METRICS]))


@dataclass(frozen=True)
class Measurements:
    """What was measured on held-out data: last, and best by the metric that is compared, which alone it has."""

    last: HeldOut | None = None
    best: HeldOut | None = None


UNMEASURED = Measurements()


@dataclass(frozen=True)
class FailedSaves:
    """Tries to write a checkpoint that have failed since the last that was written, and why the latest did."""

    count: int = 0
    cause: Words = ""


NO_FAILED_SAVES = FailedSaves()


@dataclass(frozen=True)
class WorkerBeat:
    """Heartbeat of a worker.

    steps: completed in view `view`.  stopped: it takes no further step in it.
    closed_parts: parts of the end of the job that it has done as chief: a checkpoint written, a batch measured.
    saved_step: of the newest checkpoint, if it has written one in this view.  asked_to_stop: as in PsBeat.
    prepares: number of the view that it prepares as chief, 0 for none.  saves: it is writing a checkpoint.
    paused_epoch: the pause in which it has no step under way and begins none, 0 for none.
    step_times_s: where the coordinator chooses the bound, seconds of its last steps without waits, the newest last.
    starve_count: mode bounded: how often it became starved, or ended that; odd while it has no batch and no step under
    way.  failure: for which the job ends once it is saved; empty: none.  stood_still_s: as in PsBeat.
    early_stop: why the job is to end before its limit, by a held-out metric; empty: it is not.
    """

    view: int = 0
    steps: int = 0
    global_step: int = 0
    stopped: bool = False
    stats: WorkerStats = WorkerStats()
    closed_parts: int = 0
    saved_step: int | None = None
    asked_to_stop: bool = False
    prepares: int = 0
    saves: bool = False
    paused_epoch: int = 0
    step_times_s: Annotated[tuple[float, ...], AtMost(STEP_TIMES)] = ()
    graphs: GraphsBuilt = GraphsBuilt()
    starve_count: int = 0
    failure: Words = ""
    stood_still_s: float = 0.0
    held_out: Measurements = Measurements()
    early_stop: Words = ""
    failed_saves: FailedSaves = FailedSaves()


@dataclass(frozen=True)
class Instructions:
    """The instructions of a member: all that it needs in order to act."""

    phase: Phase
    reason: Words  # why the phase is what it is
    view: View
    chief: bool = False  # worker: it is the chief
    restore: bool = False  # chief: it goes back to the last checkpoint, even if the ps have newer values
    admitted_by_ps: bool = False  # worker: every ps of the view accepts its pushes
    close: bool = False  # chief: all others have stopped, the last checkpoint can be written
    admitted: tuple[tuple[int, Incarnation], ...] = ()  # ps: (worker index, incarnation), by index
    fence_revision: int = 0  # ps: of `admitted`
    clock: int = 0  # worker: its clock when it entered the view
    report_every_s: float = 0.0  # worker in mode bounded: between two reports for which no other waits
    max_staleness: int | None = None  # ps: it refuses an update that is staler, in versions; None: no limit
    saved_step: int | None = None  # global step of the newest checkpoint; None: there is none
    seen_step: int = 0  # before the view is prepared: the highest global step that was seen
    stopping: bool = False  # worker: the job was asked to stop before its end: it ends once it is saved
    save: bool = False  # chief: a checkpoint is due at once: a ps is about to leave, or an operator wants it
    leave: bool = False  # ps that was asked to stop: nothing keeps it here; worker: it is asked to leave after its step
    settings: Overrides = UNCHANGED  # in force; ps: to write, and then in force
    pause_epoch: int = 0  # worker: the pause in which it begins no step; 0: there is none
    pause_reason: Words = ""  # why, for people
    build: Words = ""  # worker: it gets ready for the steps of this mode, and steps on as it does; empty: for no other
    build_number: int = 0  # of the change for which it is to; 0: there is none
    identity: ModelIdentity | None = None  # ps: of the job's model; None: no worker has joined yet


@dataclass(frozen=True)
class Answer:
    """The instructions of a member, and their revision since its admission, from 1.

    remark: to a join only: what of the worker's model differs from the job's and need not agree; empty if nothing does.
    """

    incarnation: Incarnation
    instructions: Instructions
    revision: Positive
    remark: Words = ""


NOT_JOINED = 0  # stands for the incarnation of a process that ends before its join


class LeaveKind(str, Enum):
    """Why a member leaves, or a process ends before its join."""

    OVER = "over"  # the job is over
    ASKED = "asked"  # a signal or an operator asked the process to stop
    ERROR = "error"  # the process failed, and is a member again when it is started again
    USAGE = "usage"  # the process is used wrongly, and not started again; the job continues without it
    FATAL = "fatal"  # the job cannot continue either

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Event:
    """Something an operator wants to read, as a name and its facts."""

    name: str
    facts: dict[str, object]


@dataclass(frozen=True)
class Assignment:
    """What a worker may open a session for: a view, under an incarnation.

    prepare: to prepare it first.  restore: from the last checkpoint, whatever the ps contain.
    clock: the worker's when it entered the view under this incarnation.  saved_step, seen_step: as in Instructions.
    View, incarnation and prepare alone are compared: a later session of the same view has newer steps.
    """

    view: View
    incarnation: int
    prepare: bool
    restore: bool = field(default=False, compare=False)
    clock: int = field(default=0, compare=False)
    saved_step: int | None = field(default=None, compare=False)
    seen_step: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Prepared:
    """Report of the chief on a view that it has prepared: the global step of its variables.

    attempt: the highest that its ps have seen, in mode sync.  steps_lost: by what the ps lost, as far as the chief
    knows.  saved_step: of the newest checkpoint as the chief finds it; None: there is none.  position: how far the
    variables are with the data shards; None: as far as the coordinator knows, or there are no shards.
    """

    global_step: int
    attempt: int = 0
    steps_lost: int = 0
    saved_step: int | None = None
    position: Position | None = None


class Ending(Enum):
    """What a worker does after its last step."""

    RESUME = "resume"  # the view changed before the end: train on
    CLOSE = "close"  # it is the chief, and everybody has stopped: write the last checkpoint
    OVER = "over"  # the job is done
