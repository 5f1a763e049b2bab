"""The fate of each state of a job at each event: one table, from which docs/states.md is made.

A state is data of a process or a folder that later training depends on.  An event is an action of an operator or a
fault of a process.  Each pair of both is a cell (`TABLE`).

Law: a new kind of state is a row here, with all its cells and their tests, before it is code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """A row.  The value is its name in docs/states.md."""

    VARIABLES = "trainable variables, tables included"
    SLOTS = "slots"
    STEP = "global step"
    AVERAGES = "moving averages of each worker"
    OWN = "other worker copies"
    SHARED = "variables with `aggregation=`"
    RESIDUE = "what compression has not sent"
    INPUT = "each worker's position in its input"
    SEED = "seed of that input"
    SHARDS = "position in the data shards"
    BEST = "best metric"
    LEDGER = "versions and ledgers"
    ATTEMPT = "number of the attempt (sync)"
    SETTINGS = "mode, bound, learning-rate scale, pause"
    SCHEDULE = "stage of the schedule"


class Event(Enum):
    """A column.  The value is its name in docs/states.md."""

    WORKER = "a worker is lost and restarted"
    CHIEF = "another worker becomes chief"
    PS = "a ps is lost; the newest copy is a checkpoint"
    REPLICA_SYNC = "the same; it is a replica (sync)"
    REPLICA_ASYNC = "the same; it is a replica (async, bounded), and ps 0 lives"
    COORDINATOR = "ps 0 is lost with the coordinator"
    COMMAND = "`control mode`"
    SCHEDULED = "the schedule changes the mode"
    PAUSE = "`control pause`, `resume`"
    DRAIN = "`control drain`"
    WHOLE = "a new start from a whole checkpoint"
    DELTA = "a new start from a delta"
    DAMAGED = "a new start; the newest checkpoint is damaged"
    OTHER_PS = "a new start with another number of ps"
    WARM_START = "a new job with `--warm-start`"
    EVALUATION = "a checkpoint is saved and measured (`--keep-best`)"
    EXPORT = "`psruntime export`"


class Fate(Enum):
    """The state after the event."""

    KEPT = "kept"  # as it was, or as in the checkpoint that the job is started from
    NEW = "new"  # as at the first start
    LOST = "lost"  # an older value, or none, as noted
    NONE = "-"  # the event does not affect this state, as noted


@dataclass(frozen=True)
class Cell:
    """note: in which way; empty: as the fate has it."""

    fate: Fate
    note: str = ""


KEPT, NEW = Cell(Fate.KEPT), Cell(Fate.NEW)
_BACK = Cell(Fate.LOST, "back to the newest checkpoint")
_TO_REPLICA = Cell(Fate.LOST, "back to the replica, on all ps")
_OF_THE_LOST = Cell(Fate.LOST, "back to the replica on the lost ps")
_BEFORE = Cell(Fate.LOST, "back to the checkpoint before it")
_TAKEN = Cell(Fate.KEPT, "those of the other job")
_THE_CHIEFS = Cell(Fate.KEPT, "the chief's, for all workers")
_TAKES_SAVED = Cell(Fate.LOST, "the chief's of the last checkpoint or replica")
_ALL_TAKE_SAVED = Cell(Fate.LOST, "the chief's of the restored copy, for all workers")
_NOT_SENT = Cell(Fate.NEW, "what was not sent is lost")
_SURVIVORS = Cell(Fate.KEPT, "on the workers that stay")
_NOT_SAVED = Cell(Fate.LOST, "in no checkpoint")
_BY_FLAGS = Cell(Fate.NEW, "by the flags")
_NO_SHARDS = Cell(Fate.NONE, "refused with data shards")
_COUNTERS = Cell(Fate.LOST, "those of the copy on the lost ps; undone updates on the others are `rolled_back`")

_STARTED = (Event.WHOLE, Event.DELTA, Event.DAMAGED, Event.OTHER_PS)  # again

_ON_PS: Mapping[Event, Cell] = {
    Event.PS: _BACK, Event.COORDINATOR: _BACK, Event.REPLICA_SYNC: _TO_REPLICA, Event.REPLICA_ASYNC: _OF_THE_LOST,
    Event.DAMAGED: _BEFORE,
}  # fmt: skip
_COPIES: Mapping[Event, Cell] = {
    Event.WORKER: _TAKES_SAVED, Event.CHIEF: _SURVIVORS, Event.PS: _ALL_TAKE_SAVED, Event.COORDINATOR: _ALL_TAKE_SAVED,
    Event.REPLICA_SYNC: _ALL_TAKE_SAVED, Event.DRAIN: _THE_CHIEFS, Event.WHOLE: _THE_CHIEFS, Event.DELTA: _THE_CHIEFS,
    Event.OTHER_PS: _THE_CHIEFS, Event.DAMAGED: _BEFORE, Event.WARM_START: _TAKEN,
}  # fmt: skip
_OF_PROCESS: Mapping[Event, Cell] = {  # of a worker, in no checkpoint
    Event.CHIEF: _SURVIVORS, Event.DRAIN: _NOT_SAVED, **dict.fromkeys((Event.WORKER, *_STARTED, Event.WARM_START), NEW),
}  # fmt: skip
_OTHER_ORDER = Cell(Fate.NEW, "by the global step at which the process began")

# The cells that are not plainly kept.
_EXCEPTIONS: Mapping[State, Mapping[Event, Cell]] = {
    State.VARIABLES: {**_ON_PS, Event.WARM_START: _TAKEN},
    State.SLOTS: {**_ON_PS, Event.WARM_START: NEW},
    State.STEP: {
        **_ON_PS, Event.WARM_START: NEW,
        Event.REPLICA_ASYNC: Cell(Fate.KEPT, "on ps 0; `steps_lost` has what is undone"),
    },
    State.AVERAGES: _COPIES,
    State.OWN: _COPIES,
    State.SHARED: {**_ON_PS, Event.WARM_START: _TAKEN},
    State.RESIDUE: {
        **_OF_PROCESS,
        **dict.fromkeys((Event.WORKER, Event.PS, Event.COORDINATOR, Event.REPLICA_SYNC, *_STARTED), _NOT_SENT),
    },
    State.INPUT: {
        **_OF_PROCESS, Event.PS: Cell(Fate.KEPT, "batches of undone updates are not read again"),
    },
    State.SEED: {
        **_OF_PROCESS, **dict.fromkeys((Event.WORKER, *_STARTED), _OTHER_ORDER),
    },
    State.SHARDS: {
        **_ON_PS, Event.REPLICA_SYNC: _BACK, Event.REPLICA_ASYNC: _BACK, Event.WARM_START: NEW,
        Event.WORKER: Cell(Fate.KEPT, "the lost worker's shards are read again"),
        Event.CHIEF: Cell(Fate.KEPT, "the lost worker's shards are read again"),
        Event.COMMAND: _NO_SHARDS, Event.SCHEDULED: _NO_SHARDS,
    },
    State.BEST: {Event.WARM_START: NEW},
    State.LEDGER: {
        **dict.fromkeys((Event.PS, Event.COORDINATOR, Event.REPLICA_SYNC, Event.REPLICA_ASYNC), _COUNTERS),
        Event.DAMAGED: Cell(
            Fate.LOST, "the checkpoint before it; what the damaged one adds may be in `rolled_back`"
        ),
        Event.OTHER_PS: Cell(Fate.KEPT, "except of buckets that the new plan lacks"),
        Event.WARM_START: NEW,
    },
    State.ATTEMPT: {
        Event.REPLICA_ASYNC: Cell(Fate.NONE, "sync alone has attempts"), Event.DRAIN: _NOT_SAVED,
        **dict.fromkeys((*_STARTED, Event.WARM_START), NEW),
    },
    State.SETTINGS: {
        Event.COMMAND: Cell(Fate.KEPT, "but mode and bound"), Event.SCHEDULED: Cell(Fate.KEPT, "but mode and bound"),
        Event.PAUSE: Cell(Fate.KEPT, "but the pause"), Event.DRAIN: _NOT_SAVED,
        **dict.fromkeys((*_STARTED, Event.WARM_START), _BY_FLAGS),
    },
    State.SCHEDULE: {
        Event.COMMAND: Cell(Fate.LOST, "left, until `mode schedule`"),
        Event.REPLICA_SYNC: Cell(Fate.NONE, "refused with `--replicate-every`"),
        Event.REPLICA_ASYNC: Cell(Fate.NONE, "refused with `--replicate-every`"),
        **dict.fromkeys(_STARTED, Cell(Fate.KEPT, "that of the global step, also if a command had left it")),
        Event.WARM_START: NEW,
    },
}  # fmt: skip

TABLE: Mapping[State, Mapping[Event, Cell]] = {
    state: {event: _EXCEPTIONS[state].get(event, KEPT) for event in Event} for state in State
}

# The event of the log that reports it; empty: the output of the command does.
LOGGED: Mapping[Event, str] = {
    Event.WORKER: "member_joined", Event.CHIEF: "chief", Event.PS: "restored", Event.REPLICA_SYNC: "restored",
    Event.REPLICA_ASYNC: "restored", Event.COORDINATOR: "restored", Event.COMMAND: "steered",
    Event.SCHEDULED: "steered", Event.PAUSE: "steered", Event.DRAIN: "steered", Event.WHOLE: "restored",
    Event.DELTA: "restored", Event.DAMAGED: "checkpoint_damaged", Event.OTHER_PS: "restored",
    Event.WARM_START: "warm_started", Event.EVALUATION: "measured", Event.EXPORT: "",
}  # fmt: skip

# The documents or commands that show it.
READ: Mapping[State, str] = {
    State.VARIABLES: "checkpoint: `w`", State.SLOTS: "checkpoint: `w/Adam`", State.STEP: "status `global_step`",
    State.AVERAGES: "checkpoint: the chief's", State.OWN: "checkpoint: the chief's",
    State.SHARED: "checkpoint: `w`", State.RESIDUE: "nowhere",
    State.INPUT: "[rounds log](modes.md#the-rounds-log): `parts.batch`", State.SEED: "`context.seed`",
    State.SHARDS: "status `shards`; log `position`", State.BEST: "`best/best.json`; log `measured`",
    State.LEDGER: "status `ps_stats`; log `ledger`", State.ATTEMPT: "[record](observing.md#records): `push`",
    State.SETTINGS: "status `steering.settings`", State.SCHEDULE: "status `steering.settings.automatic`",
}  # fmt: skip
