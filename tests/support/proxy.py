"""A TCP proxy for the links to the coordinator: it delays, cuts and drops, from outside.

It never changes the order of the bytes of a connection.  What overtakes something is of another connection.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from psruntime.config.process import split_address

CHUNK_BYTES = 1 << 16
CALL_S = 10.0  # for the proxy's thread to do what it is told

T = TypeVar("T")


class Proxy:
    """Listens at `address` and passes on to where `lead_to` says.  Runs in a thread of its own until `close`.

    counts: connections, delayed (chunks), overtook (chunks that were passed on before an older one of another
    connection), cut (connections), dropped (chunks), refused (connections).
    """

    def __init__(self, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._target = ("", 0)
        self._longest_s = 0.0
        self._dropping = False
        self._links: set[_Link] = set()
        self._numbers = count()
        self._under_way: dict[int, _Link] = {}  # chunks by their number, in the order in which they came
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._call(lambda: asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lead_to(self, target: str) -> str:
        """From now on it passes on to there; returns its own address."""
        self._target = split_address(target)
        return self.address

    def delay(self, longest_s: float) -> None:
        """Each chunk is held for a random time of at most this; 0: none is."""
        self._longest_s = longest_s

    def cut(self) -> None:
        """Ends all connections, with whatever is under way on them."""
        self._call(self._cut, lambda link: True)

    def drop(self) -> None:
        """From now on nothing comes through, and nobody is told."""
        self._dropping = True

    def heal(self) -> None:
        """Passes on again.  Connections that have lost something are cut: what followed would not be their stream."""
        self._dropping = False
        self._call(self._cut, lambda link: link.lossy)

    def close(self) -> None:
        self._call(self._cut, lambda link: True)
        self._call(self._close_server)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()
        self._loop.close()

    # In the proxy's thread.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        self.counts["connections"] += 1
        link = _Link((writer, there[1]))
        self._links.add(link)
        try:
            await asyncio.gather(self._pump(link, reader, there[1]), self._pump(link, there[0], writer))
        finally:
            link.abort()
            self._links.discard(link)

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of a connection, chunk by chunk."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                number = next(self._numbers)
                self._under_way[number] = link
                try:
                    await self._hold()
                    if self._dropping or link.lossy:
                        link.lossy = True
                        self.counts["dropped"] += 1
                        continue
                    if any(older < number and other is not link for older, other in self._under_way.items()):
                        self.counts["overtook"] += 1
                    writer.write(data)
                    await writer.drain()
                finally:
                    del self._under_way[number]
        except OSError:
            pass  # one end is gone
        finally:
            link.abort()  # the other end has to hear of it, too

    async def _hold(self) -> None:
        if self._longest_s:
            self.counts["delayed"] += 1
            await asyncio.sleep(self._random.uniform(0, self._longest_s))

    async def _cut(self, which: Callable[[_Link], bool]) -> None:
        for link in [link for link in self._links if which(link)]:
            self.counts["cut"] += 1
            link.abort()
        await asyncio.sleep(0)

    async def _close_server(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a coroutine in the proxy's thread; returns its result."""

        async def run() -> Any:
            return await make(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_S)


class _Link:
    """A connection through the proxy: both of its ends.  lossy: bytes of it were dropped."""

    def __init__(self, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.lossy = False
        self._ends = ends

    def abort(self) -> None:
        for writer in self._ends:
            writer.transport.abort()
