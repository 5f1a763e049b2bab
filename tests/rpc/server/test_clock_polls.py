"""Long polls of clock reports, without a server."""

from __future__ import annotations

import asyncio

import pytest

from psruntime.core.members.view import Phase
from psruntime.rpc.server.polls import ClockPolls

NOW = (1, Phase.TRAINING)


def play(scene):
    """Runs a coroutine function with clock polls at floor 3."""
    polls = ClockPolls()
    polls.update(3, NOW)
    asyncio.run(asyncio.wait_for(scene(polls), 30))


async def waiting(polls: ClockPolls, floor: int, max_wait_s: float = 600.0) -> asyncio.Task[None]:
    before = len(polls)
    task = asyncio.create_task(polls.reached(floor, max_wait_s))
    await asyncio.sleep(0)
    assert len(polls) == before + 1
    return task


def test_a_floor_releases_those_that_it_reaches_and_no_others():
    async def scene(polls):
        tasks = {floor: await waiting(polls, floor) for floor in (4, 5, 7)}
        polls.update(5, NOW)
        await asyncio.gather(tasks[4], tasks[5])
        assert not tasks[7].done()
        assert len(polls) == 1
        polls.update(8, NOW)
        await tasks[7]
        assert len(polls) == 0

    play(scene)


@pytest.mark.parametrize("era", [(2, Phase.TRAINING), (1, Phase.DRAINING)])
def test_another_view_or_phase_releases_all(era):
    async def scene(polls):
        tasks = [await waiting(polls, floor) for floor in (4, 90)]
        polls.update(3, NOW)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        polls.update(0, era)
        await asyncio.gather(*tasks)

    play(scene)


def test_nothing_is_kept_of_a_wait_that_ended_or_was_called_off():
    async def scene(polls):
        await (await waiting(polls, 9, 0.01))
        task = await waiting(polls, 9)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(polls) == 0
        polls.update(9, NOW)

    play(scene)


def test_nothing_is_held_after_the_end():
    async def scene(polls):
        task = await waiting(polls, 9)
        polls.close()
        await task
        await polls.reached(9, 600.0)
        assert len(polls) == 0

    play(scene)


def test_a_rise_looks_only_at_the_floors_that_are_waited_for():
    """A thousand workers at their bound wait for one floor, so for one entry."""

    async def scene(polls):
        tasks = [await waiting(polls, 4) for _ in range(1000)]
        assert len(polls._waiting) == 1
        polls.update(4, NOW)
        await asyncio.gather(*tasks)

    play(scene)
