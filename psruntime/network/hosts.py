"""Which address the others reach this process at, and which of them only this machine does."""

from __future__ import annotations

import ipaddress
import socket

from psruntime.config import ProcessConfig, split_address
from psruntime.errors import UsageError


def own_host(where: ProcessConfig) -> str:
    """`--host`, or the local address of the route to the coordinator.

    Raises:
        UsageError: the coordinator's name cannot be resolved.
    """
    if where.host:
        return where.host
    host, port = split_address(where.coordinator)
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


def require_loopback(coordinator: str) -> None:
    """Raises a UsageError if other machines may reach a server at `host:port`, or if the host cannot be resolved."""
    host, _ = split_address(coordinator)
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the coordinator's host '{host}' cannot be resolved: {error.strerror or error}") from error
    if not all(ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback for *_, where in found):
        raise UsageError(
            f"coordinator {coordinator} would serve other machines without TLS: give --tls-ca, --tls-cert and "
            "--tls-key, or --insecure if all that reach it may change the job (docs/security.md)"
        )
