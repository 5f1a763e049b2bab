"""Only a refusal proves that a process is gone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from psruntime.network import hosts
from psruntime.network.hosts import Probes, nothing_listens


def asked(address: str, timeout_s: float = 10.0, only: str = "127.0.0.1") -> bool:
    return asyncio.run(nothing_listens(address, timeout_s, only))


def test_a_refusal_is_a_proof(stage):
    assert asked(stage.refusing())


def test_a_name_stands_for_all_its_addresses(stage):
    assert asked(stage.refusing().replace("127.0.0.1", "localhost"))
    assert not asked(stage.health().replace("127.0.0.1", "localhost"))


@pytest.mark.parametrize("only", ["127.0.0.1", "::1", "192.0.2.1", ""])
def test_another_machine_than_that_of_the_member_is_not_called(stage, only):
    assert asked(stage.refusing(), only=only) == (only in ("127.0.0.1", "::1"))


def test_a_listener_is_live(stage):
    assert not asked(stage.health())


@pytest.mark.parametrize("address", ["255.255.255.255:9", "no-such-host.invalid:9", "a..b:9", "x" * 70 + ":9"])
def test_an_address_that_cannot_be_reached_proves_nothing(address):
    assert not asked(address)


def test_a_paused_process_proves_nothing():
    """One that accepts no more connections: its queue is full, so the next caller waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as queue:
        for _ in range(3):
            caller = queue.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        assert not asked(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)


def test_callers_share_one_probe_at_a_time(monkeypatch):
    made: list[str] = []

    async def slow(address: str, _timeout_s: float, _only: str) -> bool:
        made.append(address)
        await asyncio.sleep(0.01)
        return True

    async def scene() -> None:
        probes = Probes()
        answers = await asyncio.gather(*(probes.nothing_listens(7, "h:1", "h") for _ in range(5)))
        assert (answers, made) == ([True] * 5, ["h:1"])
        assert await probes.nothing_listens(7, "h:1", "h")
        assert made == ["h:1", "h:1"]

    monkeypatch.setattr(hosts, "nothing_listens", slow)
    asyncio.run(scene())


def test_probes_can_be_ended():
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            probes = Probes()
            where = f"127.0.0.1:{listener.getsockname()[1]}"
            waits = asyncio.create_task(probes.nothing_listens(7, where, "127.0.0.1"))
            await asyncio.sleep(0)
            await probes.close()
            with pytest.raises(asyncio.CancelledError):
                await waits

    asyncio.run(scene())
