"""The job's tokens, and how files with secrets are read.

A token distinguishes the members of one job from other processes; TLS says which they are.  Without TLS any process
that can listen to the network can read it.  A token for looking lets its caller see the job, and change nothing.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from psruntime.errors import CredentialsError, UsageError
from psruntime.rpc.wire import statuses

OTHERS = 0o077  # what group and others may do; as ssh has it for private keys
ROOT, OTHERS_OF_ROOT = 0, 0o037  # root lends a file to a group


def read_file(flag: str, path: str) -> bytes:
    """The contents of the file that `flag` names.

    Raises:
        UsageError: it cannot be read.
    """
    return _read(flag, path)[0]


def read_secret_file(flag: str, path: str) -> bytes:
    """The same for a file with a secret.

    As with ssh, a file of our own may not be open to others.  One of root may be open to a group, to read.  One on a
    read-only file system is as its mount made it: a Secret of Kubernetes, for example, has mode 0644 by default.

    Raises:
        UsageError: it cannot be read, is of another user, or group or others have a right to it.
    """
    contents, status, file_system = _read(flag, path)
    mode, owner, own = stat.S_IMODE(status.st_mode), status.st_uid, os.geteuid()
    if file_system.f_flag & os.ST_RDONLY:
        return contents
    if mode & (OTHERS if owner == own else OTHERS_OF_ROOT):
        raise UsageError(f"{flag} {path} is a secret and open to others (mode {mode:04o}): chmod 600 {path}")
    if owner not in (own, ROOT):
        raise UsageError(
            f"{flag} {path} is a secret that belongs to another user ({owner}), who can change it: make your own copy"
        )
    return contents


def _read(flag: str, path: str) -> tuple[bytes, os.stat_result, os.statvfs_result]:
    try:
        with open(path, "rb") as file:
            return file.read(), os.fstat(file.fileno()), os.fstatvfs(file.fileno())
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read: {error.strerror}") from None


KEY = "authorization"
OPEN_TO_ALL = "/grpc.health.v1.Health/"  # whether a process lives is no secret
LOOKING = frozenset({"GetModel", "GetStatus"})  # RPCs of a token for looking
PATTERN = re.compile(rb"[!-~]{16,512}")  # what a header takes, and more than can be guessed
MOST_TOKENS = 16  # at a time; two are enough to change from one to the other
LOG_EVERY_S = 10.0  # a flood of refused calls is a line every so often

Metadata = tuple[tuple[str, str], ...]


def read_tokens(flag: str, path: str) -> tuple[str, ...]:
    """The tokens in a file, one in each line.

    Raises:
        UsageError: the file cannot be read, is open to others, or has a line that is no token.
    """
    lines = read_secret_file(flag, path).removesuffix(b"\n").split(b"\n")
    if len(lines) > MOST_TOKENS:
        raise UsageError(f"{flag} {path} has {len(lines)} lines: at most {MOST_TOKENS} tokens, one in each, are valid")
    at = (f"{flag} {path}{f', line {number},' if len(lines) > 1 else ''}" for number in range(1, len(lines) + 1))
    return tuple(map(checked_token, lines, at))


def checked_token(token: bytes, where: str) -> str:
    """The token as text.

    Raises:
        UsageError: it is none; the message says where it stands, and not what it is.
    """
    if not PATTERN.fullmatch(token):
        raise UsageError(f"{where} is no token of 16 to 512 visible ASCII characters; openssl rand -hex 32 makes one")
    return token.decode("ascii")


def metadata(token: str) -> Metadata:
    """What a call carries; nothing without a token."""
    return ((KEY, _header(token)),) if token else ()


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses every call without a token of the job, before its request is read.  Health alone is open.

    tokens: the kinds as they are now: those for every call, and those for LOOKING alone.
    `log(event, **facts)` logs refusals, the first at once and then every LOG_EVERY_S.
    """

    def __init__(
        self, tokens: Callable[[], tuple[Sequence[str], Sequence[str]]], log: Callable[..., None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._tokens = tokens
        self._log = log
        self._now = now
        self._untold = 0  # refusals that are not logged yet
        self._quiet_until_s = 0.0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """As grpc.aio.ServerInterceptor."""
        given = dict(call.invocation_metadata or ()).get(KEY, b"")
        given = given.encode("utf-8", "replace") if isinstance(given, str) else given
        fault = "" if call.method.startswith(OPEN_TO_ALL) else self._fault(given, call.method.rpartition("/")[2])
        if not fault:
            return await continuation(call)
        error = CredentialsError(
            f"the coordinator refuses the call, which has {fault}: give the job's with --token-file or PSRUNTIME_TOKEN"
        )
        return grpc.stream_unary_rpc_method_handler(self._refusal(error))

    def _fault(self, given: bytes, rpc: str) -> str:
        """What is wrong with the token of a call; empty: nothing."""
        for_all, for_looking = self._tokens()
        if _is_one_of(given, for_all):
            return ""
        if _is_one_of(given, for_looking):
            return "" if rpc in LOOKING else "a token that is for reading only"
        return "another token than the job's" if given else "no token"

    def _refusal(self, error: CredentialsError) -> Callable[[Any, Any], Awaitable[None]]:
        row = statuses.row_of(error)
        assert row is not None

        async def refuse(_requests: Any, context: Any) -> None:
            self._note(context.peer(), error)
            await context.abort(row.code, str(error))

        return refuse

    def _note(self, peer: str, error: CredentialsError) -> None:
        self._untold += 1
        now_s = self._now()
        if now_s >= self._quiet_until_s:
            self._log("refused", calls=self._untold, last_from=peer, reason=error)
            self._untold, self._quiet_until_s = 0, now_s + LOG_EVERY_S


def _is_one_of(given: bytes, tokens: Sequence[str]) -> bool:
    """Compares with each of them, so that the time says nothing of which it is."""
    return sum(hmac.compare_digest(given, _header(token).encode()) for token in tokens) > 0


def _header(token: str) -> str:
    return f"Bearer {token}"
