"""Frames of HTTP/2 as a caller writes them by hand: whatever order, and whatever is left out (RFC 9113, RFC 7541)."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0x0, 0x1, 0x4, 0x6, 0x8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE = 4  # a setting


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values: int) -> bytes:
    """`window`: bytes of answers that the caller takes, per call."""
    pairs = b"".join(struct.pack(">HI", {"window": INITIAL_WINDOW_SIZE}[name], n) for name, n in values.items())
    return frame(SETTINGS, payload=pairs)


def opening(path: bytes, stream: int = 1, *extra: tuple[bytes, bytes]) -> bytes:
    """The headers of a gRPC call."""
    fields = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"here"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *extra,
    ]  # fmt: skip
    return frame(HEADERS, END_HEADERS, stream, b"".join(b"\0" + _text(name) + _text(value) for name, value in fields))


def message(body: bytes, stream: int = 1, size: int | None = None, end: bool = True) -> bytes:
    """A request of up to 16 kB; `size` is what it claims to be long."""
    prefix = b"\0" + struct.pack(">I", len(body) if size is None else size)
    return frame(DATA, END_STREAM if end else 0, stream, prefix + body)


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value
