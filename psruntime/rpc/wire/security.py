"""What protects a process's side of the control plane: mutual TLS and the job's tokens, as their files have them now.

The files are read at the start, and again when they have changed.  What cannot be used then, as a certificate whose key
is not written yet, leaves the process with what it had.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

import grpc

from psruntime.config.process import SecurityConfig
from psruntime.errors import CredentialsError, UsageError
from psruntime.rpc.wire import own_memory
from psruntime.rpc.wire.credentials import Tls, read_tls
from psruntime.rpc.wire.job_token import checked_token, read_tokens

LOOK_S = 2.0  # between two looks at the files: a change is in force on all members within it
LASTS = 2  # looks in a row that find a file wrong: one may find a certificate before its key is written
DAY_S = 86400.0
NOTICES_DAYS = (30, 7, 1, 0)  # before its end a certificate is logged as expiring; 0: it has expired


@dataclass
class Security:
    """tls: None without it.  tokens: the first is sent, each is accepted; none without.  readers: tokens that are
    accepted for looking at the job.  insecure: tokens may be sent in clear.  config, serves: as of load_security.
    """

    tls: Tls | None = None
    tokens: tuple[str, ...] = field(default=(), repr=False)
    readers: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    config: SecurityConfig = field(default_factory=SecurityConfig, repr=False, compare=False)
    serves: bool = field(default=False, compare=False)
    once: frozenset[str] = field(default=frozenset(), repr=False, compare=False)  # settings that name a pipe

    @property
    def web(self) -> Callable[[], ssl.SSLContext] | None:
        """The context of the next connection to a server of HTTP; None without TLS."""
        return (lambda: self._tls.web) if self.tls else None

    @property
    def _tls(self) -> Tls:
        assert self.tls, "it does not go away"
        return self.tls

    def expires_s(self) -> float:
        """When the certificate expires, or has expired, in seconds since 1970."""
        return self._tls.expires_s

    def server_credentials(self) -> Any:
        """For a gRPC server that shows each client the newest certificate, and serves none without one of a CA."""
        shown = self._tls

        def newer() -> Any:
            nonlocal shown
            before, shown = shown, self._tls
            return None if shown is before else shown.server_configuration()

        return grpc.dynamic_ssl_server_credentials(shown.server_configuration(), newer, True)

    def keep_current(self, log: Callable[..., None]) -> None:
        """Reads the files anew whenever they change, until the process ends; logs that, and when the certificate
        expires.
        """
        if self.tls or self.config.token_file:
            keeping = Keeping(self, log)
            threading.Thread(target=keeping.run, name="credentials", daemon=True).start()

    def take(self, newer: Security) -> None:
        """Is as the newer one from now on."""
        self.tls, self.tokens, self.readers = newer.tls, newer.tokens, newer.readers


OPEN = Security()


def load_security(config: SecurityConfig, serves: bool = True, before: Security | None = None) -> Security:
    """Reads the files.

    before: what was read before, of which what came from a pipe stays: that is read once.  Without it the process hides
        its secrets (`own_memory.py`).
    serves: the process has servers: its certificate has to be one for servers too (`read_tls`).

    Raises:
        CredentialsError: the own CA does not accept the own certificate: it is another's, is not valid now, or is for
            another purpose.
        UsageError: as read_tls and read_tokens; or a token is of both kinds.
    """
    tls = read_tls(config.tls_ca, config.tls_cert, config.tls_key, serves) if config.tls_ca else None
    if tls and (fault := tls.own_fault()):
        raise CredentialsError(fault)
    _ = tls and tls.expires_s  # which is not known any more once it has expired
    tokens: tuple[str, ...] = ()
    once = before.once if before else _pipes(config)
    if before and "token_file" in once:
        tokens = before.tokens
    elif config.token_file:
        tokens = read_tokens("--token-file", config.token_file)
    elif config.token:
        tokens = (checked_token(os.fsencode(config.token), "PSRUNTIME_TOKEN"),)
    readers: tuple[str, ...] = ()
    if before and "read_token_file" in once:
        readers = before.readers
    elif config.read_token_file:
        readers = read_tokens("--read-token-file", config.read_token_file)
    if readers and not tokens:
        raise UsageError("--read-token-file is for a job with a token: give --token-file, too")
    if set(readers) & set(tokens):
        raise UsageError(f"--read-token-file {config.read_token_file} has a token of --token-file: make another one")
    if not before and (tls or tokens):
        own_memory.hide(config)
    return Security(tls, tokens, readers, config.is_insecure, config, serves, once)


def _pipes(config: SecurityConfig) -> frozenset[str]:
    """The settings that name a pipe with tokens."""
    named = {name: str(getattr(config, name)) for name in ("token_file", "read_token_file")}
    return frozenset(name for name, path in named.items() if os.path.exists(path) and not os.path.isfile(path))


class Keeping:
    """Keeps a process's security as its files have it."""

    def __init__(self, security: Security, log: Callable[..., None], now: Callable[[], float] = time.time) -> None:
        self._security, self._log, self._now = security, log, now
        self._seen = _versions(security.config)
        self._refused, self._times = "", 0  # the last reason, and in how many looks in a row
        self._expires_s, self._noticed = 0.0, 0  # how many of NOTICES_DAYS are logged

    def run(self) -> None:
        """Does not return."""
        self.notice_expiry()
        while True:
            time.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Reads what has changed, and logs what is about to expire."""
        versions = _versions(self._security.config)
        if versions != self._seen or self._refused:
            self._seen = versions  # a change while they are read is found by the next look
            self._read()
        self.notice_expiry()

    def _read(self) -> None:
        try:
            newer = load_security(self._security.config, self._security.serves, self._security)
        except (UsageError, OSError) as error:  # OSError: a file went away while it was read
            self._times = self._times + 1 if str(error) == self._refused else 1
            self._refused = str(error)
            if self._times == LASTS:
                self._log("credentials_refused", reason=f"{error}; what was read before stays in force")
            return
        self._refused = ""
        if newer == self._security:  # a file was replaced by its like, or after the last look and before it was read
            return
        self._security.take(newer)
        self._log("credentials_read", tokens=len(newer.tokens), tls=bool(newer.tls))

    def notice_expiry(self) -> None:
        """Logs when the certificate expires: when it was read, and as often as NOTICES_DAYS has it."""
        if not (tls := self._security.tls):
            return
        expires_s = tls.expires_s
        left_days = (expires_s - self._now()) / DAY_S
        due = sum(left_days <= days for days in NOTICES_DAYS)
        if expires_s != self._expires_s or due > self._noticed:
            until = datetime.fromtimestamp(expires_s, timezone.utc)
            self._log("certificate", file=tls.cert_file, expires=f"{until:%Y-%m-%dT%H:%MZ}", days=round(left_days, 1))
        self._expires_s, self._noticed = expires_s, due


def _versions(config: SecurityConfig) -> list[tuple[int, ...]]:
    """What tells the present contents of the files from others."""
    return [_version(str(getattr(config, each.name))) for each in fields(config) if "heading" in each.metadata]


def _version(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
