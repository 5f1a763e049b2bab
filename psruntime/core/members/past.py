"""The past of the job as each process keeps it, so that the loss of the coordinator loses none of it.

Every member gets and keeps what the next coordinator needs: that the training had begun, the highest global step seen,
and the newest checkpoint.  It reports these when it joins.  A process that starts reports the checkpoint that it finds
in the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.steering.commands import UNCHANGED, Overrides


@dataclass(frozen=True)
class Past:
    """began: whether a view was prepared.  global_step: the highest that was seen.  saved_step: that of the newest
    checkpoint, None if there is none.  attempt: in mode sync, the highest that was seen.  settings: those that an
    operator has put into force.  identity: of the job's model, None if it is not known.
    """

    began: bool = False
    global_step: int = 0
    saved_step: int | None = None
    attempt: int = 0
    settings: Overrides = UNCHANGED
    identity: ModelIdentity | None = None

    def and_of(self, other: Past) -> Past:
        """The union of both."""
        saved = [step for step in (self.saved_step, other.saved_step) if step is not None]
        return Past(
            self.began or other.began, max(self.global_step, other.global_step), max(saved) if saved else None,
            max(self.attempt, other.attempt), self.settings.newer(other.settings),
            self.identity or other.identity,
        )  # fmt: skip

    def after(self, prepared: bool, saved_step: int | None, seen_step: int) -> Past:
        """The past after instructions.  prepared: whether the view is; seen_step: 0 if it is."""
        if prepared:
            return self.prepared(0, saved_step)
        return self.and_of(Past(seen_step > 0, seen_step, saved_step))

    def prepared(self, global_step: int, saved_step: int | None) -> Past:
        """A view was prepared, with the newest checkpoint as its chief finds it: an older one may be meant."""
        return replace(self, began=True, global_step=max(self.global_step, global_step), saved_step=saved_step)

    def saved(self, saved_step: int | None) -> Past:
        """The past after the chief's report of the newest checkpoint."""
        return replace(self, saved_step=saved_step)

    def saw(self, global_step: int) -> Past:
        """The training was seen at this global step."""
        return self if global_step <= self.global_step else replace(self, global_step=global_step)

    def tried(self, attempt: int) -> Past:
        """This attempt at a round was begun."""
        return self if attempt <= self.attempt else replace(self, attempt=attempt)

    def steered(self, settings: Overrides) -> Past:
        """The past with these settings in force, or sent to the ps."""
        return self if settings == self.settings else replace(self, settings=settings)

    def of_model(self, identity: ModelIdentity | None) -> Past:
        """The past with this identity of the job's model; None: it is unknown."""
        return self if identity in (None, self.identity) else replace(self, identity=identity)


UNKNOWN = Past()  # of a process that knows nothing
