"""Updates per second of sync training, and whose gradients are in them: ours and stock SyncReplicasOptimizer's.

    python -m benchmarks.sync [--runs 3] [--rounds 300] [--variables 160] [--bytes 40000,1000000,10000000,100000000]
                             [--batch-size 32] [--quick] [--json]

One ps and two workers on this machine, the same model, data, batch sizes and optimizer (Adam); the runs alternate.
Rates are of the rounds after the first tenth.  Ours: times in the rounds log.  Stock: the time at which the first
worker had a token with the new global step.

Stock: the second worker is started when the chief has initialised the variables, so that it does not idle 30 s before
it looks again.  Rounds count from the first token that it gets.  The updates before are the chief's alone, which takes
both tokens of each; their number is printed.

Contributors of an update are told from what each worker got and pushed.  Ours: the parts in the rounds log.  Stock:
a worker computes and pushes for the global step S that stands on its token, and prints S before it does.  Exactly
two tokens with S are handed out, once the update before is complete and the accumulators are at S; a push for an
older step is dropped; and the next update needs two accepted pushes in every accumulator.  So the update after S
consists of the two pushes for S, whoever made them.  (Only the very first push of a worker has no token; the rounds
after warm-up are later.)  Were this wrong, some update would have fewer or more pushes than two: each is checked,
ours too, and the benchmark ends with an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import layer_stack
from benchmarks.command_line import Progress, numbers, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.processes import LateError, Processes, free_addresses, lines, processes, seconds_of

WORKERS = 2
WARM_UP = 0.1  # of the rounds
LEAST_ROUNDS = 20  # so that warm-up is not empty, and the rest is worth a rate
START_S = 300.0  # from the start to the first update, on a busy machine: a graph of many variables takes minutes there
SLOWEST = 1.0  # updates/s; a run that is slower hangs
MOST_BYTES = 6_000_000_000  # of the variables of all rounds of a run, if these are more than the least
QUICK = {"runs": 1, "rounds": 60, "variables": 16, "bytes": [100_000]}


@dataclass(frozen=True)
class Workload:
    """total_bytes: of all variables, about.  batch_size: of each worker.  rounds: of each run, warm-up included.

    Raises:
        ValueError: there are too few rounds or variables.
    """

    variables: int
    total_bytes: int
    batch_size: int
    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < LEAST_ROUNDS:
            raise ValueError(f"rounds must be at least {LEAST_ROUNDS}, got {self.rounds}")
        layer_stack.shape(self.variables, self.total_bytes)

    def __str__(self) -> str:
        held = layer_stack.held_bytes(self.variables, self.total_bytes)
        return (
            f"sync: {self.variables} dense variables of {held} bytes together, Adam, 1 ps, {WORKERS} workers with "
            f"batches of {self.batch_size}, {self.rounds} rounds"
        )

    @property
    def environment(self) -> dict[str, str]:
        return layer_stack.environment(self.variables, self.total_bytes)

    @property
    def deadline_s(self) -> float:
        """For all updates after the first."""
        return 10 + self.rounds / SLOWEST


@dataclass(frozen=True)
class Update:
    """global_step: after it.  time_s: when it was known to be complete.  pushers: the worker of each gradient in it."""

    global_step: int
    time_s: float
    pushers: list[int]


@dataclass(frozen=True)
class Measured:
    """rate: updates/s.  contributors: number of distinct workers -> updates that have as many.

    before: updates made before all workers took part; they are in neither.
    """

    rate: float
    contributors: Counter[int]
    before: int

    def __str__(self) -> str:
        texts = shares_text(shares(self.contributors))
        return f"{self.rate:.1f} updates/s, {texts}; {self.before} updates before all workers took part"


def measured(updates: list[Update]) -> Measured:
    """Of the updates after warm-up.

    Raises:
        SystemExit: an update does not have as many gradients as it should, so its contributors are not known.
    """
    window = updates[int(len(updates) * WARM_UP) :]
    odd = next((u for u in window if len(u.pushers) != WORKERS), None)
    if odd:
        raise SystemExit(f"an update has {len(odd.pushers)} gradients, of workers {odd.pushers}, instead of {WORKERS}")
    rate = (len(window) - 1) / (window[-1].time_s - window[0].time_s)
    return Measured(rate, Counter(len(set(u.pushers)) for u in window), updates[0].global_step - 1)


def ours(work: Workload) -> Measured:
    """Until all rounds are closed.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        log = started.folder / "rounds.jsonl"
        job = ["--mode", "sync", "--min-workers", str(WORKERS), "--train-steps", str(work.rounds)]
        ps = started.start(
            "ps", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job,
            "--rounds-log", str(log), "--linger", "0",
        )  # fmt: skip
        address = started.line_with(ps, "READY coordinator").split()[3]
        model = ["--model", layer_stack.__name__, "--batch-size", str(work.batch_size)]
        for i in range(WORKERS):
            started.start(f"worker-{i}", "psruntime.worker", "--index", str(i), "--coordinator", address, *model)
        return measured(await_updates(started, lambda: our_updates(log), work))


def our_updates(log: Path) -> list[Update]:
    """The closed rounds of a job in which nothing was lost."""
    closed = [record for record in map(json.loads, lines(log)) if record["record"] == "round"]
    if [r["global_step"] for r in closed] != list(range(1, len(closed) + 1)):
        raise SystemExit("the rounds log does not have each round once")
    return [Update(r["global_step"], seconds_of(r["time"]), [part["worker"] for part in r["parts"]]) for r in closed]


def stock(work: Workload) -> Measured:
    """Until `rounds` updates were made with all workers there.

    Raises:
        LateError: it hangs.
    """
    ps, *addresses = free_addresses(1 + WORKERS)
    with processes(work.environment) as started:
        cluster = ["--ps", ps, "--workers", ",".join(addresses), "--batch-size", str(work.batch_size)]
        command = ["benchmarks.stock_layers", "--mode", "sync", *cluster, "--role"]
        started.start("ps", *command, "ps", "--index", "0")
        logs = []
        for i in range(WORKERS):
            logs.append(started.start(f"worker-{i}", *command, "worker", "--index", str(i)))
            if i == 0:
                started.line_with(logs[0], "prepared")
        return measured(await_updates(started, lambda: stock_updates(logs), work))


def stock_updates(logs: list[Path]) -> list[Update]:
    """The updates since each worker has a token."""
    pushes = [[line.split()[1:] for line in lines(log) if line.startswith("push ")] for log in logs]
    if not all(pushes):
        return []
    pushers: dict[int, list[int]] = {}
    times_s: dict[int, float] = {}
    for worker, of_worker in enumerate(pushes):
        for token, time_s in of_worker:
            step = int(token)
            pushers.setdefault(step, []).append(worker)
            times_s[step] = min(float(time_s), times_s.get(step, float("inf")))
    first = max(int(of_worker[0][0]) for of_worker in pushes)
    newest = int(pushes[0][-1][0])  # of the log that was read first: whatever led to it stood in all of them by then
    return [Update(step + 1, times_s[step + 1], pushers[step]) for step in range(first, newest)]


def await_updates(started: Processes, read: Callable[[], list[Update]], work: Workload) -> list[Update]:
    """As many as there are to be rounds."""
    started.wait_for("the first update", lambda: read() or None, START_S)
    started.wait_for(f"{work.rounds} updates", lambda: len(read()) >= work.rounds or None, work.deadline_s)
    return read()[: work.rounds]


def measure(work: Workload, runs: int, say: Progress) -> dict[str, Any]:
    """A stock run that hangs or fails is left out, and ours beside it; how many did is told."""
    pairs: list[tuple[Measured, Measured]] = []
    for run in range(runs):
        mine = ours(work)
        say(f"run {run + 1} of {runs}: ours {mine}")
        try:
            peer = stock(work)
        except LateError as error:
            say(f"run {run + 1} of {runs}: peer failed: {error}")
            continue
        say(f"run {run + 1} of {runs}: peer {peer}")
        pairs.append((mine, peer))
    if not pairs:
        raise SystemExit("no run of the peer came to its end")
    sides = dict(zip(("ours", "peer"), zip(*pairs, strict=True), strict=True))
    rates = {name: [m.rate for m in side] for name, side in sides.items()}
    return {
        "workload": str(work),
        "peer_is": "stock TensorFlow",
        "unit": "updates/s",
        **compared(rates["ours"], rates["peer"], [mine.rate / peer.rate for mine, peer in pairs]),
        "contributors": {name: shares(sum((m.contributors for m in side), Counter())) for name, side in sides.items()},
        "updates_before_all_took_part": {name: [m.before for m in side] for name, side in sides.items()},
        "peer_failed": runs - len(pairs),
    }


def shares(contributors: Counter[int]) -> dict[str, float]:
    """Number of distinct workers -> share of the updates."""
    return {str(n): contributors[n] / contributors.total() for n in range(1, WORKERS + 1)}


def shares_text(shares: dict[str, float]) -> str:
    return ", ".join(f"{share:.1%} of {number} worker{'s' * (number != '1')}" for number, share in shares.items())


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(map(lines_of, result.get("each", [result])))


def lines_of(result: dict[str, Any]) -> str:
    failed = result["peer_failed"]
    spread = spread_of(result)
    before = result["updates_before_all_took_part"]
    texts = {
        name: f"{shares_text(shares)}; before all took part: {', '.join(map(str, before[name]))}"
        for name, shares in result["contributors"].items()
    }
    return (
        f"{result['workload']}\n"
        f"  ours:  {result['ours']:.2f} updates/s ({spread['ours']}); {texts['ours']}\n"
        f"  stock: {result['peer']:.2f} updates/s ({spread['peer']}); {texts['peer']}\n"
        f"  ratio: {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs; {failed} of stock failed"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=300, help=f"of each run, of large models fewer: {MOST_BYTES / 1e9:g} GB together"
    )
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument(
        "--bytes", type=numbers, default="40000,1000000,10000000,100000000", help="of all variables together, about"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)

    def measured(tell: Progress) -> dict[str, Any]:
        each = []
        for size in arguments.bytes:
            rounds = min(arguments.rounds, max(LEAST_ROUNDS, MOST_BYTES // size))
            work = Workload(arguments.variables, size, arguments.batch_size, rounds)
            tell(str(work))
            each.append(measure(work, arguments.runs, tell))
        return each[0] if len(each) == 1 else {"workload": "sync training", "each": each}

    print_result(arguments, measured, text_of)


if __name__ == "__main__":
    main()
