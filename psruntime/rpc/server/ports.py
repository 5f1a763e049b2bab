"""Why an address cannot be listened at, in words.  gRPC itself only says that it failed."""

from __future__ import annotations

import errno
import os
import socket

from psruntime.config.process import split_address
from psruntime.errors import UsageError


def require_free(address: str, setting: str) -> None:
    """Raises a UsageError if `host:port` cannot be bound; `setting` is the flag that gives the port.

    The answer may be outdated at once; whoever binds next has to be ready for a refusal.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"address {address} cannot be resolved: {error}") from None
    failures = [failure for failure in (_bind(family, where) for family, _, _, _, where in found) if failure]
    if errno.EADDRINUSE in failures:
        raise in_use(address, setting)
    if len(failures) == len(found):
        raise UsageError(f"address {address} cannot be listened at: {os.strerror(failures[0])}")


def in_use(address: str, setting: str) -> UsageError:
    return UsageError(f"address {address} is in use; choose another port with {setting}")


def _bind(family: int, where: tuple[object, ...]) -> int | None:
    """Binds and lets go; the error number if that fails.  SO_REUSEADDR as gRPC has it: a port in TIME_WAIT is free."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except OSError as error:
        return error.errno
    return None
