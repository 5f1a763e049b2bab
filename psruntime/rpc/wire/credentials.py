"""The certificate and key of a process for mutual TLS, and the CAs that it trusts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import grpc

from psruntime.errors import UsageError
from psruntime.rpc.wire.job_token import read_file, read_secret_file

FLAGS = "--tls-ca, --tls-cert and --tls-key"
OTHER_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")  # how OpenSSL puts it
OTHER_CA = (18, 19, 20, 21)  # OpenSSL's X509_V_ERR for chains that lead nowhere or to a stranger
LEGS = 3  # times that each end of a handshake has to look at what came; TLS 1.3 needs two


@dataclass(frozen=True)
class Tls:
    """The certificate and key of one process, and the CAs that it trusts, as they were read.

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
    caller: ssl.SSLContext = field(compare=False)
    web: ssl.SSLContext = field(compare=False)
    mirror: tuple[ssl.SSLContext, ssl.SSLContext] = field(compare=False)

    def server_configuration(self) -> Any:
        """For a gRPC server that serves no client without a certificate of a CA."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.ca)

    def channel_credentials(self) -> Any:
        """For a gRPC channel."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)

    def own_fault(self) -> str:
        """Why a peer that trusts the same CAs refuses this process now; empty if it does not."""
        try:
            self._shaken()
        except ssl.SSLError as error:
            return f"--tls-cert {self.cert_file} is of no use with --tls-ca {self.ca_file}: {in_words(error)}"
        return ""

    @cached_property
    def expires_s(self) -> float:
        """When the certificate expires, in seconds since 1970.

        Raises:
            ssl.SSLError: it is of no use.
        """
        shown = self._shaken().getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))

    def _shaken(self) -> ssl.SSLObject:
        """The answering end of a handshake of this process with itself, in memory.  Raises ssl.SSLError if it fails."""
        to_answerer, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller, answerer = self.mirror
        answers = answerer.wrap_bio(to_answerer, to_caller, server_side=True)
        for end in (caller.wrap_bio(to_caller, to_answerer), answers) * LEGS:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return answers


def read_tls(ca_file: str, cert_file: str, key_file: str, serves: bool = True) -> Tls:
    """Reads the files of --tls-ca, --tls-cert and --tls-key.

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
