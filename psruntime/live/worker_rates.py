"""Each worker's steps and bytes per second, from its reports of the last seconds."""

from __future__ import annotations

from collections import deque

from psruntime.core.members.messages import JobStatus, MemberStatus

LOOKS = 8  # reports of a worker over which its rate is measured; between two heartbeats its count does not change


class WorkerRates:
    """The rates of the live workers, by incarnation.  Times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}  # (when it was reported, pushes)

    def observe(self, status: JobStatus, at_s: float) -> None:
        """Adds the next status; drops members that are gone."""
        stats = {member.incarnation: member for member in status.members if member.worker_stats}
        self._seen = {each: self._seen.get(each, deque(maxlen=LOOKS)) for each in stats}
        for incarnation, member in stats.items():
            assert member.worker_stats
            seen, said_s = self._seen[incarnation], at_s - member.silent_s
            if not seen or member.worker_stats.pushes != seen[-1][1] or said_s - seen[-1][0] > 0.5:
                seen.append((said_s, member.worker_stats.pushes))

    def steps_per_s(self, member: MemberStatus) -> float:
        """Pushes in a second; 0 while that is unknown."""
        seen = self._seen.get(member.incarnation)
        if not seen or seen[-1][0] <= seen[0][0]:
            return 0.0
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def bytes_per_s(self, member: MemberStatus) -> tuple[float, float]:
        """(received, sent); 0 while that is unknown."""
        each, steps = member.worker_traffic, self.steps_per_s(member)
        return (each.received_per_step * steps, each.sent_per_step * steps) if each else (0.0, 0.0)
