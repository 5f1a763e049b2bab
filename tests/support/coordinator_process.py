"""A coordinator in a process of its own, whose memory and files can be counted.

python -m tests.support.coordinator_process LOG SETTINGS OPTIONS: serves a job until stdin ends; SETTINGS are those of
JobConfig and OPTIONS channel options of the server, or constants of its load_shedding, both as JSON.  Its port is the
only line of stdout.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.rpc.server import load_shedding
from psruntime.rpc.server.rpc_server import RpcServer
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire import channel_options

ROOT = Path(__file__).parents[2]
END_S = 30.0


class CoordinatorProcess:
    """See the module.  `port` is where it serves."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.pid = process.pid
        self._log = log

    @property
    def memory_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def most_memory_bytes(self) -> int:
        """At any time since it started."""
        return self._status("VmHWM")

    @property
    def files(self) -> int:
        """How many are open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self._log.read_text().splitlines())
        return [facts for event, facts in lines if event == name]

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))


@contextmanager
def coordinator_process(
    folder: Path, job: JobConfig, options: dict[str, int] | None = None
) -> Iterator[CoordinatorProcess]:
    """`options` are channel options, `grpc.` and so on, or constants of load_shedding.py, in place of the product's."""
    log = folder / "coordinator.log"
    arguments = [str(log), json.dumps(asdict(job)), json.dumps(options or {})]
    command = [sys.executable, "-m", "tests.support.coordinator_process", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield CoordinatorProcess(process, log)
            assert process.poll() is None, f"the coordinator ended with {process.returncode}"
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def main(log: str, settings: str, changes: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = dict(channel_options.SERVER_OPTIONS)
    for name, value in json.loads(changes).items():
        if name in vars(load_shedding):
            setattr(load_shedding, name, value)
        else:
            channel[name] = value
    channel_options.SERVER_OPTIONS = tuple(channel.items())
    job = JobConfig(**json.loads(settings))
    with Path(log).open("a", buffering=1) as file:

        def write(event: str, /, **facts: Any) -> None:
            file.write(json.dumps([event, facts], default=str) + "\n")

        server = RpcServer("127.0.0.1:0", lambda: CoordinationServicer(partial(Coordinator, job), job, write))
        print(server.start(), flush=True)
        sys.stdin.read()
        server.stop(0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
