"""Steps per second of async training, of all workers together: ours and TensorFlow's.

    python -m benchmarks.async_steps [--runs 3] [--seconds 10] [--variables 160] [--bytes 40000,1000000]
                                     [--ps 1,2] [--workers 1,2] [--pipeline 1,2] [--plan packed]
                                     [--local-steps 1] [--peer stock|strategy] [--script] [--quick] [--json]

The same model, data, batch size and optimizer (Adam) on this machine, for every size with every number of ps and of
workers; the runs alternate, ours once for each pipeline.  The peer is stock TensorFlow's between-graph training, or
ParameterServerStrategy, whose chief is one process more.  Steps count from the moment at which every worker has made
one, for so many seconds.  With --local-steps mini-batches count, of which a step of ours takes so many, while
stock updates after each.  With --script ours is the script of the peer, whose session alone is another.

With each comes what a step of one worker moved: bytes in both directions, as the kernel counts them for its sockets,
and tensors between it and the ps, as TensorFlow cut the graph of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from benchmarks import strategy_layers
from benchmarks.command_line import Progress, numbers, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import Work, Workload, our_job, script_job, stock_job, strategy_job
from benchmarks.measured import Measured, mean_of, measured, moved_text
from benchmarks.processes import processes

QUICK = {"runs": 1, "seconds": 4.0, "bytes": [1_000_000], "ps": [1], "workers": [1], "pipeline": [1]}


def ours(work: Work, pipeline: int, seconds: float) -> Measured:
    """With so many steps under way.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        start_worker = our_job(started, work, "--min-workers", str(work.workers), "--pipeline", str(pipeline))
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def script(work: Work, pipeline: int, seconds: float) -> Measured:  # noqa: ARG001
    """Ours with the script of `stock`, which has one step under way.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        start_worker = script_job(started, work)
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def stock(work: Work, seconds: float, mode: str = "async") -> Measured:
    """Stock TensorFlow, between graphs.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        start_worker = stock_job(started, work, mode=mode)
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def strategy(work: Work, seconds: float, model: str = strategy_layers.__name__) -> Measured:
    """ParameterServerStrategy, of a model as strategy.py has it; what its steps move is not known.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        return measured(started, [strategy_job(started, work, model)], seconds)


PEERS = {"stock": stock, "strategy": strategy}


def measure(
    workloads: Sequence[Work],
    pipelines: list[int],
    peer: str,
    runs: int,
    seconds: float,
    say: Progress,
    local_steps: int = 1,
    run_ours: Callable[[Work, int, float], Measured] = ours,
) -> dict[str, Any]:
    """One result for each workload and pipeline, under "each".  local_steps: mini-batches of a step of ours."""
    each = []
    for work in workloads:
        mine: list[list[Measured]] = [[] for _ in pipelines]
        theirs: list[Measured] = []
        for run in range(runs):
            for number, pipeline in enumerate(pipelines):
                mine[number].append(run_ours(work, pipeline, seconds))
                say(f"{work}: run {run + 1} of {runs}: ours, pipeline {pipeline}: {mine[number][-1]}")
            theirs.append(PEERS[peer](work, seconds))
            say(f"{work}: run {run + 1} of {runs}: {peer}: {theirs[-1]}")
        each += [
            {
                "workload": f"{work}, pipeline {pipeline}" + of_several(local_steps),
                "peer_is": peer,
                **result_of(mine[number], theirs, local_steps),
            }
            for number, pipeline in enumerate(pipelines)
        ]
    return each[0] if len(each) == 1 else {"workload": "async training", "each": each}


def of_several(local_steps: int) -> str:
    return f", {local_steps} mini-batches a step of ours" if local_steps > 1 else ""


def result_of(mine: Sequence[Measured], theirs: Sequence[Measured], local_steps: int = 1) -> dict[str, Any]:
    """The figures of runs that alternated."""
    sides = {"ours": mine, "peer": theirs}
    ours, peer = [run.rate * local_steps for run in mine], [run.rate for run in theirs]
    return {
        "unit": "mini-batches/s" if local_steps > 1 else "steps/s",
        **compared(ours, peer, [a / b for a, b in zip(ours, peer, strict=True)]),
        "step_bytes": {name: mean_of([run.step_bytes for run in side]) for name, side in sides.items()},
        "step_tensors": {name: mean_of([run.step_tensors for run in side]) for name, side in sides.items()},
    }


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(map(line_of, result.get("each", [result])))


def line_of(result: dict[str, Any]) -> str:
    spread = spread_of(result)
    moved = {name: moved_text(result["step_bytes"][name], result["step_tensors"][name]) for name in ("ours", "peer")}
    return (
        f"{result['workload']}: ours {result['ours']:.2f} {result['unit']} ({spread['ours']}){moved['ours']}; "
        f"{result['peer_is']} {result['peer']:.2f} ({spread['peer']}){moved['peer']}; "
        f"ratio {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs"
    )


def main(peer: str = "stock") -> None:
    """peer: without --peer."""
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument(
        "--bytes", type=numbers, default="40000,1000000,10000000,100000000", help="of all variables together"
    )
    parser.add_argument("--ps", type=numbers, default="1,2")
    parser.add_argument("--workers", type=numbers, default="1,2")
    parser.add_argument("--pipeline", type=numbers, default="1,2", help="of ours")
    parser.add_argument("--local-steps", type=int, default=1, help="of ours")
    parser.add_argument("--script", action="store_true", help="ours runs the peer's script")
    parser.add_argument("--plan", default="packed", help="of ours")
    parser.add_argument("--peer", choices=sorted(PEERS), default=peer)
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    settings = ("--plan", arguments.plan, "--local-steps", str(arguments.local_steps))
    grid = product(arguments.bytes, arguments.ps, arguments.workers)
    workloads = [Workload(arguments.variables, size, ps, workers, settings=settings) for size, ps, workers in grid]
    print_result(
        arguments,
        lambda say: measure(
            workloads,
            arguments.pipeline,
            arguments.peer,
            arguments.runs,
            arguments.seconds,
            say,
            arguments.local_steps,
            script if arguments.script else ours,
        ),
        text_of,
    )


if __name__ == "__main__":
    main()
