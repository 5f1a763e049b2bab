"""Channel options of both ends, side by side because they have to fit each other."""

from __future__ import annotations

import resource

MESSAGE_BYTES = 8 << 20  # a join with 100,000 variables has 7 MB, if their names have 50 characters
PING_MS = 5000  # a link that was cut is noticed within two of these
RECONNECT_FIRST_MS = 100
RECONNECT_MOST_MS = 1000  # a coordinator that is back is found within it; also how long one try to connect takes
HANDSHAKE_MS = 10_000  # for a caller that connects; 60 s by default
IDLE_MS = 60_000  # a connection without calls is closed after it; the next call opens another
# A member has at most six, two of them held.  A flood from as many connections delays a heartbeat by these calls of
# each, and some 3,000 are taken in a second.
CALLS_PER_CONNECTION = 16
CONNECTIONS = 16_384  # of some 14 kB each as long as they are silent; a member has one
CALLS = 1 << 20  # no limit besides that

_BOTH = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)

SERVER_OPTIONS = (
    *_BOTH,
    ("grpc.so_reuseport", 0),  # by default two servers may share a port, each with a part of the callers
    # By default the server ends a connection that pings more often than every 5 minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
    # Connections without calls.  A member has a heartbeat under way nearly all the time, so its own is never idle.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.http2.settings_timeout", HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    # Connections whose other end is gone, or does not read.
    ("grpc.keepalive_time_ms", 2 * PING_MS),
    ("grpc.keepalive_timeout_ms", 2 * PING_MS),
    ("grpc.http2.ping_timeout_ms", 2 * PING_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
    # By default 1,000 calls that wait to be taken make gRPC refuse others by chance, those of members too.
    ("grpc.server.max_pending_requests", CALLS),
    ("grpc.server.max_pending_requests_hard_limit", CALLS),
    ("grpc.http2.bdp_probe", 0),  # or each call may send up to 16 MB before anybody asks for its request
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: 15 kB that claim to be 15 MB cost 15 MB
)


def most_connections() -> int:
    """Callers can take half of the files that this process may open: TensorFlow needs some, and checkpoints do."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(files // 2, CONNECTIONS))


def server_options() -> tuple[tuple[str, int], ...]:
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections()))


CALLER_OPTIONS = (
    *_BOTH,
    ("grpc.enable_http_proxy", 0),  # proxy variables are meant for the web, not for the machine next door
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_MS),
    ("grpc.http2.ping_timeout_ms", PING_MS),  # without it a timer of 60 s decides
    ("grpc.http2.max_pings_without_data", 0),  # no data passes while a heartbeat is held
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_FIRST_MS),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MOST_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MOST_MS),
)
