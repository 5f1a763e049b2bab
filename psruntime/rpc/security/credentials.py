"""What protects a process's side of the control plane: its certificate and the job's token."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from psruntime.config.process import SecurityConfig
from psruntime.errors import CredentialsError
from psruntime.rpc.security.job_token import checked_token, read_token
from psruntime.rpc.security.tls import Tls, read_tls


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
