"""The conversation about clocks in mode bounded: what a worker reports, and what the coordinator answers.

The time that a worker leaves between two reports is not in the answer.  The coordinator may want a report sooner while
none is under way, so that interval is one of the member's instructions, which a heartbeat brings at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.fields import Incarnation, Positive, Reason


@dataclass(frozen=True)
class ClockReport:
    """The steps that a worker has completed in a view, under an incarnation.

    wanted_floor: the floor at which it may go on, 0 if it need not wait.  max_wait_s: how long the answer may take
    until the floor is there.
    """

    worker_index: int
    incarnation: Incarnation
    view: Positive
    steps: int
    wanted_floor: int = 0
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class ClockAnswer:
    """The floor of the view, and the reason to wait, which names a worker; empty: none.

    For another view than the present one the floor is 0, which is safe in any.
    """

    floor: int
    reason: Reason = ""
