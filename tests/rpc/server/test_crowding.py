"""Which connections are ended when there are too many, and that a stranger keeps no caller out."""

from __future__ import annotations

import resource
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.core.members.membership import Role
from psruntime.rpc.server import crowding, rpc_server
from psruntime.rpc.server.crowding import FULL, LEAVES, PER_MEMBER, Crowding, surplus
from psruntime.rpc.wire import channel_options
from tests.rpc.conftest import PAIR, Events, a_join

STRANGER = "127.0.0.9"


def of(host: str, count: int, first: int = 0) -> list[tuple[str, tuple[str, int]]]:
    return [(host, (host, first + number)) for number in range(count)]


def test_nothing_is_ended_while_there_is_room() -> None:
    assert surplus(of(STRANGER, 256), {}, most=512) == []


def test_the_newest_of_an_address_stay() -> None:
    ended = surplus([*of(STRANGER, 250), *of("10.0.0.1", 7)], {}, most=512)
    assert ended == [each for _, each in of(STRANGER, 250 - LEAVES[0])]


def test_many_addresses_keep_fewer_each() -> None:
    crowd = [one for number in range(20) for one in of(f"10.9.0.{number}", 25)]
    kept = Counter(host for host, each in crowd if each not in {*surplus(crowd, {}, most=512)})
    assert {*kept.values()} == {4}  # 16 of each would be 320


def test_an_ipv6_network_is_one_address() -> None:
    crowd = [(f"2001:db8::{number:x}", number) for number in range(300)]
    assert surplus(crowd, {}, most=512) == [*range(300 - LEAVES[0])]


def test_members_keep_theirs_beside_a_stranger_at_their_address() -> None:
    ended = surplus([*of("10.0.0.1", 24), *of(STRANGER, 600)], {"10.0.0.1": 3}, most=512)
    assert Counter(host for host, _ in ended) == {STRANGER: 600 - LEAVES[0]}
    crowd = surplus(of("10.0.0.1", 600), {"10.0.0.1": 10}, most=512)
    assert len(crowd) == 600 - LEAVES[0] - 10 * PER_MEMBER


hosts = st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "localhost"])


@given(st.lists(hosts, max_size=400), st.dictionaries(hosts, st.integers(0, 9), max_size=3), st.integers(1, 600))
def test_the_laws(order: list[str], members: dict[str, int], most: int) -> None:
    connections = [(host, number) for number, host in enumerate(order)]
    ended = surplus(connections, members, most)
    if len(connections) <= int(most * FULL):
        assert ended == []
    assert ended == sorted(ended)
    for host, count in Counter(order).items():
        of_host = [number for at, number in connections if at == host]
        gone = [number for number in of_host if number in ended]
        if "2001" not in host:  # two addresses of one network
            assert gone == of_host[: len(gone)]  # the oldest
            assert len(gone) <= max(0, count - PER_MEMBER * members.get(host, 0) - LEAVES[-1])


def test_a_stranger_that_opens_them_all_keeps_no_caller_out(stage, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 96
    for module in (channel_options, rpc_server):
        monkeypatch.setattr(module, "most_connections", lambda: most)
    monkeypatch.setattr(crowding, "LEAVES", (16, 4, 1))
    server = stage.coordinator(PAIR)
    member = stage.client(server)
    member.join(a_join(Role.PS, 0))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 4 * most
    with ExitStack() as opened:
        for _ in range(2 * most):
            tcp = opened.enter_context(socket.socket())
            tcp.setblocking(False)
            tcp.bind((STRANGER, 0))
            with suppress(BlockingIOError):
                tcp.connect(("127.0.0.1", server.port))
            time.sleep(0.002)
        assert stage.client(server).get_job() == PAIR  # another connection than that of the member
        assert member.get_job() == PAIR
        ended = stage.events.named("connections_ended")
    assert ended
    assert ended[0]["most_from"] == STRANGER


def test_it_looks_at_its_own_port_alone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as other,
        ExitStack() as s,
    ):
        for at in (ours, other):
            for _ in range(4):
                s.enter_context(socket.create_connection(at.getsockname()))
                s.enter_context(at.accept()[0])
        crowd = Crowding(ours.getsockname()[1], 1, dict, Events())
        crowd.look()
        assert Counter(crowd._hosts.values())["127.0.0.1"] == 4
