"""How fast the coordinator answers the workers of a large job, on one core.

    python -m benchmarks.coordinator [--workers 1000] [--rate 10] [--bound 100] [--seconds 30] [--quick] [--json]

The service runs alone, in a process that may use one core; simulated workers use another.  They are in mode bounded and
step at the same pace, so far from the bound.  Time counts after all have joined.  There is no peer: stock TensorFlow
has no such service.  Others on the coordinator's core are told, since on a shared machine they make answers late.

Answer times are what the callers see, their own delay included.  That of a heartbeat, which is held until there is
news, is by how much later than asked for it was answered.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.processes import lines, processes

JOIN_S = 400.0
QUICK = {"seconds": 10.0}
LOST = ("event member_lost", "event rejoining")


@dataclass(frozen=True)
class Workload:
    """rate: steps/s of each worker.  seconds: that are measured."""

    workers: int
    rate: float
    bound: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"coordinator: {self.workers} simulated workers of {self.rate:g} steps/s each, mode bounded with bound "
            f"{self.bound}, {self.seconds:g} s"
        )


def measure(work: Workload, say: Progress) -> dict[str, Any]:
    """Raises LateError: a process failed, or hangs."""
    cores = sorted(os.sched_getaffinity(0))
    job = ["--workers", str(work.workers), "--bound", str(work.bound)]
    with processes() as started:
        service = started.start("coordinator", "benchmarks.coordinator_service", "--core", str(cores[0]), *job)
        _, port, pid = started.line_with(service, "serving").split()
        load = started.start(
            "workers", "benchmarks.simulated_workers", "--core", str(cores[-1]), "--port", port, *job,
            "--rate", str(work.rate), "--seconds", str(work.seconds),
        )  # fmt: skip
        started.wait_for("all workers to step", lambda: "joined" in lines(load) or None, JOIN_S)
        began_s, busy_s, lost = cpu_s(int(pid)), core_s(cores[0]), losses(service)
        say(f"all {work.workers} workers step: {began_s:.1f} s of the coordinator's CPU until then, {lost} leases lost")
        measured = json.loads(started.line_with(load, "measured ").removeprefix("measured "))
        used_s, busy_s, lost = cpu_s(int(pid)) - began_s, core_s(cores[0]) - busy_s, losses(service) - lost
    answers = {kind: summary(times) for kind, times in sorted(measured.pop("answers_ms").items())}
    return {
        "workload": str(work),
        "unit": "ms",
        "answers": answers,
        "p99_ms": max(each["p99"] for each in answers.values()),
        "calls_per_s": sum(each["calls"] for each in answers.values()) / measured["seconds"],
        "steps_per_s": measured["steps"] / measured["seconds"],
        "coordinator_cores": used_s / measured["seconds"],
        "others_on_its_core": max(0.0, busy_s - used_s) / measured["seconds"],
        "load_cores": measured["load_cores"],
        "leases_lost": lost,
        "failed_calls": measured["failed"],
        "max_lead_steps": measured["max_lead"],
    }


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return {"calls": len(ordered), "p50": p50, "p99": p99, "max": ordered[-1]}


def losses(log: Path) -> int:
    return sum(line.startswith(LOST) for line in lines(log))


def cpu_s(pid: int) -> float:
    """That a process has used so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def core_s(core: int) -> float:
    """That a core was busy so far, with whatever."""
    line = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith(f"cpu{core} "))
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def text_of(result: dict[str, Any]) -> str:
    kinds = "".join(
        f"\n  {kind}: p50 {each['p50']:.1f} ms, p99 {each['p99']:.1f}, max {each['max']:.1f}, {each['calls']} calls"
        for kind, each in result["answers"].items()
    )
    return (
        f"{result['workload']}{kinds}\n  {result['calls_per_s']:.0f} calls/s for {result['steps_per_s']:.0f} steps/s; "
        f"{result['coordinator_cores']:.2f} cores for the coordinator, {result['load_cores']:.2f} for the workers, "
        f"{result['others_on_its_core']:.2f} for others on the coordinator's core; "
        f"{result['leases_lost']} leases lost, failed calls: {result['failed_calls'] or 'none'}; "
        f"largest lead {result['max_lead_steps']} steps"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="steps/s of each worker")
    parser.add_argument("--bound", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0, help="that are measured")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    work = Workload(arguments.workers, arguments.rate, arguments.bound, arguments.seconds)
    print_result(arguments, lambda say: measure(work, say), text_of)


if __name__ == "__main__":
    main()
