"""Pictures of every page of a dashboard in headless Chromium, and whatever its console says.

    python -m tools.page_shots URL FOLDER [--pages cluster,clocks] [--chromium PATH]

Each page is shown in both themes, as wide as a screen and as a phone, and drawn after a few looks at the job.  The
command ends with 1 if a console has an error or a warning, a page is wider than its window, or one has no head.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tornado.websocket import WebSocketClientConnection, websocket_connect

from psruntime.dashboard.page import THEMES
from psruntime.dashboard.server import KINDS

NAMES = {kind.slug or "cluster": kind.slug for kind in KINDS}
WIDTHS = {1280: 900, 390: 844}  # and the heights, in pixels; the second is a phone
MOST_HEIGHT = 6000  # of a picture
SETTLE_S = 4.5  # some looks at the job
STARTS_S = 20.0
END_S = 10.0
LARGEST = 1 << 28  # bytes of an answer, which may be a picture
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")

_SIZE = "JSON.stringify([document.documentElement.scrollWidth, document.documentElement.scrollHeight])"
_HEAD = "(Bokeh.documents[0].roots().find(root => root.name == 'head') || {}).text"


class Browser:
    """A page of Chromium, asked by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket = socket
        self._asked = 0
        self.complaints: list[str] = []  # errors and warnings since the list was emptied

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result; what the page says meanwhile is kept.

        Raises:
            RuntimeError: Chromium refuses the call, or is gone.
        """
        self._asked += 1
        await self._socket.write_message(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while (text := await self._socket.read_message()) is not None:
            told = json.loads(text)
            if told.get("id") == self._asked:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return dict(told["result"])
            if complaint := _complaint(told["method"], told.get("params", {})):
                self.complaints.append(complaint)
        raise RuntimeError("Chromium has gone")

    async def value(self, expression: str) -> Any:
        """What the expression is in the page, a JSON value."""
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return told["result"].get("value")


def _complaint(method: str, said: dict[str, Any]) -> str:
    """What an event of the protocol complains of; empty if of nothing."""
    if method == "Runtime.exceptionThrown":
        return f"exception: {json.dumps(said['exceptionDetails'])[:600]}"
    if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
        return f"{said['type']}: {' '.join(str(each.get('value', each.get('description'))) for each in said['args'])}"
    if method == "Log.entryAdded":
        return f"{said['entry']['level']}: {said['entry']['text']} {said['entry'].get('url', '')}"
    return ""


@asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A Chromium of its own, with an empty profile."""
    with tempfile.TemporaryDirectory(prefix="page-shots-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [chromium, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            socket = await websocket_connect(await _address(Path(profile)), max_message_size=LARGEST)
            opened = Browser(socket)
            for domain in ("Page", "Runtime", "Log"):
                await opened.call(f"{domain}.enable")
            yield opened
            socket.close()
        finally:
            process.terminate()
            process.wait(END_S)


async def _address(profile: Path) -> str:
    """Of the page's socket; Chromium writes the port that it chose into its profile."""
    written, end_s = profile / "DevToolsActivePort", time.monotonic() + STARTS_S
    while time.monotonic() < end_s:
        if written.exists() and (lines := written.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json", timeout=STARTS_S) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(0.1)
    raise RuntimeError(f"Chromium did not start within {STARTS_S:g} s")


async def shoot(opened: Browser, url: str, width: int, file: Path) -> list[str]:
    """Draws the page at an address into a PNG file; returns what is wrong with it."""
    opened.complaints.clear()
    height = WIDTHS[width]
    await opened.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < height
    )
    await opened.call("Page.navigate", url=url)
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:  # what the page says is heard by asking
        await opened.value("1")
        await asyncio.sleep(0.1)
    wide, high = json.loads(await opened.value(_SIZE))
    problems = [] if "phase" in str(await opened.value(_HEAD)) else ["no head"]
    problems += [f"{wide} pixels wide, the window {width}"] if wide > width else []
    clip = {"x": 0, "y": 0, "width": width, "height": min(high, MOST_HEIGHT), "scale": 1}
    picture = await opened.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    file.write_bytes(base64.b64decode(picture["data"]))
    return [*problems, *opened.complaints]


async def shoot_all(chromium: str, url: str, pages: list[str], folder: Path) -> bool:
    """Whether nothing is wrong with any."""
    good = True
    parts = urlsplit(url)  # whose query may have a token
    async with browser(chromium) as opened:
        for page, theme, width in product(pages, THEMES, WIDTHS):
            file = folder / f"{page}-{theme}-{width}.png"
            address = parts._replace(path=f"/{NAMES[page]}", query=f"theme={theme}&{parts.query}")
            problems = await shoot(opened, urlunsplit(address), width, file)
            print(f"{file}: {'; '.join(problems) or 'nothing said'}", flush=True)
            good = good and not problems
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a dashboard, as it prints it")
    parser.add_argument("folder", type=Path, help="for the pictures")
    parser.add_argument("--pages", default=",".join(NAMES), help="some of them, with commas between")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser"))
    given = parser.parse_args()
    pages = given.pages.split(",")
    if unknown := sorted(set(pages) - NAMES.keys()):
        parser.error(f"--pages {', '.join(unknown)}: not among {', '.join(NAMES)}")
    if not given.chromium:
        parser.error("there is no chromium on the path; install it, or say where it is with --chromium")
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        return 0 if asyncio.run(shoot_all(given.chromium, given.url, pages, given.folder)) else 1
    except (OSError, RuntimeError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
