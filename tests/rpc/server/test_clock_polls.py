"""Held clock reports, without a server."""

from __future__ import annotations

import asyncio

import pytest

from psruntime.core.members.view import Phase
from psruntime.rpc.server.clock_polls import HeldReports

NOW = (1, Phase.TRAINING)


def play(scene):
    """Runs a coroutine function with held reports at floor 3."""
    held = HeldReports()
    held.moved(3, NOW)
    asyncio.run(asyncio.wait_for(scene(held), 30))


async def waiting(held: HeldReports, floor: int, max_wait_s: float = 600.0) -> asyncio.Task[None]:
    before = len(held)
    task = asyncio.create_task(held.reached(floor, max_wait_s))
    await asyncio.sleep(0)
    assert len(held) == before + 1
    return task


def test_a_floor_releases_those_that_it_reaches_and_no_others():
    async def scene(held):
        tasks = {floor: await waiting(held, floor) for floor in (4, 5, 7)}
        held.moved(5, NOW)
        await asyncio.gather(tasks[4], tasks[5])
        assert not tasks[7].done()
        assert len(held) == 1
        held.moved(8, NOW)
        await tasks[7]
        assert len(held) == 0

    play(scene)


@pytest.mark.parametrize("era", [(2, Phase.TRAINING), (1, Phase.DRAINING)])
def test_another_view_or_phase_releases_all(era):
    async def scene(held):
        tasks = [await waiting(held, floor) for floor in (4, 90)]
        held.moved(3, NOW)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        held.moved(0, era)
        await asyncio.gather(*tasks)

    play(scene)


def test_nothing_is_kept_of_a_wait_that_ended_or_was_called_off():
    async def scene(held):
        await (await waiting(held, 9, 0.01))
        task = await waiting(held, 9)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(held) == 0
        held.moved(9, NOW)

    play(scene)


def test_nothing_is_held_after_the_end():
    async def scene(held):
        task = await waiting(held, 9)
        held.close()
        await task
        await held.reached(9, 600.0)
        assert len(held) == 0

    play(scene)


def test_a_rise_looks_only_at_the_floors_that_are_waited_for():
    """A thousand workers at their bound wait for one floor, so for one entry."""

    async def scene(held):
        tasks = [await waiting(held, 4) for _ in range(1000)]
        assert len(held._waiting) == 1
        held.moved(4, NOW)
        await asyncio.gather(*tasks)

    play(scene)
