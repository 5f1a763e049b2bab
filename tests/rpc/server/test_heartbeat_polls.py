"""Held heartbeats, without a server."""

from __future__ import annotations

import asyncio

import pytest

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Standing
from psruntime.core.members.view import Phase, View
from psruntime.errors import ReplacedError
from psruntime.rpc.server.heartbeat_polls import HeldHeartbeats

ME = (Role.WORKER, 0, 7)


class Desk:
    """Answers for one member."""

    def __init__(self) -> None:
        self.revision = 1
        self.gone = False
        self.asked = 0

    def standing(self, *_who) -> Answer:
        self.asked += 1
        if self.gone:
            raise ReplacedError("join again")
        return Answer(7, Standing(Phase.FORMING, "", View()), self.revision, 0)


def play(scene):
    """Runs a coroutine function with a desk and its held heartbeats."""
    desk = Desk()
    return asyncio.run(scene(desk, HeldHeartbeats(desk.standing)))


async def started(held: HeldHeartbeats, max_wait_s: float = 600.0) -> asyncio.Task[Answer]:
    task = asyncio.create_task(held.news(*ME, 1, max_wait_s))
    await asyncio.sleep(0)
    assert held.holds(7)
    return task


def test_a_look_without_news_ends_no_wait():
    async def scene(desk, held):
        task = await started(held)
        held.wake()
        await asyncio.sleep(0)
        assert not task.done()
        desk.revision = 2
        held.wake()
        assert (await task).revision == 2
        assert not held.holds(7)

    play(scene)


def test_nobody_is_held_after_a_wait_that_ended_or_was_called_off():
    async def scene(desk, held):
        assert (await (await started(held, 0.01))).revision == 1
        assert not held.holds(7)
        task = await started(held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not held.holds(7)

    play(scene)


def test_many_changes_cost_one_look():
    async def scene(desk, held):
        task = await started(held)
        before = desk.asked
        for _ in range(10):
            held.wake_soon()
        await asyncio.sleep(0)
        assert desk.asked == before + 1
        desk.revision = 2
        held.wake_soon()
        assert (await task).revision == 2

    play(scene)


def test_one_whose_member_is_gone_does_not_keep_the_others_waiting():
    async def scene(desk, held):
        tasks = [await started(held), await started(held)]
        desk.gone = True
        held.wake()
        for task in tasks:
            with pytest.raises(ReplacedError):
                await task

    play(scene)


def test_nothing_is_held_after_the_end():
    async def scene(desk, held):
        task = await started(held)
        held.close()
        assert (await task).revision == 1
        assert (await held.news(*ME, 1, 600.0)).revision == 1

    play(scene)


def test_a_stream_of_news_leaves_time_between_two_looks_and_none_is_forgotten():
    async def scene(desk, held):
        waits = [await started(held) for _ in range(20)]
        held.wake_soon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = desk.asked
        desk.revision = 2
        for _ in range(5):
            held.wake_soon()
            await asyncio.sleep(0)
        assert desk.asked == before, "it rests"
        assert [(await wait).revision for wait in waits] == [2] * 20

    play(scene)


def test_only_the_workers_that_are_meant_are_woken():
    async def scene(desk, held):
        mine = await started(held)
        other = asyncio.create_task(held.news(Role.WORKER, 1, 8, 1, 600.0))
        ps = asyncio.create_task(held.news(Role.PS, 0, 9, 1, 600.0))
        await asyncio.sleep(0)
        held.wake_workers({0})
        desk.revision = 2
        held.wake_workers({0})
        assert (await mine).revision == 2
        assert not other.done() and not ps.done()
        held.close()
        await asyncio.gather(other, ps)

    play(scene)
