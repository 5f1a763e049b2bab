"""At which interface a server is reached: what is found, what is refused, and what is tried from other networks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from psruntime.errors import UsageError
from psruntime.network.interfaces import came_before, close_to_others, interface_for, owner_of
from tests.support import worlds
from tests.support.polling import poll_until

LOCAL = "127.0.0.1:2222"
MEMBERS = {4: ("10.9.6.1", "10.9.6.2"), 6: ("fd09:6::1", "fd09:6::2")}
STRANGERS = {4: ("10.9.7.1", "10.9.7.2"), 6: ("fd09:7::1", "fd09:7::2")}
# Each interface's address and a server at each, and one that serves all; prints the addresses and waits.
SERVE = """
import json, sys
from psruntime.graph.base.server import start_server
from psruntime.network.interfaces import interface_for
servers = {}
for index, (host, wanted) in enumerate([("127.0.0.1", ""), ("10.9.6.1", ""), ("[fd09:6::1]", ""), ("10.9.6.1", "any")]):
    coordinator = "127.0.0.1:1" if host == "127.0.0.1" else "10.9.6.1:1"
    interface = interface_for(host, coordinator, wanted)
    servers[f"{host} {wanted}"] = (interface, *start_server("worker", index, host, 0, interface))
print(json.dumps({name: [found, address] for name, (found, _, address) in servers.items()}), flush=True)
sys.stdin.read()
"""
TRY = """
import json, socket, sys
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), 2).close()
        print("open")
    except OSError as error:
        print(type(error).__name__)
"""


def test_the_interface_of_an_address() -> None:
    assert {owner_of(host) for host in ("127.0.0.1", "localhost", "127.9.9.9")} == {"lo"}
    assert owner_of("192.0.2.77") == owner_of("no.such.invalid") == ""
    assert interface_for("127.0.0.1", LOCAL) == interface_for("localhost", "localhost:1") == "lo"
    assert interface_for("192.0.2.77", LOCAL, "any") == ""
    assert interface_for("192.0.2.77", LOCAL, "lo") == "lo"


@pytest.mark.parametrize(
    ("host", "coordinator", "wanted", "complaint"),
    [
        ("192.0.2.77", LOCAL, "", r"no interface of this machine has the address 192.0.2.77, .*--interface any"),
        ("127.0.0.1", "192.0.2.77:2222", "", "127.0.0.1 is an address of this machine alone, .*--host"),
        ("127.0.0.1", LOCAL, "nosuch0", r"--interface nosuch0: this machine has .*lo"),
    ],
)
def test_one_that_cannot_be_found_is_refused(host: str, coordinator: str, wanted: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        interface_for(host, coordinator, wanted)


def test_connections_from_before_are_ended() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        before, unaccepted = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        accepted, _ = server.accept()
        close_to_others(port, "lo")
        after = socket.create_connection(("127.0.0.1", port))
        late, new = server.accept()[0], server.accept()[0]
        with before, unaccepted, accepted, after, late, new:
            before.settimeout(10)
            assert before.recv(1) == b"", "it was accepted before"
            assert came_before(late) and not came_before(new)
            unaccepted.settimeout(10)
            assert unaccepted.recv(1) == b"", "it waited to be accepted"
            new.sendall(b"x")
            assert after.recv(1) == b"x"


def test_a_port_of_another_process_is_not_closed() -> None:
    with pytest.raises(OSError, match="no socket of this process listens on port 1"):
        close_to_others(1, "lo")


@pytest.fixture
def networks() -> Iterator[dict[str, str]]:
    """Network namespaces: `one` is on a network with `two` and on another with `stranger`, who routes through it."""
    if refusal := worlds.refusal():
        pytest.skip(refusal)
    mark = uuid.uuid4().hex[:6]
    names = {name: f"psruntime-{mark}-{name}" for name in ("one", "two", "stranger")}

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with ExitStack() as at_exit:
        for name in names.values():
            ip("netns", "add", name)
            at_exit.callback(ip, "netns", "delete", name)
            ip("-n", name, "link", "set", "lo", "up")
        for other, ends in (("two", MEMBERS), ("stranger", STRANGERS)):
            cable = f"to-{other}"
            ip("-n", names["one"], "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", names[other])
            for name, device, place in ((names["one"], cable, 0), (names[other], "eth0", 1)):
                ip("-n", name, "address", "add", f"{ends[4][place]}/24", "dev", device)
                ip("-n", name, "address", "add", f"{ends[6][place]}/64", "dev", device, "nodad")
                ip("-n", name, "link", "set", device, "up")
        ip("-n", names["stranger"], "route", "add", "10.9.6.0/24", "via", STRANGERS[4][0])
        ip("-n", names["stranger"], "route", "add", "fd09:6::/64", "via", STRANGERS[6][0])
        yield names


def test_other_networks_reach_no_server_of_tensorflow(networks: dict[str, str]) -> None:
    def inside(name: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", networks[name], *command]

    serving = subprocess.Popen(
        inside("one", sys.executable, "-c", SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    try:
        assert serving.stdout and serving.stdin
        said = poll_until(serving.stdout.readline, 120, "the servers")
        found = {name: (interface, int(at.rpartition(":")[2])) for name, (interface, at) in json.loads(said).items()}
        local, of_four, of_six, open_to_all = (found[name] for name in found)
        assert [interface for interface, _ in found.values()] == ["lo", "to-two", "to-two", ""]

        def tried(name: str, *targets: tuple[str, int]) -> list[str]:
            out = subprocess.run(
                inside(name, sys.executable, "-c", TRY, json.dumps(targets)), capture_output=True, text=True, check=True
            )
            return out.stdout.split()

        members = [(host, port) for _, port in (of_four, of_six) for host in (MEMBERS[4][0], MEMBERS[6][0])]
        assert tried("two", *members) == tried("one", *members) == 4 * ["open"]
        assert tried("two", *((host, local[1]) for host, _ in members)) == 4 * ["ConnectionRefusedError"]
        assert tried("one", ("127.0.0.1", local[1]), ("::1", local[1])) == 2 * ["open"]
        addresses = [ends[version][0] for ends in (MEMBERS, STRANGERS) for version in (4, 6)]
        away = [(address, port) for _, port in (local, of_four, of_six) for address in addresses]
        assert tried("stranger", *away) == 12 * ["ConnectionRefusedError"]
        assert tried("stranger", (MEMBERS[4][0], open_to_all[1]), (STRANGERS[6][0], open_to_all[1])) == 2 * ["open"]
    finally:
        serving.communicate("")
