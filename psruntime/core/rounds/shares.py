"""Shares: how many examples each member of a round computes, so that all end at about the same time.

The members of a round compute together what they would if each computed its own batch size.  Who is faster computes
more of it.  A worker's speed is measured in the rounds before, as examples for each second; so where a step has a fixed
part, which no share makes shorter, the shares move on from look to look until the times are equal.

Pure state.  Workers are named by their incarnations.

Law: the shares of a round add up to the batch sizes of its members.
Law: a member of unknown speed computes its own batch size; every other one at least 1 example, and at most MOST times
    its own batch size.
Law: the same rounds give the same shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import inf
from statistics import median

from psruntime.core.rounds.round_messages import Taken


def divided(total: int, weights: Sequence[int], most: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `total`, each from 1 to its `most`, in proportion to the weights, which are from 1.

    The remainder goes, one by one, to the entry with the least for its weight at that point, and to the first of
    several: so the largest number for its weight is as small as it can be.
    It must be possible: len(weights) <= total <= sum(most).
    """
    sizes, free, left = [0] * len(weights), list(range(len(weights))), total
    while free:  # all arithmetic is of whole numbers, so nothing is lost by rounding
        weight = sum(weights[i] for i in free)
        low = [i for i in free if left * weights[i] < weight]
        high = [i for i in free if left * weights[i] > most[i] * weight]
        if not low and not high:
            for i in free:
                sizes[i] = left * weights[i] // weight
            _give(left - sum(sizes[i] for i in free), sizes, weights, most, free)
            break
        missing = sum(weight - left * weights[i] for i in low)  # times `weight`, as the next
        too_many = sum(left * weights[i] - most[i] * weight for i in high)
        takes_most = too_many >= missing  # then the others get more than this, so who is high stays so; or the reverse
        for i in high if takes_most else low:
            sizes[i] = most[i] if takes_most else 1
        free = [i for i in free if not sizes[i]]
        left = total - sum(sizes)
    return sizes


def _give(remainder: int, sizes: list[int], weights: Sequence[int], most: Sequence[int], takers: Sequence[int]) -> None:
    """Adds the remainder to the sizes of the takers, one by one."""

    def after_one_more(i: int) -> float:
        return (sizes[i] + 1) / weights[i] if sizes[i] < most[i] else inf

    waiting = [(after_one_more(i), i) for i in takers]
    heapify(waiting)
    for _ in range(remainder):
        i = waiting[0][1]
        sizes[i] += 1
        heapreplace(waiting, (after_one_more(i), i))


MOST = 8  # times its own batch size that a worker computes at most: its memory was chosen for that size
LEAST_MEASURES = 3  # of which a speed is the median, so that the first step, which is slow, is none
MOST_MEASURES = 11  # more would take longer to see that a worker has become slower, fewer let noise through
ROUNDS_BETWEEN = 5  # from one look to the next, so that about half of the measures are of the shares of now
BETTER = 0.93  # times the time of the shares of now, below which others are taken; nearer to 1 noise changes them
SHORTEST_S = 1e-6  # of a step
FINE = 1 << 40  # resolution of relative speeds


class Shares:
    """The shares of the open round, and the measured speed of each worker."""

    def __init__(self) -> None:
        self._measures: dict[int, deque[Taken]] = {}  # by incarnation, the newest last; never empty
        self._shares: dict[int, int] = {}  # of the members with a reported batch size
        self._rounds = 0  # since the last look
        self._news: dict[int, int] | None = None

    def measure(self, incarnation: int, taken: Taken) -> None:
        """A member's part in a round that is complete."""
        self._measures.setdefault(incarnation, deque(maxlen=MOST_MEASURES)).append(taken)

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._measures.pop(incarnation, None)

    def open(self, members: Mapping[int, int]) -> None:
        """Decides the shares of the round that opens.  members: incarnation -> worker index.

        They stay as they are if they still add up, unless it is time to look and others make the round shorter.
        """
        known = sorted((inc for inc in members if inc in self._measures), key=lambda inc: members[inc])
        own = {inc: self._batch_size(inc) for inc in known}
        kept = {inc: self._shares.get(inc, size) for inc, size in own.items()}
        add_up = sum(kept.values()) == sum(own.values())
        self._shares = kept
        self._rounds += 1
        if add_up and self._rounds < ROUNDS_BETWEEN:
            return
        self._rounds = 0
        speeds = {inc: speed for inc in known if (speed := self._speed(inc)) > 0}
        new = {**own, **_proportional({inc: own[inc] for inc in speeds}, speeds)}
        if new != kept and (not add_up or _longest_s(new, speeds) < BETTER * _longest_s(kept, speeds)):
            self._shares = new
            self._news = {members[inc]: share for inc, share in new.items()}

    def of(self, incarnation: int) -> int:
        """How many examples a member of the open round computes; 0: its own batch size, not reported yet."""
        return self._shares.get(incarnation, 0)

    def take_news(self) -> dict[int, int] | None:
        """The shares by worker index, if they were changed since the last call."""
        news, self._news = self._news, None
        return news

    def _batch_size(self, incarnation: int) -> int:
        return self._measures[incarnation][-1].batch_size

    def _speed(self, incarnation: int) -> float:
        """Examples per second; 0: unknown."""
        measures = self._measures[incarnation]
        if len(measures) < LEAST_MEASURES:
            return 0.0
        return median(taken.size / max(taken.seconds, SHORTEST_S) for taken in measures)


def _longest_s(shares: Mapping[int, int], speeds: Mapping[int, float]) -> float:
    """Seconds of a round, of the members with a measured speed."""
    return max((shares[inc] / speed for inc, speed in speeds.items()), default=0.0)


def _proportional(own: Mapping[int, int], speeds: Mapping[int, float]) -> dict[int, int]:
    """As many examples as these batch sizes add up to, by speed."""
    fastest = max(speeds.values(), default=1.0)
    weights = [max(1, round(speed / fastest * FINE)) for speed in speeds.values()]
    sizes = divided(sum(own.values()), weights, [MOST * own[inc] for inc in speeds])
    return dict(zip(speeds, sizes, strict=True))
