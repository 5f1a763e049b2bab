"""Which address the others reach this process at."""

from __future__ import annotations

import socket

from psruntime.config import PlaceConfig, split_address
from psruntime.errors import UsageError


def own_host(place: PlaceConfig) -> str:
    """`--host`, or the local address of the route to the coordinator.

    Raises:
        UsageError: the coordinator's name cannot be resolved.
    """
    if place.host:
        return place.host
    host, port = split_address(place.coordinator)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent, the route is looked up
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"the coordinator's host '{host}' cannot be resolved or reached: {error.strerror or error}"
        ) from error
    return f"[{own}]" if ":" in own else own
