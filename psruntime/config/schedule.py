"""The modes in which workers are kept together, and the schedule of a job, --schedule: its mode at each global step.

    async:500, bounded 4:2000, sync

500 global steps in mode async, the next 2000 in mode bounded with bound 4, and mode sync from global step 2500 on.  A
global step is an update of one worker, in mode sync a round.  The mode follows from the global step alone, so it needs
no memory: a job that goes back to a checkpoint, or is started again, is in the mode of its global step.

A stage `local:200` is 200 steps that each worker takes by itself, and the mean of what all have then: a round of mode
sync that takes the variables through the whole stage.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from psruntime.config.settings import suggestion
from psruntime.errors import UsageError

ASYNC, BOUNDED, SYNC = MODES = ("async", "bounded", "sync")
EXAMPLE = "async:200, bounded 4:500, sync"
LOCAL = "local"
STAGES = (*MODES, LOCAL)
MOST_STAGES = 64
_STAGE = re.compile(r"([a-z]+)(?: +([0-9]{1,15}))? *(?:: *([0-9]{1,15}))?")


def named(mode: str, bound: int | None) -> str:
    """As people write it.  bound: of mode bounded."""
    return mode if bound is None else f"{mode} {bound}"


@dataclass(frozen=True)
class Stage:
    """bound: of mode bounded, else None.  steps: how many it lasts; None: to the end of the job.

    is_local: it is a local stage, of mode sync.
    """

    mode: str
    bound: int | None = None
    steps: int | None = None
    is_local: bool = False

    def __str__(self) -> str:
        return LOCAL if self.is_local else named(self.mode, self.bound)


@dataclass(frozen=True)
class Schedule:
    """Its stages, one after the other."""

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, text: str) -> Schedule | None:
        """The schedule in `text`; None if it is empty.

        Raises:
            UsageError: it is none.
        """
        if not text.strip():
            return None
        stages = tuple(_stage_of(part.strip()) for part in text.split(","))
        if len(stages) > MOST_STAGES:
            raise UsageError(f"schedule must have at most {MOST_STAGES} stages, got {len(stages)}")
        for stage in stages[:-1]:
            if not stage.steps:
                raise UsageError(f"schedule: '{stage}' needs how many global steps it lasts, as in {EXAMPLE}")
        if stages[-1].is_local:
            raise UsageError(f"schedule: the last stage cannot be {LOCAL}; add the one in which the job continues")
        if stages[-1].steps is not None:
            raise UsageError(
                f"schedule: the last stage, '{stages[-1]}', lasts to the end of the job; leave out its steps"
            )
        for before, after in pairwise(stages):
            if str(before) == str(after):
                raise UsageError(f"schedule: '{after}' follows itself; give one stage with the steps of both")
        return cls(stages)

    def __str__(self) -> str:
        return ", ".join(f"{stage}:{stage.steps}" if stage.steps else f"{stage}" for stage in self.stages)

    @property
    def has_local(self) -> bool:
        """Whether some stage is local."""
        return any(stage.is_local for stage in self.stages)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The global step at which each but the last ends."""
        return tuple(accumulate(stage.steps or 0 for stage in self.stages[:-1]))

    def number_at(self, global_step: int) -> int:
        """Which stage it is at this global step, from 0."""
        return bisect_right(self.ends, global_step)

    def end_at(self, global_step: int) -> int | None:
        """The global step at which the stage ends that it is at this one; None: not before the job does."""
        number = self.number_at(global_step)
        return self.ends[number] if number < len(self.ends) else None

    def local_end_at(self, global_step: int) -> int | None:
        """As `end_at`, if that stage is local; else None."""
        return self.end_at(global_step) if self.at(global_step).is_local else None

    def at(self, global_step: int) -> Stage:
        """The stage in which the step after this global step is taken."""
        return self.stages[self.number_at(global_step)]

    def whole(self, global_step: int) -> str:
        """For people: what it is, until when, and what comes then."""
        end = self.end_at(global_step)
        if end is None:
            return f"{self.at(global_step)} to the end"
        return f"{self.at(global_step)} until global step {end}, then {self.at(end)}"

    def steps_of(self, batches: int, workers: int) -> int:
        """The global steps that so many batches make: one of mode sync takes a batch of every worker."""
        steps = 0
        for stage in self.stages:
            each = workers if stage.mode == SYNC else 1
            whole = -(-batches // each)
            taken = whole if stage.steps is None else min(stage.steps, whole)
            steps, batches = steps + taken, max(0, batches - taken * each)
        return steps


def _stage_of(text: str) -> Stage:
    found = _STAGE.fullmatch(text)
    if found is None or found[1] not in STAGES:
        word = text.replace(":", " ").split(" ")[0]
        hint = "" if word in STAGES else suggestion(word, STAGES)
        raise UsageError(f"schedule: '{text[:80]}' is no stage{hint or f'; for example {EXAMPLE}'}")
    mode, bound, steps = found[1], found[2], found[3]
    if (bound is not None) != (mode == BOUNDED):
        no_bound = f"has no bound; steps stand behind :, as {mode}:500"
        takes = "needs its bound, as bounded 4" if mode == BOUNDED else no_bound
        raise UsageError(f"schedule: {mode} {takes}, got '{text}'")
    lasts = None if steps is None else int(steps)
    if mode == LOCAL:
        return Stage(SYNC, None, lasts, is_local=True)
    return Stage(mode, None if bound is None else int(bound), lasts)
