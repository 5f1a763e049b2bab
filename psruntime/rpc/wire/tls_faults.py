"""Why a TLS handshake failed.

gRPC reports UNAVAILABLE for a failed handshake, as for a server that is not there.  So what would make every handshake
fail is found when the process starts (`credentials.py`), and after another failure it is tried once more, here.
"""

from __future__ import annotations

import socket
import ssl
import time

from psruntime.config.process import split_address
from psruntime.rpc.wire.credentials import FLAGS, Tls, in_words

LOOKS = 2  # a server that is about to end may close once after a handshake; it does not do so twice
RETRY_S = 0.2  # between two looks
EXPIRED, OTHER_NAME = 10, (62, 64)  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH
FRAME_BYTES, SETTINGS = 9, 4  # an HTTP/2 frame's header, and its type (RFC 9113, 4.1 and 6.5)
ABOUT_A_CERTIFICATE = ("CERT", "UNKNOWN_CA", "ACCESS_DENIED")  # in the names of alerts


def why_refused(who: str, address: str, tls: Tls | None, timeout_s: float) -> str:
    """What is wrong with TLS between us and the server at `host:port`, one line; empty if nothing is proven.

    The handshake is tried once more with Python's ssl, which shows what gRPC hides.  Only what proves a mistake counts:
    a server that is not there, or goes away meanwhile, is none.

    `who` is the server, for people.  Takes at most about `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s
    try:
        return _look_without(who, address, until_s) if tls is None else _look(who, address, tls, until_s)
    except OSError:  # nothing listens there, or the connection was lost: nothing that a flag would mend
        return ""


def _look_without(who: str, address: str, until_s: float) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # any certificate: only whether TLS is spoken counts
    try:
        _greeting(address, context, until_s)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return f"{who} speaks TLS: give {FLAGS}"


def _look(who: str, address: str, tls: Tls, until_s: float) -> str:
    for _ in range(LOOKS):
        try:
            if _greeting(address, tls.caller, until_s):
                return ""
        except ssl.SSLCertVerificationError as error:
            return _untrusted(who, address, tls, error)
        except ssl.SSLError as error:
            return _broken(who, address, tls, error, until_s)
        time.sleep(RETRY_S)
    return tls.own_fault() or (
        f"{who} breaks off when it has seen --tls-cert {tls.cert_file}: its own --tls-ca needs the CA that signed this "
        "certificate, and keys have to be RSA, P-256 or P-384"
    )


def _untrusted(who: str, address: str, tls: Tls, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in OTHER_NAME:
        host, _ = split_address(address)
        return f"{who} has a certificate for other hosts than {host}: call it as the certificate does, or renew that"
    if error.verify_code == EXPIRED:
        return f"{who} has a certificate that has expired: renew it"
    return f"{who} has a certificate that --tls-ca {tls.ca_file} does not accept: {in_words(error)}"


def _broken(who: str, address: str, tls: Tls, error: ssl.SSLError, until_s: float) -> str:
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in ABOUT_A_CERTIFICATE):
        return f"{who} refuses --tls-cert {tls.cert_file}: {in_words(error)}"
    if _greets_in_clear(address, until_s):
        return f"{who} does not speak TLS: start ps 0 with {FLAGS}, or leave them out here"
    return ""


def _greeting(address: str, context: ssl.SSLContext, until_s: float) -> bytes:
    """The first byte that the server sends after a handshake; none if it closes instead.

    A gRPC server begins with its settings once it has accepted the caller's certificate, and closes without a
    word if it has not.
    """
    with _connected(address, until_s) as connection:
        host = split_address(address)[0].strip("[]")
        with context.wrap_socket(connection, server_hostname=host) as secured:
            secured.settimeout(_left_s(until_s))
            try:
                return secured.recv(1)
            except (ConnectionResetError, ssl.SSLEOFError):
                return b""


def _greets_in_clear(address: str, until_s: float) -> bool:
    """Whether it is a gRPC server without TLS: such a one sends its settings before it has heard anything."""
    with _connected(address, until_s) as connection:
        header = connection.recv(FRAME_BYTES, socket.MSG_WAITALL)
    return len(header) == FRAME_BYTES and header[3] == SETTINGS and not any(header[5:])


def _connected(address: str, until_s: float) -> socket.socket:
    host, port = split_address(address)
    connection = socket.create_connection((host.strip("[]"), port), _left_s(until_s))
    connection.settimeout(_left_s(until_s))
    return connection


def _left_s(until_s: float) -> float:
    return max(0.01, until_s - time.monotonic())
