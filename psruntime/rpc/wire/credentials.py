"""What protects a process's side of the control plane: mutual TLS, why a handshake failed, and the job's token.

gRPC reports UNAVAILABLE for a failed handshake, as for a server that is not there.  So what would make every handshake
fail is found when the process starts (`read_tls`), and after another failure it is tried once more (`why_refused`).
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from psruntime.config.process import SecurityConfig, split_address
from psruntime.errors import CredentialsError, UsageError
from psruntime.rpc.wire.job_token import checked_token, read_file, read_secret_file, read_token

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
        return f"{who} has a certificate that has expired: renew it and restart ps 0"
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


FLAGS = "--tls-ca, --tls-cert and --tls-key"
OTHER_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")  # how OpenSSL puts it
OTHER_CA = (18, 19, 20, 21)  # OpenSSL's X509_V_ERR for chains that lead nowhere or to a stranger
LEGS = 3  # times that each end of a handshake has to look at what came; TLS 1.3 needs two


@dataclass(frozen=True)
class Tls:
    """The certificate and key of one process, and the CAs that it trusts.

    ca, cert, key: as PEM; cert may be a chain.  ca_file, cert_file: for messages.
    caller: the same for Python's ssl, as a client that checks the server's name.  web: as a server of HTTP, which
        serves no client without a certificate of the CA.
    mirror: both ends of a handshake with itself, which checks everything but names.
    """

    ca_file: str
    cert_file: str
    ca: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)
    caller: ssl.SSLContext
    web: ssl.SSLContext
    mirror: tuple[ssl.SSLContext, ssl.SSLContext]

    def server_credentials(self) -> Any:
        """For a gRPC server that serves no client without a certificate of the CA."""
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)

    def channel_credentials(self) -> Any:
        """For a gRPC channel."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)

    def own_fault(self) -> str:
        """Why a peer that trusts the same CA refuses this process now; empty if it does not."""
        to_answerer, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller, answerer = self.mirror
        ends = (caller.wrap_bio(to_caller, to_answerer), answerer.wrap_bio(to_answerer, to_caller, server_side=True))
        try:
            for end in ends * LEGS:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        except ssl.SSLError as error:
            return f"--tls-cert {self.cert_file} is of no use with --tls-ca {self.ca_file}: {in_words(error)}"
        return ""


def read_tls(ca_file: str, cert_file: str, key_file: str, serves: bool = True) -> Tls:
    """Reads the files of --tls-ca, --tls-cert and --tls-key, once.

    `own_fault` then says whether they are of use, by a handshake of the process with itself, in memory.

    serves: the process has servers, so that its certificate has to be one for servers too.

    Raises:
        UsageError: one cannot be read or has something else in it; the key is encrypted, open to others, or not
            that of the certificate.
    """
    ca, cert = read_file("--tls-ca", ca_file), read_file("--tls-cert", cert_file)
    key = read_secret_file("--tls-key", key_file)
    _require_certificates("--tls-cert", cert_file)
    files = (ca_file, cert_file, key_file)
    caller, answerer = _context(ssl.PROTOCOL_TLS_CLIENT, *files), _context(ssl.PROTOCOL_TLS_SERVER, *files)
    web = _context(ssl.PROTOCOL_TLS_SERVER, *files, speaks="http/1.1")
    answerer.verify_mode = web.verify_mode = ssl.CERT_REQUIRED
    nameless = _context(ssl.PROTOCOL_TLS_CLIENT, *files)
    nameless.check_hostname = False
    if not serves:
        nameless.verify_mode = ssl.CERT_NONE
    return Tls(ca_file, cert_file, ca, cert, key, caller, web, (nameless, answerer))


def in_words(error: ssl.SSLError) -> str:
    """What OpenSSL says is wrong, without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_CA:
            return "another CA signed it"
        return error.verify_message.rstrip(".")
    return (error.reason or "unknown error").lower().replace("_", " ")


def _context(protocol: Any, ca_file: str, cert_file: str, key_file: str, speaks: str = "h2") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # what two psruntimes speak
    context.set_alpn_protocols([speaks])  # a gRPC server closes without it
    _require_certificates("--tls-ca", ca_file, context)

    def no_password() -> NoReturn:  # without it OpenSSL would ask on the terminal
        raise UsageError(f"--tls-key {key_file} is encrypted; psruntime takes a key without a password")

    try:
        context.load_cert_chain(cert_file, key_file, no_password)
    except ssl.SSLError as error:
        if error.reason in OTHER_KEY:
            raise UsageError(f"--tls-key {key_file} is not the key of --tls-cert {cert_file}") from None
        if not error.reason or "PEM" in error.reason:
            raise UsageError(f"--tls-key {key_file} has no private key in PEM form") from None
        raise UsageError(f"--tls-cert {cert_file} cannot be used: {in_words(error)}") from None
    return context


def _require_certificates(flag: str, path: str, context: ssl.SSLContext | None = None) -> None:
    try:
        (context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).load_verify_locations(path)
    except ssl.SSLError:
        raise UsageError(f"{flag} {path} has no certificate in PEM form") from None


@dataclass(frozen=True)
class Security:
    """tls: None without it.  token: empty without one."""

    tls: Tls | None = None
    token: str = field(default="", repr=False)

    @property
    def web(self) -> ssl.SSLContext | None:
        """Of a server of HTTP; None without TLS."""
        return self.tls.web if self.tls else None


OPEN = Security()


def load_security(config: SecurityConfig, serves: bool = True) -> Security:
    """Reads the files, once for the life of the process.

    serves: as read_tls.

    Raises:
        CredentialsError: the own CA does not accept the own certificate: it is another's, is not valid now, or is for
            another purpose.
        UsageError: as read_tls and read_token.
    """
    tls = read_tls(config.tls_ca, config.tls_cert, config.tls_key, serves) if config.tls_ca else None
    if tls and (fault := tls.own_fault()):
        raise CredentialsError(fault)
    if config.token_file:
        return Security(tls, read_token(config.token_file))
    return Security(tls, checked_token(os.fsencode(config.token), "PSRUNTIME_TOKEN") if config.token else "")
