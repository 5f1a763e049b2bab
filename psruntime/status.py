"""Shows a running job: phase, each ps, each worker.

python -m psruntime.status [--coordinator HOST:PORT] [--json | --follow]
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console

from psruntime import flags
from psruntime.config import DEFAULT_COORDINATOR, ProcessConfig, SecurityConfig, split_address
from psruntime.errors import EXIT_DONE, EXIT_USAGE, PsRuntimeError, UnreachableError, UsageError
from psruntime.observe.render import as_json, as_tables, progress_line
from psruntime.process import usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.security.credentials import load_security

PROG = "psruntime status"
FOLLOW_S = 1.0
SPEED_WINDOW = 10  # looks, for the steps/s from which the time left follows


def main(argv: Sequence[str] | None = None) -> int:
    """Asks the coordinator once, or with --follow until the job is over."""
    parser = flags.Parser(PROG, "Shows a running job.", first=("coordinator",))
    parser.add_settings(ProcessConfig, only=("coordinator",))
    parser.add_settings(SecurityConfig)
    group = parser.heading(flags.MOST_USED).add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    group.add_argument("--follow", action="store_true", help="one progress line, kept up to date until the job is over")
    arguments = parser.parse_args(argv)
    coordinator = getattr(arguments, "coordinator", DEFAULT_COORDINATOR)
    try:
        split_address(coordinator)
        security = load_security(flags.security_config(arguments), serves=False)
    except UsageError as error:
        return usage_error(PROG, error)
    client = CoordinatorClient(coordinator, security)
    try:
        if arguments.follow:
            return _follow(client)
        status, job = client.get_status()
        if arguments.json:
            sys.stdout.write(json.dumps(as_json(status, job), indent=2) + "\n")
        else:
            Console().print(as_tables(status, job))
        return EXIT_DONE
    except PsRuntimeError as error:
        unreachable = isinstance(error, UnreachableError)
        hint = "; is the job running, and is --coordinator the address of its ps 0?" if unreachable else ""
        sys.stderr.write(f"{PROG}: {error}{hint}\n")
        return EXIT_USAGE if unreachable else error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        client.close()


def _follow(client: CoordinatorClient) -> int:
    """On a terminal one line that changes in place; elsewhere a line whenever it changes."""
    console = Console()
    seen: deque[tuple[float, int]] = deque(maxlen=SPEED_WINDOW)
    last = ""
    with console.status("") as line:
        while True:
            try:
                status, job = client.get_status()
            except UnreachableError:
                return EXIT_DONE  # the coordinator left: the job is over, and the processes' exit codes tell how
            seen.append((time.monotonic(), status.global_step))
            (then_s, then_step), (now_s, now_step) = seen[0], seen[-1]
            speed = (now_step - then_step) / (now_s - then_s) if now_s > then_s else 0.0
            text = progress_line(status, job, speed)
            if console.is_terminal:
                line.update(text)
            elif text != last:
                console.print(text, soft_wrap=True)
            last = text
            if status.phase.over:
                return EXIT_DONE
            time.sleep(FOLLOW_S)


if __name__ == "__main__":
    sys.exit(main())
