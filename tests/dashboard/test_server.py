"""The server of the pages, in this process: what it keeps for browsers, and whom it lets in."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from bokeh.client import pull_session
from bokeh.document import Document
from tornado.ioloop import IOLoop

from psruntime.dashboard import server
from psruntime.dashboard.server import KINDS, Dashboard
from tests.observe.test_render import JOB, STATUS
from tests.support.polling import poll_until


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    """At a loop that does not run."""
    loop = IOLoop(make_current=False)
    made = Dashboard(loop, "127.0.0.1", 0)
    yield made
    made.close()
    loop.close()


def test_a_browser_that_does_not_read_has_one_look_waiting(dashboard: Dashboard) -> None:
    documents = [Document(), Document()]
    for document in documents:
        dashboard._maker(KINDS[0])(document)
    for second in range(5):
        dashboard._changed(lambda second=second: dashboard.history.observe(STATUS, JOB, 1000.0 + second))
    assert [len(document.session_callbacks) for document in documents] == [1, 1]
    (waits,) = documents[0].session_callbacks
    documents[0].remove_next_tick_callback(waits)
    waits.callback()
    assert documents[0].get_model_by_name("head").tags == [1004.0], "the latest"
    dashboard._changed(lambda: None)
    assert [len(document.session_callbacks) for document in documents] == [1, 1]


@pytest.mark.long
def test_a_browser_that_answers_no_pings_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_S", 0.2)
    made: list[tuple[IOLoop, Dashboard]] = []
    runs = threading.Event()

    def serve() -> None:
        loop = IOLoop()
        made.append((loop, Dashboard(loop, "127.0.0.1", 0)))
        made[0][1].start()
        loop.add_callback(runs.set)
        loop.start()
        made[0][1].close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert runs.wait(30)
    loop, dashboard = made[0]
    browser = pull_session(url=dashboard.url)  # whose loop runs only while it is asked for something
    try:
        assert dashboard.browsers == 1
        poll_until(lambda: not dashboard._server._tornado._clients, 30, "the end of the connection")
    finally:
        loop.add_callback(loop.stop)
        thread.join(30)
        browser.close()
