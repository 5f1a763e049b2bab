"""Under which names browsers may open the dashboard, as Bokeh itself decides that."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from bokeh.server.views.ws import WSHandler
from tornado.ioloop import IOLoop

from psruntime.dashboard.access import given_origins, origins_of, own_addresses
from psruntime.dashboard.server import Dashboard
from psruntime.errors import UsageError


def lets_in(origins: list[str], origin: str) -> bool:
    return bool(WSHandler.check_origin(SimpleNamespace(application=SimpleNamespace(websocket_origins=origins)), origin))


@pytest.mark.parametrize("given", ["dash.example.com", "Dash.Example.com", "dash.example.com:443"])
def test_behind_a_proxy_at_the_default_port_of_https(given: str) -> None:
    origins = origins_of("127.0.0.1", 8787, [given])
    assert lets_in(origins, "https://dash.example.com") and lets_in(origins, "https://DASH.example.com")
    assert not lets_in(origins, "https://other.example.com") and not lets_in(origins, "https://dash.example.com:9")


@pytest.mark.parametrize("given", ["dash.example.com", "dash.example.com:80"])
def test_behind_a_proxy_at_the_default_port_of_http(given: str) -> None:
    assert lets_in(origins_of("127.0.0.1", 8787, [given]), "http://dash.example.com")


def test_behind_a_proxy_at_another_port() -> None:
    origins = origins_of("127.0.0.1", 8787, ["a:9", "[FD00::5]:9", "[fd00::6]"])
    assert lets_in(origins, "http://a:9") and lets_in(origins, "http://[fd00::5]:9")
    assert lets_in(origins, "https://[fd00::6]")
    assert not lets_in(origins, "http://a") and not lets_in(origins, "http://[fd00::7]")


def test_a_name_that_is_given_is_one_more() -> None:
    origins = origins_of("127.0.0.1", 8787, ["dash.example.com"])
    assert lets_in(origins, "http://127.0.0.1:8787") and lets_in(origins, "http://localhost:8787")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "::"])
def test_everywhere_has_the_addresses_and_the_name_of_the_machine(host: str) -> None:
    origins = origins_of(host, 8787)
    assert "127.0.0.1" in own_addresses()
    names = [socket.gethostname().upper(), "localhost", "127.0.0.1", "[::1]", *own_addresses()]
    for name in names:
        shown = f"[{name}]" if ":" in name and "[" not in name else name
        assert lets_in(origins, f"http://{shown}:8787"), name


def test_one_address_is_no_other() -> None:
    assert origins_of("10.0.0.5", 8787) == ["10.0.0.5:8787"]
    assert lets_in(origins_of("10.0.0.5", 80), "http://10.0.0.5") and lets_in(origins_of("::5", 80), "http://[::5]")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_dashboard_lets_them_in(host: str) -> None:
    loop = IOLoop(make_current=False)
    try:
        dashboard = Dashboard(loop, host, 0, ["dash.example.com"])
    except UsageError:
        assert host == "[::1]", "a machine without IPv6"
        pytest.skip("there is no [::1] here")
    try:
        asked = SimpleNamespace(application=dashboard._server._tornado)
        for origin in (dashboard.url.rstrip("/"), "https://dash.example.com", f"http://[::1]:{dashboard.port}"):
            assert WSHandler.check_origin(asked, origin), origin
        assert not WSHandler.check_origin(asked, "http://evil.example.com")
    finally:
        dashboard.close()
        loop.close()


@pytest.mark.parametrize("text", ["", "a:b", "a:b:c", "a:0", "a:70000", "https://a", "[::1", "::1", "a b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST or HOST:PORT"):
        given_origins(text)
