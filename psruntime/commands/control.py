"""Steers a running job: pause and resume it, save, change its mode or its learning rates, end it, drain a worker.

psruntime control [HOST:PORT] COMMAND
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

from psruntime.config.schedule import BOUNDED, MODES
from psruntime.config.settings import suggestion
from psruntime.config.values import AUTO
from psruntime.core.steering.commands import Command, Kind, Outcome, Reply, check_bound, check_scale
from psruntime.errors import EXIT_DONE, EXIT_FAILED, PsRuntimeError, UnreachableError, UsageError
from psruntime.process import flags
from psruntime.process.process import request_error, usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.messages import ControlRequest
from psruntime.rpc.wire.security import load_security

PROG = "psruntime control"
TIMEOUT_S = 300.0  # as long as a job waits for its own: --drain-timeout, --ps-timeout
POLL_S = 1.0  # the coordinator answers sooner if there is an outcome; between two polls, a new reason is shown
MARGIN_S = 5.0  # of a call's deadline over the longest wait in the coordinator
REACH_S = 5.0  # for the first answer; a busy machine may miss one call
AGAIN_S = 0.3  # between two calls when one failed
SCHEDULED = "schedule"  # as a mode
COMMANDS = """commands:
  pause                    no step starts; those in progress end
  resume                   steps begin again
  save                     a checkpoint now
  mode M                   steps are taken in mode async, bounded N or sync from now on, or by --schedule
  bound N                  mode bounded: another bound, or auto, one that the job chooses by --bound auto:LOW-HIGH
  learning-rate-scale X    multiplies every learning rate by X; 1 is as the model has it
  drain                    the job ends as at its end: last checkpoint, evaluation, DONE
  drain worker N           worker N leaves after its step; the others continue"""


def main(argv: Sequence[str] | None = None) -> int:
    """Sends one command, waits until it has taken effect and prints at which global step."""
    arguments = _parser().parse_args(argv)
    if address := next((word for word in arguments.command if ":" in word), ""):
        arguments.coordinator = address
        arguments.command.remove(address)
    try:
        coordinator = flags.coordinator_of(arguments)
        command = command_of(arguments.command)
        if not arguments.timeout > 0:
            raise UsageError(f"--timeout must be above 0, got {arguments.timeout:g}")
        security = load_security(flags.security_config(arguments), serves=False)
        client = CoordinatorClient(coordinator, security)
    except UsageError as error:
        return usage_error(PROG, error)
    try:
        return _ended(ask(client, command, arguments.timeout), command, arguments.timeout)
    except PsRuntimeError as error:
        return request_error(PROG, error)
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROG}: not waiting any more; a command that was taken takes effect all the same\n")
        return 130
    finally:
        client.close()


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Steers a running job, and prints from which global step on a change is in force.",
        first=("coordinator",),
        usage=f"{PROG} [HOST:PORT] [flags] COMMAND",
    )
    parser.epilog = COMMANDS
    parser.formatter_class = flags.TextFormatter
    parser.offers = tuple(str(kind) for kind in Kind if kind is not Kind.DRAIN_WORKER)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="one of those below, with its argument")
    flags.add_coordinator_flags(parser)
    parser.heading(flags.MOST_USED).add_argument(
        "--timeout", type=flags.number, default=TIMEOUT_S, metavar="S",
        help=f"how long to wait until the command has taken effect (default: {TIMEOUT_S:g} s)",
    )  # fmt: skip
    return parser


def command_of(words: Sequence[str]) -> Command:
    """The command of these words, with a new request id.

    Raises:
        UsageError: they are none.
    """
    request_id = secrets.token_hex(16)
    first, *rest = [word for given in words for word in given.split()] or [""]
    if first == Kind.DRAIN and rest:
        if rest[0] != "worker" or len(rest) != 2:
            raise UsageError(f"drain takes nothing, or worker and its index, got '{' '.join(rest)}'")
        return Command(Kind.DRAIN_WORKER, request_id, worker=_index("drain worker", rest[1]))
    known = {str(kind): kind for kind in Kind if kind is not Kind.DRAIN_WORKER}
    if first not in known:
        hint = suggestion(first, known) or f"; known are {', '.join(known)}"
        raise UsageError(f"unknown command '{first}'{hint}")
    kind = known[first]
    if kind is Kind.MODE:
        return Command(kind, request_id, **_mode(rest))
    if len(rest) != bool(kind.argument):
        takes = f"takes one argument, {kind.argument}" if kind.argument else "takes no argument"
        raise UsageError(f"{kind} {takes}, got '{' '.join(rest)}'")
    if kind is Kind.BOUND and rest[0] == AUTO:
        return Command(kind, request_id, automatic=True)
    if kind is Kind.BOUND:
        return Command(kind, request_id, bound=check_bound("bound", _index("bound", rest[0])))
    if kind is Kind.LEARNING_RATE_SCALE:
        return Command(kind, request_id, scale=check_scale(str(kind), _number(str(kind), rest[0])))
    return Command(kind, request_id)


def _mode(words: Sequence[str]) -> dict[str, Any]:
    """The fields mode, and bound of mode bounded."""
    mode, *rest = words or [""]
    known = (*MODES, SCHEDULED)
    if mode not in known:
        hint = suggestion(mode, known) or f"; known are {', '.join(known)}"
        raise UsageError(f"mode takes async, bounded N, sync or schedule, got '{mode}'{hint}")
    if len(rest) != (mode == BOUNDED):
        takes = "one argument, how far a worker may be ahead of the slowest" if mode == BOUNDED else "no argument"
        raise UsageError(f"mode {mode} takes {takes}, got '{' '.join(rest)}'")
    if mode == SCHEDULED:
        return {"automatic": True}
    return {"mode": mode, "bound": check_bound("bound", _index("bound", rest[0])) if rest else 0}


def _index(name: str, word: str) -> int:
    if not word.isascii() or not word.isdecimal() or len(word) > 15:
        raise UsageError(f"{name} must be a whole number from 0, got '{word}'")
    return int(word)


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"{name} must be a number, got '{word}'") from None


def ask(client: CoordinatorClient, command: Command, timeout_s: float) -> Reply:
    """The outcome of the command once it has taken effect or was abandoned, or when the time is over.

    Raises:
        UsageError: the job cannot do it.
        JobDoneError, JobFailedError, JobStoppedError: it is over.
        UnreachableError: the coordinator was not reached.
    """
    return _Asking(client, command, timeout_s).reply()


class _Asking:
    """Asks until there is an outcome or the time is over; a repeat has the same request id, so it counts once."""

    def __init__(self, client: CoordinatorClient, command: Command, timeout_s: float) -> None:
        self._client = client
        self._command = command
        self._until_s = time.monotonic() + timeout_s
        self._reach_until_s = time.monotonic() + min(timeout_s, REACH_S)
        self._said = ""

    def reply(self) -> Reply:
        """The last one, which may be pending.  Raises as `ask`."""
        while True:
            left_s = self._until_s - time.monotonic()
            poll_s = max(0.0, min(POLL_S, left_s))
            try:
                reply = self._client.control(ControlRequest(self._command, poll_s), poll_s + MARGIN_S)
            except UnreachableError as error:
                if time.monotonic() >= self._reach_until_s:
                    raise
                if self._reach_until_s == self._until_s:
                    self._report(f"{error}; it is asked again")
                time.sleep(AGAIN_S)
                continue
            self._reach_until_s = self._until_s  # it was accepted: a new coordinator accepts it again
            if reply.outcome is not Outcome.PENDING or left_s <= 0:
                return reply
            self._report(reply.text)

    def _report(self, reason: str) -> None:
        if reason and reason != self._said:
            sys.stderr.write(f"{PROG}: {reason}\n")
            self._said = reason


def _ended(reply: Reply, command: Command, timeout_s: float) -> int:
    if reply.outcome is Outcome.DONE:
        sys.stdout.write(f"{reply.text}\n")
        return EXIT_DONE
    if reply.outcome is Outcome.GIVEN_UP:
        sys.stderr.write(f"{PROG}: {command}: {reply.text}\n")
    else:
        why = f": {reply.text}" if reply.text else ""
        sys.stderr.write(
            f"{PROG}: {command} has not taken effect within {timeout_s:g} s (--timeout){why}; it is still wanted\n"
        )
    return EXIT_FAILED
