"""Channel options of both ends, side by side because they have to fit each other."""

from __future__ import annotations

MESSAGE_BYTES = 16 << 20  # a join with 100,000 variables has about 6 MB
PING_MS = 5000  # a link that was cut is noticed within two of these
RECONNECT_FIRST_MS = 100
RECONNECT_MOST_MS = 1000  # a coordinator that is back is found within it; also how long one try to connect takes

_BOTH = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)

SERVER_OPTIONS = (
    *_BOTH,
    ("grpc.so_reuseport", 0),  # by default two servers may share a port, each with a part of the callers
    # By default the server ends a connection that pings more often than every 5 minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
)

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
