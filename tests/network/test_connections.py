"""Which connections of a process are TensorFlow's, by their ends."""

from __future__ import annotations

import pytest

from psruntime.core.members.view import PsEntry, View
from psruntime.network.connections import Connection, End, Peers, all_but


def a_connection(local: str, remote: str) -> Connection:
    ends = (each.rpartition(":") for each in (local, remote))
    return Connection(*(End(host, int(port)) for host, _, port in ends))


@pytest.mark.parametrize(
    ("local", "remote", "counted"),
    [
        ("10.0.0.1:4000", "10.0.0.9:51000", True),  # others came to this process's server
        ("127.0.0.1:4000", "127.0.0.1:51000", True),  # by another of its hosts
        ("10.0.0.1:52000", "10.0.0.2:2222", True),  # to a ps of now
        ("10.0.0.1:52000", "10.0.0.4:2222", True),  # and of before
        ("10.0.0.1:52000", "10.0.0.7:2223", True),  # its host is a name
        ("10.0.0.1:52000", "fd00::5:2224", True),
        ("10.0.0.1:52000", "10.0.0.8:2222", False),  # the port of a ps, on another host
        ("10.0.0.1:2222", "10.0.0.8:9", False),
        ("10.0.0.1:52000", "10.0.0.9:443", False),
    ],
)
def test_what_counts_on_a_worker(local: str, remote: str, counted: bool) -> None:
    peers = Peers("10.0.0.1:4000")
    for addresses in (["10.0.0.4:2222"], ["10.0.0.2:2222", "ps-1.example:2223", "[fd00::5]:2224", "nonsense"]):
        peers.add(View(1, tuple(PsEntry(i, address, 1) for i, address in enumerate(addresses))))
    assert peers(a_connection(local, remote)) is counted


@pytest.mark.parametrize(
    ("local", "remote", "counted"),
    [
        ("10.0.0.1:4000", "10.0.0.9:51000", True),
        ("10.0.0.1:52000", "10.0.0.9:4000", True),
        ("10.0.0.1:2222", "10.0.0.9:51000", False),  # to the coordinator here
        ("10.0.0.1:52000", "10.0.0.2:2222", False),  # to the coordinator
        ("10.0.0.1:3333", "10.0.0.9:51000", False),  # to health
    ],
)
def test_what_counts_on_a_ps(local: str, remote: str, counted: bool) -> None:
    assert all_but(("10.0.0.2:2222", "10.0.0.1:3333"))(a_connection(local, remote)) is counted
