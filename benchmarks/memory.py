"""What a ps and a worker hold in memory, for each byte of the model's variables: ours and stock TensorFlow's.

    python -m benchmarks.memory [--runs 1] [--modes async,bounded,sync] [--optimizers SGD,Adam] [--ps 1,2]
                                [--with nothing,replicas,checkpoint] [--variables 40] [--bytes 200000000,600000000]
                                [--workers 1] [--steps 30] [--quick] [--json]

Every case is measured with a model of each of the two sizes.  What TensorFlow needs by itself is the same in both, so
the difference of the memory over the difference of the sizes is what a byte of the model costs: a multiple of 1.  Of
the ps it is of all together, so over the share of each; of the workers it is the mean.  The model computes and feeds
next to nothing (large_model.py), so that what is left is variables, gradients, and copies of them.  The graph grows
with the buckets, so both sizes have to make as many.

peak    the most that is resident in so many steps, as the kernel knows it
median  of what is resident in these steps, looked at all the time
rest    what is resident a moment after them, when nothing is under way: also what malloc keeps
due     what has to be there: on a ps masters and slots, in mode sync the sum of the round, the copies of replicas, the
        copy of a checkpoint; on a worker the pulled variables, their gradients, and in mode sync those kept

The peer is stock TensorFlow's between-graph training in mode async, with the same ps, workers and optimizer, and with
neither replicas nor checkpoint.  "with": replicas are made every 5 steps, checkpoints are written every 10.
"""

from __future__ import annotations

from itertools import product
from statistics import median
from typing import Any

from benchmarks.command_line import Progress, numbers, parser_of, print_result, words
from benchmarks.figures import compared, spread_of
from benchmarks.memory_cases import EXTRAS, FIGURES, MODES, ROLES, SLOTS, Case, Figures, multiples

QUICK = {
    "runs": 1, "modes": ["async"], "optimizers": ["Adam"], "ps": [1], "extras": ["nothing"], "variables": [8],
    "bytes": [20_000_000, 100_000_000], "workers": 1, "steps": 15,
}  # fmt: skip


def measure(
    cases: list[Case], sizes: tuple[int, int], workers: int, runs: int, steps: int, say: Progress
) -> dict[str, Any]:
    """One result for each case and role, under "each"."""
    found: dict[Case, list[dict[str, Figures]]] = {}
    for case in dict.fromkeys([*(case.peer for case in cases), *cases]):
        found[case] = [multiples(case, sizes, workers, steps) for _ in range(runs)]
        for role in ROLES:
            say(f"{case}: {role} " + "; ".join(text_of_figures(run[role]) for run in found[case]))
    each = [result_of(case, role, found[case], found[case.peer]) for role in ROLES for case in cases]
    text = " and ".join(f"{size / 1e6:g}" for size in sizes)
    return {"workload": f"memory: dense variables of {text} MB together, workers: {workers}", "each": each}


def text_of_figures(figures: Figures) -> str:
    return ", ".join(f"{name} {figures[name]:.2f}" for name in FIGURES)


def result_of(case: Case, role: str, mine: list[dict[str, Figures]], peer: list[dict[str, Figures]]) -> dict[str, Any]:
    """ours, peer: the peaks."""
    ours, theirs = ([run[role]["peak"] for run in side] for side in (mine, peer))
    figures = {
        name: {of: median(run[role][of] for run in side) for of in FIGURES}
        for name, side in (("ours", mine), ("peer", peer))
    }
    return {
        "workload": str(case),
        "role": role,
        "peer_is": "stock, async",
        "unit": f"peak memory of {'all ps' if role == 'ps' else 'a worker'}, in multiples of the variables",
        "due": case.due(role),
        **compared(ours, theirs, [b / a for a, b in zip(ours, theirs, strict=True)]),
        "figures": figures,
    }


def text_of(result: dict[str, Any]) -> str:
    return "\n".join([result["workload"], *map(line_of, result["each"])])


def line_of(each: dict[str, Any]) -> str:
    spread = spread_of(each)
    return (
        f"  {each['role']}: {each['workload']}: due {each['due']:.0f}; ours {text_of_figures(each['figures']['ours'])} "
        f"({spread['ours']}); {each['peer_is']}: {text_of_figures(each['figures']['peer'])} ({spread['peer']}); "
        f"ratio {each['ratio']:.2f}, {each['runs']} runs"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--modes", type=words(MODES), default=",".join(MODES))
    parser.add_argument("--optimizers", type=words(SLOTS), default=",".join(SLOTS))
    parser.add_argument("--ps", type=numbers, default="1,2")
    parser.add_argument("--with", dest="extras", type=words(EXTRAS), default=",".join(EXTRAS))
    parser.add_argument("--variables", type=numbers, default="40")
    parser.add_argument("--bytes", type=numbers, default="200000000,600000000", help="the two sizes, of all variables")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30, help="in which the memory is looked at")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    if len(given.bytes) != 2 or given.bytes[0] >= given.bytes[1]:
        parser.error("--bytes takes two sizes, the smaller one first")
    grid = product(given.modes, given.optimizers, given.ps, given.extras, given.variables)
    cases = [Case(*each) for each in grid]
    cases = [case for case in cases if case.ps > 1 or case.extra != "replicas"]  # they are on the next ps
    sizes = (given.bytes[0], given.bytes[1])
    for case in cases:
        fewer, more = (case.buckets(size) for size in sizes)
        if fewer != more:
            parser.error(f"{case}: {fewer} buckets with {sizes[0]} bytes and {more} with {sizes[1]}, so other graphs")
    print_result(given, lambda say: measure(cases, sizes, given.workers, given.runs, given.steps, say), text_of)


if __name__ == "__main__":
    main()
