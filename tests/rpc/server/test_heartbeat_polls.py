"""Long polls of heartbeats, without a server."""

from __future__ import annotations

import asyncio

import pytest

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Instructions
from psruntime.core.members.view import Phase, View
from psruntime.errors import ReplacedError
from psruntime.rpc.server.polls import AT_ONCE, BEATS_PER_S, HeartbeatPolls

ME = (Role.WORKER, 0, 7)


class Desk:
    """Answers for one member."""

    def __init__(self) -> None:
        self.revision = 1
        self.gone = False
        self.asked = 0

    def answer(self, *_who) -> Answer:
        self.asked += 1
        if self.gone:
            raise ReplacedError("join again")
        return Answer(7, Instructions(Phase.FORMING, "", View()), self.revision)


def play(scene):
    """Runs a coroutine function with a desk and its polls."""
    desk = Desk()
    return asyncio.run(scene(desk, HeartbeatPolls(desk.answer)))


async def started(polls: HeartbeatPolls, max_wait_s: float = 600.0) -> asyncio.Task[Answer]:
    task = asyncio.create_task(polls.news(*ME, 1, max_wait_s))
    await asyncio.sleep(0)
    assert polls.has(7)
    return task


def test_a_look_without_news_ends_no_wait():
    async def scene(desk, polls):
        task = await started(polls)
        polls.wake_soon()
        await asyncio.sleep(0)
        assert not task.done()
        desk.revision = 2
        polls.wake_soon()
        assert (await task).revision == 2
        assert not polls.has(7)

    play(scene)


def test_no_poll_is_left_after_a_wait_that_ended_or_was_called_off():
    async def scene(desk, polls):
        assert (await (await started(polls, 0.01))).revision == 1
        assert not polls.has(7)
        task = await started(polls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not polls.has(7)

    play(scene)


def test_many_changes_cost_one_look():
    async def scene(desk, polls):
        task = await started(polls)
        before = desk.asked
        for _ in range(10):
            polls.wake_soon()
        await asyncio.sleep(0)
        assert desk.asked == before + 1
        desk.revision = 2
        polls.wake_soon()
        assert (await task).revision == 2

    play(scene)


def test_one_whose_member_is_gone_does_not_keep_the_others_waiting():
    async def scene(desk, polls):
        tasks = [await started(polls), await started(polls)]
        desk.gone = True
        polls.wake_soon()
        for task in tasks:
            with pytest.raises(ReplacedError):
                await task

    play(scene)


def test_nothing_is_kept_waiting_after_the_end():
    async def scene(desk, polls):
        task = await started(polls)
        polls.close()
        assert (await task).revision == 1
        assert (await polls.news(*ME, 1, 600.0)).revision == 1

    play(scene)


def test_a_stream_of_news_leaves_time_between_two_looks_and_none_is_forgotten():
    async def scene(desk, polls):
        waits = [await started(polls) for _ in range(20)]
        polls.wake_soon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = desk.asked
        desk.revision = 2
        for _ in range(5):
            polls.wake_soon()
            await asyncio.sleep(0)
        assert desk.asked == before, "it pauses"
        assert [(await wait).revision for wait in waits] == [2] * 20

    play(scene)


def test_other_calls_have_their_turn_while_many_are_checked_and_none_is_left_out():
    async def scene(desk, polls):
        waits = [await started(polls) for _ in range(5 * AT_ONCE)]
        before = desk.asked
        polls.wake_soon()
        await asyncio.sleep(0)
        assert desk.asked == before + AT_ONCE
        desk.revision = 2
        polls.wake_soon()  # the first of them did not hear of this
        assert [(await wait).revision for wait in waits] == [2] * len(waits)

    play(scene)


def test_only_the_workers_that_are_meant_are_woken():
    async def scene(desk, polls):
        mine = await started(polls)
        other = asyncio.create_task(polls.news(Role.WORKER, 1, 8, 1, 600.0))
        ps = asyncio.create_task(polls.news(Role.PS, 0, 9, 1, 600.0))
        await asyncio.sleep(0)
        polls.wake_workers({0})
        desk.revision = 2
        polls.wake_workers({0})
        assert (await mine).revision == 2
        assert not other.done() and not ps.done()
        polls.close()
        await asyncio.gather(other, ps)

    play(scene)


def test_while_somebody_looks_polls_are_short_and_old_ones_end():
    async def scene(desk, polls):
        old = await started(polls)
        polls.watch()
        await asyncio.sleep(0)
        assert not old.done(), "it has just begun"
        assert (await (await started(polls))).revision == 1, "a new one ends by itself"
        assert (await asyncio.wait_for(old, 60)).revision == 1, "who looks gave it the same time"
        polls._watched_until_s = 0.0  # nobody looked for long
        old = await started(polls)
        await asyncio.sleep(0.05)
        polls.watch()
        assert (await asyncio.wait_for(old, 60)).revision == 1, "it was too old already"

    desk = Desk()
    asyncio.run(scene(desk, HeartbeatPolls(desk.answer, fresh_s=0.01)))


def test_a_poll_that_has_ended_is_not_ended_again_by_who_looks():
    async def scene(desk, polls):
        old = await started(polls)
        polls.watch()
        desk.revision = 2
        polls.wake_soon()
        assert (await asyncio.wait_for(old, 60)).revision == 2
        asked = desk.asked
        await asyncio.sleep(0.05)
        assert desk.asked == asked

    desk = Desk()
    asyncio.run(scene(desk, HeartbeatPolls(desk.answer, fresh_s=0.01)))


def test_who_looks_learns_nothing_of_a_poll_that_fails():
    async def scene(desk, polls):
        old = await started(polls)
        await asyncio.sleep(0.05)
        desk.gone = True
        polls.watch()
        with pytest.raises(ReplacedError):
            await old

    desk = Desk()
    asyncio.run(scene(desk, HeartbeatPolls(desk.answer, fresh_s=0.01)))


def test_of_very_many_members_polls_stay_longer():
    polls = HeartbeatPolls(Desk().answer)
    polls._polls = set(range(3 * BEATS_PER_S))  # type: ignore[arg-type]
    assert polls._watched_wait_s == 3.0
