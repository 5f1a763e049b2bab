"""How fast the coordinator answers the workers of a large job, on one core.

    python -m benchmarks.coordinator [--workers 1000] [--rate 10] [--bound 100] [--seconds 30] [--quick] [--json]

The service runs alone, in a process that may use one core; simulated workers use another.  They are in mode bounded and
step at the same pace, so far from the bound.  Time counts after all have joined.  There is no peer: stock TensorFlow
has no such service.  Others on the coordinator's core are told, since on a shared machine they make answers late.

Nearly all workers are in one process, which is busy with them; a few are in another one, which is not, and their answer
times are those that count.  That of a heartbeat, which is held until there is news, is by how much later than asked for
it was answered.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.processes import cpu_s, lines, processes

JOIN_S = 400.0
APART = 20  # workers in the process whose answer times count
QUICK = {"seconds": 10.0}
LOST = ("event member_lost", "event rejoining")


@dataclass(frozen=True)
class Workload:
    """rate: steps/s of each worker.  seconds: that are measured.  variables: of the model that each joins with."""

    workers: int
    rate: float
    bound: int
    seconds: float
    variables: int

    def __str__(self) -> str:
        return (
            f"coordinator: {self.workers} simulated workers of {self.rate:g} steps/s each, mode bounded with bound "
            f"{self.bound}, {self.variables} variables, {self.seconds:g} s"
        )


def measure(work: Workload, say: Progress) -> dict[str, Any]:
    """Raises LateError: a process failed, or hangs."""
    cores = sorted(os.sched_getaffinity(0))
    job = ["--workers", str(work.workers), "--bound", str(work.bound)]
    with processes() as started:
        service = started.start("coordinator", "benchmarks.coordinator_service", "--core", str(cores[0]), *job)
        _, port, pid = started.line_with(service, "serving").split()
        crowd_size = work.workers - APART

        def workers(name: str, first: int, count: int) -> Path:
            return started.start(
                name, "benchmarks.simulated_workers", "--core", str(cores[-1]), "--port", port, *job,
                "--first", str(first), "--count", str(count), "--variables", str(work.variables),
                "--rate", str(work.rate), "--seconds", str(work.seconds),
            )  # fmt: skip

        crowd, apart = workers("crowd", 0, crowd_size), workers("apart", crowd_size, APART)
        for load in (crowd, apart):
            started.wait_for("all workers to step", lambda load=load: "joined" in lines(load) or None, JOIN_S)  # type: ignore[misc]
        began_s, (busy_s, stolen_s), lost = cpu_s(int(pid)), core_s(cores[0]), losses(service)
        say(f"all {work.workers} workers step: {began_s:.1f} s of the coordinator's CPU until then, {lost} leases lost")
        found = [json.loads(started.line_with(load, "measured ").removeprefix("measured ")) for load in (crowd, apart)]
        used_s, lost = cpu_s(int(pid)) - began_s, losses(service) - lost
        busy_s, stolen_s = (now - then for now, then in zip(core_s(cores[0]), (busy_s, stolen_s), strict=True))
    seconds = found[0]["seconds"]
    answers, of_the_crowd = (
        {kind: summary(times) for kind, times in sorted(each["answers_ms"].items())} for each in reversed(found)
    )
    return {
        "workload": str(work),
        "unit": "ms",
        "answers": answers,
        "answers_of_the_crowd": of_the_crowd,
        "lateness": {"apart": summary(found[1]["late_ms"]), "crowd": summary(found[0]["late_ms"])},
        "p99_ms": max(each["p99"] for each in answers.values()),
        "calls_per_s": sum(each["calls"] for part in (answers, of_the_crowd) for each in part.values()) / seconds,
        "steps_per_s": sum(each["steps"] for each in found) / seconds,
        "coordinator_cores": used_s / seconds,
        "others_on_its_core": max(0.0, busy_s - used_s) / seconds,
        "stolen_from_its_core": stolen_s / seconds,
        "load_cores": sum(each["load_cores"] for each in found),
        "leases_lost": lost,
        "failed_calls": dict(sum((Counter(each["failed"]) for each in found), Counter())),
        "max_lead_steps": max(each["max_lead"] for each in found),
    }


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return {"calls": len(ordered), "p50": p50, "p99": p99, "max": ordered[-1]}


def losses(log: Path) -> int:
    return sum(line.startswith(LOST) for line in lines(log))


def core_s(core: int) -> tuple[float, float]:
    """That a core was busy so far, with whatever, and that other machines on the same host had it."""
    line = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith(f"cpu{core} "))
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in line.split()[1:9]
    )
    return user + nice + system + irq + softirq, steal


def text_of(result: dict[str, Any]) -> str:
    parts = {"": result["answers"], " of the crowd": result["answers_of_the_crowd"]}
    kinds = "".join(
        f"\n  {kind}{whose}: p50 {a['p50']:.1f} ms, p99 {a['p99']:.1f}, max {a['max']:.1f}, {a['calls']} calls"
        for whose, answers in parts.items()
        for kind, a in answers.items()
    )
    late = ", ".join(f"{name} {each['p99']:.1f} ms" for name, each in result["lateness"].items())
    return (
        f"{result['workload']}{kinds}\n  {result['calls_per_s']:.0f} calls/s for {result['steps_per_s']:.0f} steps/s; "
        f"{result['coordinator_cores']:.2f} cores for the coordinator, {result['load_cores']:.2f} for the workers, "
        f"{result['others_on_its_core']:.2f} for others on the coordinator's core, "
        f"{result['stolen_from_its_core']:.2f} taken from it by other machines of the host; "
        f"{result['leases_lost']} leases lost, failed calls: {result['failed_calls'] or 'none'}; "
        f"largest lead {result['max_lead_steps']} steps; the callers' processes were late themselves, p99: {late}"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="steps/s of each worker")
    parser.add_argument("--bound", type=int, default=100)
    parser.add_argument("--variables", type=int, default=160, help="of the model that each worker joins with")
    parser.add_argument("--seconds", type=float, default=30.0, help="that are measured")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    rest = (arguments.bound, arguments.seconds, arguments.variables)
    work = Workload(arguments.workers, arguments.rate, *rest)
    print_result(arguments, lambda say: measure(work, say), text_of)


if __name__ == "__main__":
    main()
