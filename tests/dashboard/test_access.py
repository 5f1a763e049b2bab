"""Which requests the dashboard answers: names, pages of other sites, the token; of every path and method.

The first part asks the decision alone, the second the server, in this process, as browsers and programs do.
"""

from __future__ import annotations

import http.client
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from bokeh.client import pull_session
from bokeh.util.token import get_token_payload
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.ioloop import IOLoop

from psruntime.commands.dashboard import token_of
from psruntime.dashboard.access import Access, origins_of
from psruntime.dashboard.guard import take_token
from psruntime.dashboard.server import KINDS, Dashboard
from psruntime.rpc.wire.security import OPEN, Security

TOKEN = "0123456789 abc/+&=\u00e9"
PATHS = [
    *(f"/{kind.slug}" for kind in KINDS), "/ws", "/events/ws", "/autoload.js?bokeh-autoload-element=a", "/metadata",
    "/static/js/bokeh.min.js", "/favicon.ico", "/nothing", "//evil/", "/events/", "http://localhost/",
]  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "SOMETHING"]
LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
UPGRADE = {
    "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "bokeh, x",
}  # fmt: skip


def status_of(
    access: Access, *hosts: str, headers: dict[str, str] | None = None, token: str = "", cookie: str = ""
) -> int:
    """200 for a request that is let in."""
    refusal = access.refusal(hosts, headers or {}, token, cookie)
    return refusal[0] if refusal else 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8787", 200), ("LocalHost:8787", 200), ("127.0.0.1:8787", 200), ("[::1]:8787", 200),
        ("dash.example.com", 200), ("DASH.example.com:80", 200), ("dash.example.com:443", 200), ("[fd00::5]", 200),
        ("localhost", 403), ("localhost:80", 403), ("localhost:8788", 403), ("localhost.:8787", 403),
        ("127.0.0.1.:8787", 403), ("127.1:8787", 403), ("2130706433:8787", 403), ("::1:8787", 403), ("[::1]", 403),
        ("rebound.example", 403), ("rebound.example:8787", 403), ("REBOUND.EXAMPLE:8787", 403),
        ("rebound.example.:8787", 403), ("[fd00::6]", 403), ("[fd00::6]:8787", 403), ("localhost.evil.example", 403),
        ("evil-localhost:8787", 403), ("a@localhost:8787", 403), ("localhost:8787@evil", 403), ("localhost:", 403),
        ("localhost:8787,evil", 403), ("localhost:8787 evil", 403), ("localhost:99999999", 403), ("*", 403),
        ("dash.example.com:9", 403), ("", 400),
    ],
)  # fmt: skip
def test_a_host_is_one_of_the_origins(host: str, status: int) -> None:
    origins = origins_of("127.0.0.1", 8787, ["dash.example.com:443", "[fd00::5]"])
    assert status_of(Access(origins), host) == status


def test_a_request_has_one_host() -> None:
    access = Access(origins_of("127.0.0.1", 8787))
    assert status_of(access) == status_of(access, "localhost:8787", "localhost:8787") == 400


@pytest.mark.parametrize(
    ("site", "headers", "status"),
    [
        ("none", {}, 200), ("same-origin", {}, 200), ("same-site", {}, 403), ("cross-site", {}, 403), ("", {}, 403),
        ("cross-site", LINK, 200), ("same-site", LINK, 200),
        ("cross-site", {**LINK, "Sec-Fetch-Dest": "iframe"}, 403), ("cross-site", {**LINK, "Sec-Fetch-Dest": ""}, 403),
        ("cross-site", {**LINK, "Sec-Fetch-Mode": "no-cors"}, 403), ("cross-site", {"Sec-Fetch-Mode": "navigate"}, 403),
    ],
)  # fmt: skip
def test_a_page_of_another_site_may_only_link(site: str, headers: dict[str, str], status: int) -> None:
    access = Access(origins_of("127.0.0.1", 8787))
    assert status_of(access, "localhost:8787", headers={"Sec-Fetch-Site": site, **headers}) == status
    assert status_of(access, "localhost:8787") == 200, "programs and old browsers do not say"


def test_the_token_or_what_was_given_for_it() -> None:
    access = Access(["a:80"], TOKEN)
    assert status_of(access, "a") == status_of(access, "a", token=TOKEN[:-1]) == 403
    assert status_of(access, "a", cookie=TOKEN) == status_of(access, "a", token=access.cookie) == 403
    assert status_of(access, "a", token=TOKEN) == status_of(access, "a", cookie=access.cookie) == 200
    assert status_of(access, "a", token="\u20ac", cookie=access.cookie) == 200
    assert status_of(access, "b", token=TOKEN) == 403 and TOKEN not in repr(access)
    open_to_all = Access(["a:80"])
    assert status_of(open_to_all, "a") == status_of(open_to_all, "a", token="any", cookie="any") == 200
    assert not open_to_all.is_token("")


def test_a_token_is_drawn_where_others_would_see_the_job() -> None:
    assert [token_of(host, OPEN, "") for host in ("127.0.0.1", "localhost", "::1", "[::1]")] == [""] * 4
    drawn = [token_of(host, OPEN, "") for host in ("0.0.0.0", "", "::", "10.0.0.5")]
    drawn.append(token_of("127.0.0.1", Security(tokens=("of the job",)), ""))
    assert len(set(drawn)) == 5 and all(len(token) >= 43 for token in drawn)
    assert token_of("127.0.0.1", OPEN, "fixed") == token_of("0.0.0.0", OPEN, "fixed") == "fixed"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


Ask = Callable[..., Answer]


@contextmanager
def served(host: str = "127.0.0.1", token: str = "") -> Iterator[Dashboard]:
    made: list[tuple[IOLoop, Dashboard]] = []
    runs = threading.Event()

    def serve() -> None:
        loop = IOLoop()
        made.append((loop, Dashboard(loop, host, 0, ["dash.example.com"], token)))
        made[0][1].start()
        loop.add_callback(runs.set)
        loop.start()
        made[0][1].close()
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert runs.wait(30)
    try:
        yield made[0][1]
    finally:
        made[0][0].add_callback(made[0][0].stop)
        thread.join(30)


def asked(dashboard: Dashboard, path: str = "/", method: str = "GET", host: str = "", **headers: str) -> Answer:
    """The answer to a request, of any Host but its own where one is given."""
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host or f"localhost:{dashboard.port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        text = "" if answer.status == 101 else answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


def raw(dashboard: Dashboard, request: str) -> str:
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=30) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@pytest.fixture(scope="module")
def plain() -> Iterator[Dashboard]:
    with served() as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def secured() -> Iterator[Dashboard]:
    with served(token=TOKEN) as dashboard:
        yield dashboard


def is_closed_in(answer: Answer) -> bool:
    """Whether it has the headers of every answer."""
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy and "default-src 'none'" in policy
    assert "unsafe-inline" not in re.search("script-src[^;]*", policy)[0] and "unsafe-eval" not in policy  # type: ignore[index]
    return answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_and_method_is_guarded(path: str, method: str, plain: Dashboard, secured: Dashboard) -> None:
    refused = {
        403: [
            asked(plain, path, method, "rebound.example"), asked(plain, path, method, f"rebound.example:{plain.port}"),
            asked(plain, path, method, Sec_Fetch_Site="cross-site"), asked(secured, path, method),
            asked(secured, path, method, "rebound.example", Cookie=f"psruntime-dashboard-{secured.port}=x"),
            asked(plain, path, method, "rebound.example", **UPGRADE), asked(secured, path, method, **UPGRADE),
        ],
        400: [asked(plain, path, method, " ")],
    }  # fmt: skip
    for status, answers in refused.items():
        for answer in answers:
            if status == 403 or answer.headers.get("content-type"):  # Tornado refuses an empty one before
                assert answer.status == status and is_closed_in(answer)
                assert method == "HEAD" or re.fullmatch(f"{status}: [^\n]+\n", answer.text)


def test_what_it_answers(plain: Dashboard) -> None:
    hosts = [f"{name}:{plain.port}" for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST")]
    for number, kind in enumerate(KINDS):
        page = asked(plain, f"/{kind.slug}", host=(*hosts, "dash.example.com")[number % 5])
        assert page.status == 200 and is_closed_in(page) and "set-cookie" not in page.headers
    assert asked(plain, "/static/js/bokeh.min.js").status == 200
    assert asked(plain, "/nothing").status == 404 and is_closed_in(asked(plain, "/nothing"))
    assert asked(plain, "/", Sec_Fetch_Site="cross-site", **LINK).status == 200
    assert asked(plain, "/ws", Origin=f"http://localhost:{plain.port}", **UPGRADE).status == 101
    assert asked(plain, "/ws", Origin="http://evil.example", **UPGRADE).status == 403


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/bokeh.min.js"])
def test_a_request_without_a_host_or_with_two(version: str, path: str, plain: Dashboard) -> None:
    line = f"GET {path} HTTP/{version}\r\nConnection: close\r\n"
    host = f"Host: localhost:{plain.port}\r\n"
    for hosts in ("", host * 2, "Host:\r\n", f"{host}Host: rebound.example\r\n"):
        assert raw(plain, f"{line}{hosts}\r\n").startswith("HTTP/1.1 400 "), hosts
    assert raw(plain, f"{line}{host}\r\n").startswith(("HTTP/1.1 200 ", "HTTP/1.1 400 ")[path == "/ws"])
    assert raw(plain, f"{line}Host: rebound.example\r\n\r\n").startswith("HTTP/1.1 403 ")


def test_a_body_is_not_read(plain: Dashboard) -> None:
    answer = raw(plain, f"POST / HTTP/1.1\r\nHost: localhost:{plain.port}\r\nContent-Length: 99999999\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400 ")


def test_each_page_has_a_nonce_of_its_own_for_its_scripts(plain: Dashboard) -> None:
    nonces = set()
    for _ in range(2):
        page = asked(plain, "/events?theme=dark")
        nonces |= set(re.findall("'nonce-(.+?)'", page.headers["content-security-policy"]))
        scripts = re.findall(r"<script([^>]*)>", page.text)
        assert len(scripts) >= 5 and all(f'nonce="{max(nonces, key=page.text.count)}"' in each for each in scripts)
        assert int(page.headers["content-length"]) == len(page.text.encode())
    assert len(nonces) == 2


def test_the_token_opens_it_and_a_cookie_after_it(
    secured: Dashboard, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    assert secured.url == f"http://127.0.0.1:{secured.port}/?token=0123456789%20abc%2F%2B%26%3D%C3%A9"
    query = secured.url.partition("?")[2]
    opened = asked(secured, f"/events?theme=dark&{query}", Cookie="other=1")
    cookie, *attributes = opened.headers["set-cookie"].split("; ")
    assert opened.status == 200 and attributes == ["Path=/", "HttpOnly", "SameSite=Lax"]
    assert cookie.startswith(f"psruntime-dashboard-{secured.port}=") and '<body class="board dark">' in opened.text
    for path in ("/events", "/static/js/bokeh.min.js", "/?token=wrong"):
        again = asked(secured, path, Cookie=f"other=1; {cookie}")
        assert again.status == 200 and "set-cookie" not in again.headers
    assert asked(secured, "/ws", Cookie=cookie, **UPGRADE).status == 101
    assert asked(secured, "/nothing?%74oken=" + query.partition("=")[2]).status == 404
    for path, given in (
        ("/", cookie + "0"),
        ("/?token=", ""),
        (f"/?token={cookie.partition('=')[2]}", ""),
        ("/?Token=", ""),
    ):
        refused = asked(secured, path, Cookie=given)
        assert refused.status == 403 and "set-cookie" not in refused.headers
        assert refused.text == (
            "403: this dashboard needs its token: open the address that psruntime dashboard printed at its start\n"
        )
    payloads = [get_token_payload(re.findall(r'"token":"(.+?)"', page.text)[0]) for page in (opened, again)]
    assert [set(each["arguments"]) for each in payloads] == [{"theme"}, set()], "Bokeh puts them into its page"
    said = f"{opened.text}{again.text}{payloads}{caplog.text}{''.join(capfd.readouterr())}"
    for secret in ("0123456789", cookie.partition("=")[2]):
        assert secret not in said, "neither a page nor a log has it"
    browser = pull_session(url=secured.url.partition("?")[0], arguments={"token": TOKEN})
    browser.close()


@pytest.mark.parametrize(
    ("query", "token", "left"),
    [
        ("token=s%2F1", "s/1", ""), ("a=1&%74oken=s&b=", "s", "?a=1&b="), ("token=x&token=s", "s", ""),
        ("a=%26&b", "", "?a=%26&b"), ("token=", "", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_the_token_is_taken_out_of_a_request(query: str, token: str, left: str) -> None:
    uri = f"/events?{query}" if query else "/events"
    request = HTTPServerRequest(method="GET", uri=uri, headers=HTTPHeaders({"Host": "a"}))
    assert take_token(request) == token
    assert request.uri == f"/events{left}" and request.query == left.removeprefix("?")
    assert "token" not in {**request.arguments, **request.query_arguments}


def test_requests_are_no_lines_in_a_log(plain: Dashboard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked(plain, "/nothing")
    asked(plain, "/", host="rebound.example")
    assert caplog.text == ""


def test_beyond_loopback_it_answers_to_every_name_of_the_machine() -> None:
    with served("0.0.0.0", TOKEN) as dashboard:
        query = dashboard.url.partition("?")[2]
        for name in (socket.gethostname(), "localhost"):
            assert asked(dashboard, f"/?{query}", host=f"{name}:{dashboard.port}").status == 200
        assert asked(dashboard, "/").status == asked(dashboard, f"/?{query}", host="rebound.example").status == 403
