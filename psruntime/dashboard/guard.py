"""What every request to the dashboard passes before Bokeh sees it, and what every answer has in its headers."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import parse_qsl, urlencode
from weakref import WeakSet

from tornado.routing import Router
from tornado.web import OutputTransform, RequestHandler

from psruntime.dashboard.access import Access

NONCE_BYTES = 16
NONCE_MARK = secrets.token_urlsafe(NONCE_BYTES)  # stands in a page where its nonce is put, which is as long
# Scripts: those of Bokeh's files, and those in the page itself, by a nonce; none is made of text ('unsafe-eval').
# Styles: Bokeh writes style attributes and elements into the page as it draws, which have no nonce.
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class Guard(Router):
    """Passes the requests of every path and method to an application as far as `access` lets them.

    cookie: name of the cookie in which a browser keeps that it has given the token.
    """

    def __init__(self, application: Any, access: Access, cookie: str) -> None:
        self._application, self._access, self._cookie = application, access, cookie
        self._newcomers: WeakSet[Any] = WeakSet()  # requests whose answer brings the cookie
        application.settings["log_function"] = lambda _: None  # a request is no event
        application.add_transform(self._answer)

    def find_handler(self, request: Any, **_: Any) -> Any:
        """As Router: what answers a request."""
        token, cookie = take_token(request), request.cookies.get(self._cookie)
        headers = request.headers
        refusal = self._access.refusal(headers.get_list("Host"), headers, token, cookie.value if cookie else "")
        if refusal:
            return self._application.get_handler_delegate(request, _Refusal, {"refusal": refusal})
        if self._access.is_token(token):
            self._newcomers.add(request)
        return self._application.find_handler(request)

    def _answer(self, request: Any) -> OutputTransform:
        more = {}
        if request in self._newcomers:
            more["Set-Cookie"] = f"{self._cookie}={self._access.cookie}; Path=/; HttpOnly; SameSite=Lax"
        return _Answer(request, {**HEADERS, **more})


def take_token(request: Any) -> str:
    """The token in the address of a request, from which it is removed: no log and no page has it from there."""
    given = request.query_arguments.pop("token", None)
    if given is None:
        return ""
    del request.arguments["token"]
    pairs = parse_qsl(request.query, keep_blank_values=True)
    request.query = urlencode([(name, value) for name, value in pairs if name != "token"])
    request.uri = f"{request.path}?{request.query}" if request.query else request.path
    return str(given[-1].decode("utf-8", "replace"))


class _Answer(OutputTransform):
    """Adds the headers to an answer, and to a page its nonce."""

    def __init__(self, request: Any, more: dict[str, str]) -> None:
        super().__init__(request)
        self._more = more

    def transform_first_chunk(
        self,
        status_code: int,
        headers: Any,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002
    ) -> tuple[int, Any, bytes]:
        """As OutputTransform; Bokeh's pages have one chunk."""
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        headers.update(self._more)
        headers["Content-Security-Policy"] = POLICY.format(nonce=nonce)
        if headers.get("Content-Type", "").startswith("text/html"):
            chunk = chunk.replace(NONCE_MARK.encode(), nonce.encode())
        return status_code, headers, chunk


class _Refusal(RequestHandler):
    """Says in one line why there is no answer, whatever the method."""

    def initialize(self, refusal: tuple[int, str]) -> None:
        self._refusal = refusal
        self.SUPPORTED_METHODS = (str(self.request.method),)

    def prepare(self) -> None:
        """Before the method."""
        status, why = self._refusal
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status}: {why}\n")
