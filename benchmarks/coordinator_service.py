"""The coordinator's service alone, in a process without TensorFlow.

    python -m benchmarks.coordinator_service --core N --bound STEPS --workers N

Serves until it is killed.  Prints `serving PORT PID`, and every event of the coordinator as `event NAME`.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import threading
from functools import partial
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.rpc.server.rpc_server import RpcServer
from psruntime.rpc.server.servicer import CoordinationServicer


def a_job(workers: int, bound: int) -> JobConfig:
    """The settings of the simulated job: defaults but for what is given."""
    return JobConfig(job_id="benchmark", mode="bounded", bound=bound, min_workers=workers, max_workers=workers)


def tell(event: str, /, **facts: Any) -> None:
    print("event", event, *(f"{name}={value!r}" for name, value in facts.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--bound", type=int, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    job = a_job(arguments.workers, arguments.bound)
    server = RpcServer("127.0.0.1:0", lambda: CoordinationServicer(partial(Coordinator, job), job, tell))
    port = server.start()
    gc.collect()  # as a ps does
    gc.freeze()
    print("serving", port, os.getpid(), flush=True)
    threading.Event().wait()  # the benchmark ends this process


if __name__ == "__main__":
    main()
