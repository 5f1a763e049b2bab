"""Names of machines that are not known yet, or never."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from psruntime.config.process import ProcessConfig
from psruntime.errors import StopRequested, UsageError
from psruntime.network import hosts
from psruntime.network.hosts import await_names, own_host, require_loopback


class Names:
    """The system's resolver, which knows a name after a number of tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.tries = 0
        self._after = after
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)
        monkeypatch.setattr(hosts, "FIRST_DELAY_S", 0.001)

    def resolve(self, host: str, *arguments: Any, **options: Any) -> Any:
        self.tries += 1
        if self.tries <= self._after:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real("127.0.0.1", *arguments, **options)


def test_a_process_that_starts_before_its_dns_record_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names, logged = Names(monkeypatch, after=5), []
    where = ProcessConfig(index=1, coordinator="ps-0.jobs:2222")
    await_names(where, threading.Event(), lambda event, **facts: logged.append((event, facts)))
    reason = "Name or service not known"
    assert logged == [("unresolved", {"name": "ps-0.jobs", "reason": reason, "gives_up_after_s": 60.0})]
    assert names.tries == 6
    assert own_host(where) == "127.0.0.1"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"coordinator": "no-such-host.invalid:2222"}, "the coordinator's host 'no-such-host.invalid'"),
        ({"host": "no-such-host.invalid"}, "--host 'no-such-host.invalid'"),
        ({"coordinator": f"{'x' * 70}.invalid:1"}, "the coordinator's host 'xxx"),  # no name at all
    ],
)
def test_a_name_that_nobody_knows_is_an_error_after_the_timeout(settings: dict[str, Any], what: str) -> None:
    where = ProcessConfig(index=0, connect_timeout_s=0.2, **settings)
    with pytest.raises(
        UsageError, match=r"cannot be resolved: .*; it was tried for 0.2 s \(--connect-timeout\)"
    ) as error:
        await_names(where, threading.Event(), lambda *_, **__: None)
    assert str(error.value).startswith(what)


def test_a_wait_for_a_name_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, after=1 << 30)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    began_s = time.monotonic()
    with pytest.raises(StopRequested):
        await_names(ProcessConfig(index=0), stop, lambda *_, **__: None)
    assert time.monotonic() - began_s < 30


def test_only_known_names_are_refused_as_open_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    require_loopback("localhost:1")
    require_loopback("no-such-host.invalid:1")
    with pytest.raises(UsageError, match="would serve other machines without TLS"):
        require_loopback("10.0.0.5:1")


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("[2001:db8::1]", False), ("no.invalid", False)],
)
def test_a_host_is_this_machine_if_one_can_listen_there(host: str, is_own: bool) -> None:
    assert hosts.is_own_host(host) is is_own
