"""Steps per second with one large dense variable: ours and TensorFlow's, and both beside plain sockets.

    python -m benchmarks.one_variable [--runs 3] [--seconds 10] [--bytes 100000000] [--ps 2] [--pipeline 1]
                                      [--quick] [--json]

Mode async, one worker.  Stock TensorFlow's between-graph training has the variable whole on one ps, as
replica_device_setter puts it there; ours is cut into slices over all ps.  The model computes one multiplication of each
entry (exchange_model.py), and plain gradient descent applies it with one more: an optimizer with slots would read and
write more memory than a step moves, on the ps, in both systems alike.

Ours, the peer and plain sockets (loopback.py), which move as many bytes in each direction, take turns.  What a step
moves counts as the variable's bytes twice; the share is of what the sockets moved in the same turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.async_steps import line_of, ours, result_of, stock
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.exchange_model import ENTRY_BYTES, Exchange
from benchmarks.measured import Measured
from benchmarks.processes import processes

COLUMNS = 1000
QUICK = {"runs": 1, "seconds": 4.0}


def sockets(size_bytes: int, seconds: float) -> float:
    """Bytes/s of both directions together.

    Raises:
        LateError: it failed, or hangs.
    """
    with processes() as started:
        log = started.start("loopback", "benchmarks.loopback", "--bytes", str(size_bytes), "--seconds", str(seconds))
        return float(started.line_with(log, "moved ").split()[1])


def measure(work: Exchange, pipeline: int, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    sides: dict[str, list[Measured]] = {"ours": [], "peer": []}
    raw: list[float] = []
    for run in range(runs):
        sides["ours"].append(ours(work, pipeline, seconds))
        sides["peer"].append(stock(work, seconds))
        raw.append(sockets(work.total_bytes, seconds))
        mine, peer = (side[-1] for side in sides.values())
        say(f"run {run + 1} of {runs}: ours {mine}; stock {peer}; sockets {raw[-1] / 1e6:.0f} MB/s")
    moved = {name: [2 * work.total_bytes * run.rate for run in side] for name, side in sides.items()}
    return {
        "workload": f"{work}, pipeline {pipeline}",
        "peer_is": "stock",
        **result_of(sides["ours"], sides["peer"]),
        "sockets": figures(raw),
        "moved": {name: figures(rates) for name, rates in moved.items()},
        "share": {name: figures([a / b for a, b in zip(rates, raw, strict=True)]) for name, rates in moved.items()},
    }


def figures(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "largest": max(values)}


def text_of(result: dict[str, Any]) -> str:
    names = {"ours": "ours", "peer": "stock"}
    moved = ", ".join(
        f"{text} {mb_text(result['moved'][name])}, {share_text(result['share'][name])} of the sockets"
        for name, text in names.items()
    )
    return f"{line_of(result)}\n  pull and push: {moved}, which moved {mb_text(result['sockets'])}"


def mb_text(rates: dict[str, float]) -> str:
    median, least, largest = (rate / 1e6 for rate in rates.values())
    return f"{median:.0f} MB/s ({least:.0f} to {largest:.0f})"


def share_text(shares: dict[str, float]) -> str:
    median, least, largest = shares.values()
    return f"{median:.0%} ({least:.0%} to {largest:.0%})"


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--bytes", type=int, default=100_000_000, help="of the variable, about")
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=1, help="of ours")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    rows = max(1, round(arguments.bytes / (COLUMNS * ENTRY_BYTES)))
    work = Exchange("one variable", [(rows, COLUMNS)], "GradientDescentOptimizer", arguments.ps)
    print_result(
        arguments,
        lambda say: measure(work, arguments.pipeline, arguments.runs, arguments.seconds, say),
        text_of,
    )


if __name__ == "__main__":
    main()
