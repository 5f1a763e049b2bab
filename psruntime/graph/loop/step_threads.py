"""Lanes: threads that run training steps beside each other, so that one pulls or pushes while another computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class Lanes:
    """Runs what is submitted, in `count` threads; if that is 1, at once in the caller's.

    The threads end with the process: nothing that they may hang in keeps it.
    """

    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._call = self._queue.put  # does not block
        self._alone = count == 1
        for lane in range(0 if self._alone else count):
            threading.Thread(target=self._serve, name=f"lane-{lane}", daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """What the call returns or raises, once it has ended."""
        future: Future[Any] = Future()
        if self._alone:
            _run(call, future)
        else:
            self._call((call, future))
        return future

    def _serve(self) -> None:
        while True:
            _run(*self._queue.get())


def _run(call: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        future.set_exception(error)
    else:
        future.set_result(result)
