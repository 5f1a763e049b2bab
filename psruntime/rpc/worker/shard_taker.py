"""Takes data shards for a worker from the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psruntime.core.shards.shard_messages import Position, Shard, Sharding, ShardNews, ShardRequest
from psruntime.errors import CheckpointError, ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.client.membership_client import MembershipClient

RETRY_S = 0.3  # after a call that failed: the heartbeats find the same error, and act on it


class ShardTaker:
    """`take` is called by one thread, `position` by another.

    reason: why there was no shard when one was asked for last, for people.
    """

    def __init__(self, context: ClientContext, membership: MembershipClient) -> None:
        self.reason = ""
        self._stop, self._asked = context.stop, context.asked
        self._longest_poll_s = context.job.heartbeat_s
        self._client, self._margin_s = context.client, context.margin_s
        self._membership = membership
        self._seen = (0, 0)  # incarnation, and its latest ticket
        self._found_none = False  # the last time

    def take(
        self, sharding: Sharding, news: Sequence[ShardNews], is_wanted: Callable[[], bool]
    ) -> tuple[Shard | None, bool]:
        """(the next shard, or None: there is none now; whether the coordinator has heard the news).

        After a time when there was none it waits for one, for a third of a lease at most, and no longer than it
        `is_wanted`, or the phase of the job is the same.

        Raises:
            StopRequested: the process was asked to stop, or has left the job.
            UsageError: the input of another worker is cut otherwise.
            What the membership failed with.
        """
        answer = self._membership.answer
        phase = answer.instructions.phase
        incarnation, seen = answer.incarnation, self._seen[1] if self._seen[0] == answer.incarnation else 0
        max_wait_s = self._longest_poll_s if self._found_none else 0.0

        def goes_on() -> bool:
            if self._stop.is_set() or self._asked.is_set():
                return False
            return is_wanted() and self._membership.answer.instructions.phase is phase

        try:
            request = ShardRequest(self._membership.index, incarnation, sharding, seen, tuple(news), max_wait_s)
            found = self._client.take_shard(request, goes_on, max_wait_s + self._margin_s)
        except (ReplacedError, UnreachableError) as error:
            self.reason = str(error)
            self._pause()
            return None, False
        if self._stop.is_set():
            raise StopRequested("asked to stop")
        if found is None:
            return None, False
        self._found_none = found.shard is None
        self.reason = found.reason
        if found.shard is not None:
            self._seen = (incarnation, found.shard.ticket)
        return found.shard, True

    def position(self) -> Position:
        """How far the job is; what is done by then is in what is read of the variables after it.

        Raises:
            CheckpointError: the coordinator was not reached.
        """
        try:
            return self._client.get_position(self._margin_s)
        except UnreachableError as error:
            raise CheckpointError(f"no checkpoint was made: how far the data are read is not known: {error}") from error

    def _pause(self) -> None:
        if self._stop.wait(RETRY_S):
            raise StopRequested("asked to stop")
