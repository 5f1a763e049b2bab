"""Certificate authorities for tests, and the files of whoever has a certificate of one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import trustme

from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.credentials import read_tls
from psruntime.rpc.wire.security import Security

HERE = ("127.0.0.1", "::1", "localhost")
YESTERDAY = datetime.now(timezone.utc) - timedelta(days=1)
TOKEN = "0123456789abcdef-of-the-job"
_numbers = count(1)


class Authority:
    """A CA whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder / f"ca-{next(_numbers)}"
        self._folder.mkdir()
        self.ca_file = self._folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_file)

    def files(self, *hosts: str, not_after: datetime | None = None) -> SecurityConfig:
        """A certificate for these hosts, by default those of this machine."""
        issued = self._ca.issue_cert(*(hosts or HERE), not_after=not_after)
        cert, key = (self._folder / f"{next(_numbers)}-{kind}.pem" for kind in ("cert", "key"))
        for pem in issued.cert_chain_pems:
            pem.write_to_path(cert, append=True)
        key.touch(mode=0o600)
        issued.private_key_pem.write_to_path(key, append=True)
        return SecurityConfig(str(self.ca_file), str(cert), str(key))

    def security(self, *hosts: str, not_after: datetime | None = None, token: str = "") -> Security:
        """The same, loaded, without a look at whether it is of use."""
        return loaded(self.files(*hosts, not_after=not_after), token)


def loaded(files: SecurityConfig, token: str = "") -> Security:
    return Security(read_tls(files.tls_ca, files.tls_cert, files.tls_key), (token,) if token else ())


def trusting(files: SecurityConfig, other: Authority) -> SecurityConfig:
    """The same certificate with another CA's idea of whom to trust."""
    return replace(files, tls_ca=str(other.ca_file))
