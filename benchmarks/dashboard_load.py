"""What a dashboard costs the coordinator of a large job, and how old is what its pages show.

    python -m benchmarks.dashboard_load [--workers 256] [--rate 10] [--bound 100] [--browsers 3] [--seconds 20]
                                        [--quick] [--json]

The coordinator's service runs alone, in a process that may use one core, as the benchmark `coordinator` has it;
simulated workers of mode bounded use another.  Its share of that core is measured without anybody who looks, then with
a dashboard whose pages some connections of Bokeh's client keep open, as browsers do.  The age of a page is asked of the
dashboard's server: the time since the coordinator said what is on it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.coordinator import JOIN_S, core_s, losses
from benchmarks.processes import cpu_s, lines, processes
from psruntime.dashboard.server import KINDS
from psruntime.rpc.client.coordinator_client import CoordinatorClient

QUICK = {"seconds": 8.0}
SETTLE_S = 5.0  # after the dashboard and its browsers have begun
LOOK_S = 0.25  # between two looks at how old the pages are


@dataclass(frozen=True)
class Load:
    """rate: steps/s of each worker.  browsers: pages that are open.  seconds: of each of the two measurements."""

    workers: int
    rate: float
    bound: int
    browsers: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"dashboard: {self.workers} simulated workers of {self.rate:g} steps/s each, mode bounded with bound "
            f"{self.bound}, {self.browsers} open pages, twice {self.seconds:g} s"
        )


def measure(load: Load, say: Progress) -> dict[str, Any]:
    """Raises LateError: a process failed, or hangs."""
    cores = sorted(os.sched_getaffinity(0))
    job = ["--workers", str(load.workers), "--bound", str(load.bound)]
    with processes() as started:
        service = started.start("coordinator", "benchmarks.coordinator_service", "--core", str(cores[0]), *job)
        _, port, pid = started.line_with(service, "serving").split()
        crowd = started.start(
            "workers", "benchmarks.simulated_workers", "--core", str(cores[-1]), "--port", port, *job, "--first", "0",
            "--count", str(load.workers), "--variables", "16", "--rate", str(load.rate), "--seconds", "1e6", "--stats",
        )  # fmt: skip
        started.wait_for("all workers to step", lambda: "joined" in lines(crowd) or None, JOIN_S)
        say(f"all {load.workers} workers step")
        alone = _share(int(pid), cores[0], load.seconds)
        say(f"without a dashboard: {alone['of_a_core']:.1%} of a core")
        shown = started.start(
            "dashboard", "psruntime", "dashboard", "--coordinator", f"127.0.0.1:{port}", "--port", "0"
        )
        url = started.line_with(shown, "dashboard: ").split()[1]
        before = losses(service)
        watched, ages = _watched(load, url, lambda: _share(int(pid), cores[0], load.seconds))
        silent_s = _oldest(f"127.0.0.1:{port}")
        lost = losses(service) - before
    return {
        "workload": str(load),
        "unit": "share of a core",
        "alone": alone,
        "watched": watched,
        "page_age_s": {"median": ages[len(ages) // 2], "most": ages[-1], "looks": len(ages)},
        "oldest_member_s": silent_s,
        "leases_lost": lost,
    }


def _watched(load: Load, url: str, share: Any) -> tuple[dict[str, float], list[float]]:
    """(the coordinator's share while the pages are open, their ages in order)."""
    from concurrent.futures import ThreadPoolExecutor

    from bokeh.client import pull_session

    pages = [f"{url}{KINDS[i % len(KINDS)].slug}" for i in range(load.browsers)]
    browsers = [pull_session(url=page) for page in pages]
    time.sleep(SETTLE_S)
    ages: list[float] = []
    try:
        with ThreadPoolExecutor(1) as pool:
            measuring = pool.submit(share)
            while not measuring.done():
                look = pull_session(session_id=browsers[0].id, url=pages[0])
                ages.append(time.time() - look.document.get_model_by_name("head").tags[0])
                look.close()
                time.sleep(LOOK_S)
            return measuring.result(), sorted(ages)
    finally:
        for browser in browsers:
            browser.close()


def _share(pid: int, core: int, seconds: float) -> dict[str, float]:
    """Of the core that a process used in so many seconds, and that others used of it."""
    began_s, used_s, busy_s = time.monotonic(), cpu_s(pid), core_s(core)[0]
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    of_it = cpu_s(pid) - used_s
    return {"of_a_core": of_it / took_s, "others_on_it": max(0.0, core_s(core)[0] - busy_s - of_it) / took_s}


def _oldest(address: str) -> float:
    """How long the member that was heard last of all is silent, while somebody looks."""
    client = CoordinatorClient(address)
    try:
        status, _ = client.get_status()
        return max(member.silent_s for member in status.members)
    finally:
        client.close()


def text_of(result: dict[str, Any]) -> str:
    alone, watched, age = result["alone"], result["watched"], result["page_age_s"]
    return (
        f"{result['workload']}\n"
        f"  the coordinator's share of its core: {alone['of_a_core']:.1%} alone, {watched['of_a_core']:.1%} watched "
        f"(others on it: {alone['others_on_it']:.1%}, {watched['others_on_it']:.1%})\n"
        f"  a page is {age['median']:.2f} s old, at most {age['most']:.2f} s, in {age['looks']} looks; what a member "
        f"said is {result['oldest_member_s']:.2f} s old at most; {result['leases_lost']} leases lost"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 90 s, with {QUICK} whatever else is given")
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--rate", type=float, default=10.0, help="steps/s of each worker")
    parser.add_argument("--bound", type=int, default=100)
    parser.add_argument("--browsers", type=int, default=3, help="pages that are open")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    load = Load(arguments.workers, arguments.rate, arguments.bound, arguments.browsers, arguments.seconds)
    print_result(arguments, lambda say: measure(load, say), text_of)


if __name__ == "__main__":
    main()
