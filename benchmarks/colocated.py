"""Examples per second of sync training without machines for the ps: ours and MultiWorkerMirroredStrategy.

    python -m benchmarks.colocated [--models mobilenet,small-layers,layers] [--batch-size 16] [--runs 3] [--seconds 20]
                                   [--quick] [--json]

Two workers on this machine, the same model, data, batch sizes and optimizer (Adam); the runs alternate.  Ours has a ps
beside each worker (`psruntime task --colocate-ps`); the peer sums its gradients by TensorFlow's collectives.

    mobilenet     MobileNetV2 on images of 96 x 96, 158 variables of 9 MB together
    small-layers  160 dense variables of 40 KB together, so that a step is mostly messages
    layers        160 dense variables of 1 MB together

Then one worker of each is killed, which shows what becomes of the other in so many seconds: whether it makes steps when
the one that was killed has been started again by the same command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import layer_stack, mobilenet, strategy_layers
from benchmarks.command_line import Progress, parser_of, print_result, words
from benchmarks.figures import compared, spread_of
from benchmarks.measured import Measured, await_training, measured
from benchmarks.processes import LateError, Processes, free_addresses, processes
from benchmarks.step_times import step_times

WORKERS = 2
KILLED_S = 60.0  # for a step after a worker was killed and started again
QUICK = {"runs": 1, "seconds": 4.0, "models": ["layers"], "batch_size": 8}


@dataclass(frozen=True)
class Model:
    """ours, peers: modules.  environment: of the processes, beside ours."""

    ours: str
    peers: str
    environment: dict[str, str]


MODELS = {
    "mobilenet": Model(mobilenet.__name__, mobilenet.__name__, {}),
    "small-layers": Model(layer_stack.__name__, strategy_layers.__name__, layer_stack.environment(160, 40_000)),
    "layers": Model(layer_stack.__name__, strategy_layers.__name__, layer_stack.environment(160, 1_000_000)),
}


class Job:
    """Two workers of one side, each of which can be killed and started again by its command."""

    def __init__(self, started: Processes, commands: Sequence[Sequence[str]]) -> None:
        self._started, self._commands = started, commands
        self.logs = [self.start(index) for index in range(WORKERS)]

    def start(self, index: int) -> Path:
        return self._started.start(f"worker-{index}", *self._commands[index])

    def survives_a_kill(self) -> bool:
        """Whether worker 0 makes a step after worker 1 was killed and started again."""
        await_training(self._started, self.logs)
        self._started.kill("worker-1")
        killed_s = time.time()
        self.start(1)
        with suppress(LateError):
            self._started.wait_for("steps of both", lambda: self._both_since(killed_s), KILLED_S)
            return True
        return False

    def _both_since(self, since_s: float) -> bool | None:
        return all(any(time_s > since_s for _, time_s in step_times(log)) for log in self.logs) or None


def ours(started: Processes, model: Model, batch_size: int) -> Job:
    """With a ps beside each worker."""
    addresses = ",".join(free_addresses(WORKERS))
    folder = started.folder / "checkpoints"
    command = [
        "psruntime.task", "--colocate-ps", "--worker-hosts", addresses, "--model", model.ours,
        "--batch-size", str(batch_size), "--checkpoint-dir", str(folder), "--index",
    ]  # fmt: skip
    return Job(started, [[*command, str(index)] for index in range(WORKERS)])


def mirrored(started: Processes, model: Model, batch_size: int) -> Job:
    addresses = ",".join(free_addresses(WORKERS))
    command = [
        "benchmarks.mirrored", "--workers", addresses, "--model", model.peers, "--batch-size", str(batch_size),
        "--index",
    ]  # fmt: skip
    return Job(started, [[*command, str(index)] for index in range(WORKERS)])


Side = Callable[[Processes, Model, int], Job]
SIDES: dict[str, Side] = {"ours": ours, "peer": mirrored}


def measure(names: list[str], batch_size: int, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    """One result for each model, under "each"."""
    each = []
    for name in names:
        found: dict[str, list[Measured]] = {side: [] for side in SIDES}
        for run in range(runs):
            for side, start in SIDES.items():
                with processes(MODELS[name].environment) as started:
                    found[side].append(measured(started, start(started, MODELS[name], batch_size).logs, seconds))
                say(f"{name}: run {run + 1} of {runs}: {side}: {found[side][-1]}")
        survives = {}
        for side, start in SIDES.items():
            with processes(MODELS[name].environment) as started:
                survives[side] = start(started, MODELS[name], batch_size).survives_a_kill()
            say(f"{name}: {side}: {survival(survives[side])}")
        each.append(result_of(name, batch_size, found, survives))
    return {"workload": "sync training without machines for the ps", "each": each}


def result_of(
    name: str, batch_size: int, found: dict[str, list[Measured]], survives: dict[str, bool]
) -> dict[str, Any]:
    rates = {side: [run.rate * batch_size for run in of_side] for side, of_side in found.items()}
    cpu = {side: [sum(run.cpu_ms.values()) for run in of_side] for side, of_side in found.items()}
    return {
        "workload": f"{name}, {WORKERS} workers with batches of {batch_size}, mode sync",
        "unit": "examples/s",
        "peer_is": "MultiWorkerMirroredStrategy",
        **compared(rates["ours"], rates["peer"], [a / b for a, b in zip(*rates.values(), strict=True)]),
        "cpu_ms": compared(cpu["ours"], cpu["peer"], [b / a for a, b in zip(*cpu.values(), strict=True)]),
        "survives_a_kill": survives,
    }


def survival(survives: bool) -> str:
    return (
        "both train again after one was killed" if survives else f"no steps within {KILLED_S:g} s after one was killed"
    )


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(line for each in result["each"] for line in lines_of(each))


def lines_of(result: dict[str, Any]) -> list[str]:
    spread, cpu = spread_of(result, digits=1), result["cpu_ms"]
    return [
        result["workload"],
        f"  ours {result['ours']:.1f} {result['unit']} ({spread['ours']}); {result['peer_is']} {result['peer']:.1f} "
        f"({spread['peer']}); ratio {result['ratio']:.2f} ({spread_of(result)['ratio']}), {result['runs']} runs",
        f"  processor ms a step of a worker and what is beside it: {cpu['ours']:.1f} and {cpu['peer']:.1f}, "
        f"ratio {cpu['ratio']:.2f} ({spread_of(cpu)['ratio']})",
        *(f"  {side}: {survival(survives)}" for side, survives in result["survives_a_kill"].items()),
    ]


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--models", type=words(MODELS), default="mobilenet,small-layers,layers")
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured in each run")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    print_result(
        arguments,
        lambda say: measure(arguments.models, arguments.batch_size, arguments.runs, arguments.seconds, say),
        text_of,
    )


if __name__ == "__main__":
    main()
