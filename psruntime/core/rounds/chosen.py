"""The members of the open round: all workers in it, or, with backup workers, the first of them that have a gradient.

With b backup workers a round of W workers needs W - b gradients.  A worker computes its gradient first, and reports
it; the first of them push theirs, so no ps ever gets one too many.  The gradient of a later worker is late: it is
dropped, as TensorFlow's SyncReplicasOptimizer drops one (Chen et al., Revisiting Distributed Synchronous SGD, 2016).
A lost worker is replaced by one that is late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from psruntime.core.rounds.round_messages import Computed


class Late(NamedTuple):
    """A gradient that was too late for its round, and its worker."""

    incarnation: int
    worker: int
    computed: Computed


class Chosen:
    """Of one round.

    members: of the attempt, incarnation -> worker index: whose contributions make it up.

    Invariant: len(members) <= needed, and a member is never given up but by `void`.
    """

    def __init__(self, present: Mapping[int, int], backup_workers: int) -> None:
        self._live = dict(present)
        self._backup_workers = backup_workers
        self._late: dict[int, Computed] = {}  # have a gradient and are no members, in their order
        self._gone = 0  # members that are
        self.members = {} if backup_workers else dict(present)

    @property
    def needed(self) -> int:
        """How many members the round needs: all but the backup workers, of those who live or have contributed."""
        return max(1, len(self.members), self._gone + len(self._live) - self._backup_workers)

    @property
    def is_empty(self) -> bool:
        return not self.members and not self._live

    @property
    def late(self) -> list[Late]:
        """The gradients that are not used so far."""
        return [Late(inc, self._live[inc], computed) for inc, computed in self._late.items()]

    def computes(self, incarnation: int) -> bool:
        """Whether this worker has to compute a gradient and report it."""
        return incarnation in self._live and incarnation not in self.members and incarnation not in self._late

    def computed(self, incarnation: int, computed: Computed) -> None:
        """Takes the report that a worker has a gradient."""
        if self.computes(incarnation):
            self._late[incarnation] = computed
            self._fill()

    def lose(self, incarnation: int) -> list[Late]:
        """Removes a worker that is gone.  A member stays a member; the late gradient of another worker is returned."""
        if incarnation not in self._live:
            return []
        index = self._live.pop(incarnation)
        self._gone += incarnation in self.members
        computed = self._late.pop(incarnation, None)
        return [Late(incarnation, index, computed)] if computed else []

    def void(self) -> None:
        """Voids the attempt: the members that still live are the first of the next one."""
        self.members = {incarnation: index for incarnation, index in self.members.items() if incarnation in self._live}
        self._gone = 0
        self._fill()

    def _fill(self) -> None:
        while self._late and len(self.members) < self.needed:
            incarnation = next(iter(self._late))
            del self._late[incarnation]
            self.members[incarnation] = self._live[incarnation]
