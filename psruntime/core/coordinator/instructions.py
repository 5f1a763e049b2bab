"""What a member is told: its standing, from the coordinator's state.  Reads only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from psruntime.core.coordinator.ending import all_stopped
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import PsBeat, Standing
from psruntime.core.members.view import Phase

if TYPE_CHECKING:
    from psruntime.core.coordinator.coordinator import Coordinator


class Told:
    """What each member was last told, and how often that changed."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[Standing, int]] = {}  # by incarnation

    def tell(self, incarnation: int, standing: Standing) -> int:
        """The revision of this standing: one more than the last if it is another."""
        last, revision = self._told.get(incarnation, (None, 0))
        if standing != last:
            revision += 1
            self._told[incarnation] = (standing, revision)
        return revision

    def last(self, incarnation: int) -> Standing:
        return self._told[incarnation][0]

    def forget(self, incarnation: int) -> None:
        self._told.pop(incarnation, None)


def written_here(beat: PsBeat, told: Standing) -> PsBeat:
    """The beat of a ps that was told this; what it wrote for another coordinator is nothing of ours."""
    return replace(beat, fence_revision=0) if beat.fence_revision > told.fence_revision else beat


def standing_of(c: Coordinator, member: Member) -> Standing:
    """All that the member needs in order to act."""
    if member.role is Role.PS:
        admitted = tuple((w.index, w.incarnation) for w in c.members.live(Role.WORKER))
        return Standing(
            c.phase,
            c.reason,
            c.view,
            admitted=admitted,
            fence_revision=c.fence.revision,
            max_staleness=c.pace.max_staleness(len(admitted)),
        )
    chief = c.chief == member.index
    return Standing(
        c.phase,
        c.reason,
        c.view,
        chief=chief,
        restore=chief and c.restore,
        fenced_in=_fenced_in(c, member),
        close=chief and c.phase is Phase.DRAINING and all_stopped(c),
        clock=c.pace.entered_at(member.incarnation),
        report_every_s=c.pace.report_every_s(member),
    )


def _fenced_in(c: Coordinator, member: Member) -> bool:
    written = (c.ps_beats.get(e.incarnation, PsBeat()).fence_revision for e in c.view.ps)
    return c.fence.encloses(member.incarnation, written)
