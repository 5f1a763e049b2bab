"""How the modes take slow workers: steps per second of all workers together, ours in one mode and ours in another.

    python -m benchmarks.stragglers [--runs 3] [--workloads alike,slow,pauses,often,backup,throughput] [--workers 4]
                                    [--seconds 20] [--step-s 0.05] [--variables 16] [--bytes 200000] [--quick] [--json]

One ps.  The accelerator is simulated: each step waits for a time without using the CPU (straggling.py), which is that
of its worker or hangs on chance; the n-th step of a worker waits as long in both modes.  The runs alternate.

    alike   every worker is as fast as the others; bounded, far from its bound, beside async: what the clocks cost
    slow    the last worker always takes 5 times as long; async beside sync
    pauses  each worker now and then (chance 0.05) takes 0.5 s longer, ten steps; bounded with bound 4 beside sync
    often   the same with pauses as long as the bound, four steps, and more of them (chance 0.2)
    backup  the last worker always takes 3 times as long; sync with a backup worker beside sync, in rounds a second, as
            the first worker takes part in them
    throughput  the last worker takes 3 times as long for each example, and a batch has 8 times as many; sync with
            shares by speed beside sync with fixed batches, in rounds a second, once the shares have settled

A step is a gradient of one worker, whatever the mode, and of a batch as large: in mode sync a round counts as many
steps as workers contributed to it, so it is the examples per second that are compared.  "Ideal" is the ratio if nothing
took time but the waits (ideal.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import per_example, straggling
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.ideal import steps_per_s
from benchmarks.jobs import Workload, our_job
from benchmarks.measured import await_training, measured_now
from benchmarks.processes import processes

BATCH_SIZE = 4  # small: what a step computes is what the wait stands for
SLOW_FACTOR, BACKUP_FACTOR = 5.0, 3.0
SETTLE_S = 15.0  # until shares are those of the speeds: two looks of five rounds
QUICK = {"runs": 1, "workloads": "slow", "seconds": 3.0}


@dataclass(frozen=True)
class Mode:
    name: str
    bound: int | None = None
    backup_workers: int = 0
    shares: bool = False

    def __str__(self) -> str:
        more = f" with {self.backup_workers} backup worker" if self.backup_workers else ""
        more += " with shares by speed" if self.shares else ""
        return (self.name if self.bound is None else f"{self.name} {self.bound}") + more

    @property
    def lead(self) -> int | None:
        """How many steps a worker may be ahead of the slowest."""
        return 0 if self.name == "sync" else self.bound

    @property
    def settings(self) -> tuple[str, ...]:
        backups = ("--backup-workers", str(self.backup_workers)) if self.backup_workers else ()
        shares = ("--batch-policy", "throughput") if self.shares else ()
        return ("--mode", self.name, *(() if self.bound is None else ("--bound", str(self.bound))), *backups, *shares)

    def ideal(self, waits_s: Any) -> float:
        """Steps per second of each of these workers whom the others wait for, if nothing took time but their waits."""
        if self.shares:
            return float(np.mean(1 / waits_s.mean(axis=1)))
        awaited = sorted(waits_s, key=sum)[: len(waits_s) - self.backup_workers]
        return steps_per_s(np.stack(awaited), self.lead) / len(awaited)


@dataclass(frozen=True)
class Case:
    """A mode beside another one.

    slow: how many times longer the last worker always takes.  chance: of a pause of pause_s, in each step.
    rounds: whether the rounds are counted, by the steps of the first worker, instead of the steps of all.
    per_example: whether a step takes as long as its examples, of which a batch has more.
    """

    text: str
    mine: Mode
    peer: Mode
    slow: float = 1.0
    chance: float = 0.0
    pause_s: float = 0.0
    rounds: bool = False
    per_example: bool = False

    def work(self, work: Workload) -> Workload:
        """The work of this case."""
        if not self.per_example:
            return work
        return replace(work, model=per_example.__name__, batch_size=per_example.BATCH_SIZE)

    def environment(self, workers: int, step_s: float) -> dict[str, str]:
        return {
            straggling.STEP_S: str(step_s * (per_example.BATCH_SIZE / BATCH_SIZE if self.per_example else 1)),
            straggling.SLOW_WORKER: str(workers - 1),
            straggling.SLOW_FACTOR: str(self.slow),
            straggling.PAUSE_CHANCE: str(self.chance),
            straggling.PAUSE_S: str(self.pause_s),
        }


ASYNC, SYNC, BOUNDED_4 = Mode("async"), Mode("sync"), Mode("bounded", 4)
CASES = {
    "alike": Case("all workers alike", Mode("bounded", 1000), ASYNC),
    "slow": Case(f"one worker always {SLOW_FACTOR:g} times slower", ASYNC, SYNC, slow=SLOW_FACTOR),
    "pauses": Case("each step 0.5 s longer with a chance of 0.05", BOUNDED_4, SYNC, chance=0.05, pause_s=0.5),
    "often": Case("each step 0.2 s longer with a chance of 0.2", BOUNDED_4, SYNC, chance=0.2, pause_s=0.2),
    "backup": Case(
        f"one worker always {BACKUP_FACTOR:g} times slower",
        Mode("sync", backup_workers=1),
        SYNC,
        slow=BACKUP_FACTOR,
        rounds=True,
    ),
    "throughput": Case(
        f"one worker {BACKUP_FACTOR:g} times slower for each example, batches of {per_example.BATCH_SIZE}",
        Mode("sync", shares=True),
        SYNC,
        slow=BACKUP_FACTOR,
        rounds=True,
        per_example=True,
    ),
}


def rate_of(work: Workload, case: Case, mode: Mode, step_s: float, seconds: float) -> float:
    """Steps per second of all workers, or rounds.

    Raises:
        LateError: a process failed, or hangs.
    """
    work = case.work(work)
    with processes({**work.environment, **case.environment(work.workers, step_s)}) as started:
        start_worker = our_job(started, work, "--min-workers", str(work.workers), *mode.settings)
        logs = [start_worker(index) for index in range(work.workers)]
        await_training(started, logs)
        if case.per_example:
            time.sleep(SETTLE_S)
        return measured_now(started, logs[:1] if case.rounds else logs, seconds).rate


def measure(
    work: Workload, cases: list[Case], step_s: float, runs: int, seconds: float, say: Progress
) -> dict[str, Any]:
    """One result for each case, under "each"."""
    return {
        "workload": f"simulated accelerators ({step_s:g} s a step), {work.workers} workers, 1 ps, batches of "
        f"{work.batch_size}, {work.variables} dense variables of about {work.total_bytes} bytes together",
        "each": [result_of(work, case, step_s, runs, seconds, say) for case in cases],
    }


def result_of(work: Workload, case: Case, step_s: float, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    mine: list[float] = []
    peer: list[float] = []
    for run in range(runs):
        for mode, rates in ((case.mine, mine), (case.peer, peer)):
            rates.append(rate_of(work, case, mode, step_s, seconds))
            say(f"{case.text}: run {run + 1} of {runs}: {mode} {rates[-1]:.1f} {unit_of(case)}")
    ratios = [a / b for a, b in zip(mine, peer, strict=True)]
    environment = case.environment(work.workers, step_s)
    waits_s = np.stack([straggling.waits_of(worker, environment) for worker in range(work.workers)])
    told = {
        "workload": case.text,
        "ours_is": str(case.mine),
        "peer_is": str(case.peer),
        "unit": unit_of(case),
        "ideal": case.mine.ideal(waits_s) / case.peer.ideal(waits_s),
    }
    if case.per_example:
        told["of_ideal"] = sorted(rate / case.mine.ideal(waits_s) for rate in mine)
    return {**told, **compared(mine, peer, ratios)}


def unit_of(case: Case) -> str:
    return "rounds/s" if case.rounds else "steps/s of all workers"


def text_of(result: dict[str, Any]) -> str:
    return "\n".join([result["workload"], *map(line_of, result["each"])])


def line_of(each: dict[str, Any]) -> str:
    spread = spread_of(each)
    of_ideal = each.get("of_ideal")
    reached = f", {of_ideal[0]:.0%} to {of_ideal[-1]:.0%} of the sum of the speeds" if of_ideal else ""
    return (
        f"  {each['workload']}: {each['ours_is']} {each['ours']:.1f} {each['unit']} ({spread['ours']}); "
        f"{each['peer_is']} {each['peer']:.1f} ({spread['peer']}); "
        f"ratio {each['ratio']:.2f} ({spread['ratio']}), ideal {each['ideal']:.2f}, {each['runs']} runs{reached}"
    )


def cases_of(text: str) -> list[Case]:
    """Those named.

    Raises:
        ValueError: there is none of that name.
    """
    names = text.split(",")
    if unknown := set(names) - set(CASES):
        raise ValueError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return [CASES[name] for name in names]


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(CASES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured in each run")
    parser.add_argument("--step-s", type=float, default=0.05, help="that a step waits, as on an accelerator")
    parser.add_argument("--variables", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=200_000, help="of all variables together, about")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    work = Workload(given.variables, given.bytes, 1, given.workers, straggling.__name__, BATCH_SIZE)

    def result(say: Progress) -> dict[str, Any]:
        return measure(work, cases_of(given.workloads), given.step_s, given.runs, given.seconds, say)

    print_result(given, result, text_of)


if __name__ == "__main__":
    main()
