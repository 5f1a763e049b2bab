"""Trains one process on the batches of a sync job's rounds log, and compares with a checkpoint of the job.

python -m psruntime.replay LOG --checkpoint-dir FOLDER [--model MODULE] [settings of the workers]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psruntime import flags
from psruntime.config import JobConfig
from psruntime.devices import ALL_GPUS, device_names
from psruntime.errors import EXIT_DONE, EXIT_FAILED, UsageError
from psruntime.model import TRAIN, Context, load_model
from psruntime.observe.outputs import entry
from psruntime.observe.rounds_log import rounds_of
from psruntime.process import offline
from psruntime.process_config import WorkerConfig

PROG = "psruntime replay"
TOLERANCE = 1e-5
SHOWN = 5  # of the largest differences


@dataclass(frozen=True)
class Outcome:
    """rounds: (first, last) that were repeated, from and to these checkpoints.

    differences: of each variable and slot the largest one over its largest entry.  not_compared: variables that are not
    trained.
    """

    rounds: tuple[int, int]
    first: str
    last: str
    differences: dict[str, float]
    not_compared: list[str]

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The largest differences first."""
        return sorted(self.differences.items(), key=lambda entry: -entry[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Repeats the training; returns 0 if every difference is within the tolerance, else 1."""
    arguments = _parser().parse_args(argv)
    return offline(PROG, lambda: _compare(arguments))


def _compare(arguments: argparse.Namespace) -> int:
    job, worker = flags.config_of(JobConfig, arguments), flags.worker_config(arguments)
    sizes = _sizes(arguments.batch_sizes)
    flags.checkpoint_folder(arguments)
    outcome = _replay(arguments.log, job, worker, sizes)
    _print(outcome, arguments.json)
    exact = outcome.worst[0][1] <= arguments.tolerance
    if not exact:
        sys.stderr.write(f"{PROG}: not the same within {arguments.tolerance:g} (--tolerance)\n")
    return EXIT_DONE if exact else EXIT_FAILED


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Trains one process, with plain TensorFlow, on the batches that the rounds log of a sync job names, from the "
        "oldest checkpoint of the job to its newest, and compares.  Give the flags that the workers had; of the job's "
        "settings --checkpoint-dir, --local-steps, --min-workers and --on-data-error count here.",
        first=("model", "checkpoint_dir", "batch_size"),
        usage=f"{PROG} LOG [flags]",
    )
    parser.add_argument("log", metavar="LOG", help="the file of --rounds-log")
    parser.add_settings(WorkerConfig, only=flags.DATA_AND_MODEL)
    parser.add_settings(JobConfig)
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--batch-sizes", default="", metavar="W:N,W:N,...", help="batch sizes of single workers, where they differ"
    )
    most_used.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="X",
        help=f"largest difference, over the largest entry of a variable, that counts as the same ({TOLERANCE:g})",
    )  # fmt: skip
    most_used.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _sizes(text: str) -> dict[int, int]:
    pairs = text.split(",") if text else []
    if wrong := [pair for pair in pairs if not re.fullmatch(r"\d+:[1-9]\d*", pair)]:
        raise UsageError(f"--batch-sizes must be WORKER:SIZE, with commas between them, got '{wrong[0]}'")
    return {int(worker): int(size) for worker, size in (pair.split(":") for pair in pairs)}


def _devices(text: str) -> int:
    """How many devices each worker had, as --devices says; gpu:auto is one."""
    names = device_names(text)
    if names == (ALL_GPUS,):
        raise UsageError(f"--devices {ALL_GPUS}: name the devices that the workers had; only their number counts here")
    return max(1, len(names))


def _replay(log: str, job: JobConfig, worker: WorkerConfig, sizes: dict[int, int]) -> Outcome:
    """TensorFlow is imported here only, after its environment is set."""
    rounds, devices = rounds_of(log), _devices(worker.devices)
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True)

    from psruntime.graph.input.data_errors import DataErrors
    from psruntime.graph.input.input_stream import InputStream
    from psruntime.graph.input.logged_batches import LoggedBatches
    from psruntime.graph.model.one_process import OneProcess

    first, last = _ends(job.checkpoint_dir)
    used = _between(rounds, first[0], last[0], log)
    model = load_model(worker.model)

    def stream(index: int) -> InputStream:
        size = sizes.get(index, worker.batch_size)
        context = Context(TRAIN, index, job.min_workers, size, worker.data_dir, worker.seed + index)
        return InputStream(model, context, job.local_steps * devices, DataErrors(job.on_data_error == "skip"))

    inputs = LoggedBatches(stream)
    try:
        process = OneProcess(model, inputs.layout(used[0]))
        try:
            process.restore(first[1])
            for record in used:
                scale = record.get("learning_rate_scale", 1.0)
                process.step(inputs.minibatches(record), record["global_step"] - 1, scale)
            differences = process.differences(last[1])
            return Outcome((first[0] + 1, last[0]), first[1], last[1], differences, process.not_compared)
        finally:
            process.close()
    finally:
        inputs.close()


def _ends(folder: str) -> tuple[tuple[int, str], tuple[int, str]]:
    """(step, path) of the oldest and the newest checkpoint."""
    from psruntime.graph.checkpoint.listing import CheckpointList, step_of

    steps = sorted((step, path) for path in CheckpointList(folder).listed() if (step := step_of(path)) is not None)
    if len(steps) < 2:
        raise UsageError(
            f"{folder} has {len(steps)} checkpoints, and two are needed: one to begin from and one to compare with"
        )
    return steps[0], steps[-1]


def _between(rounds: list[dict[str, Any]], first: int, last: int, log: str) -> list[dict[str, Any]]:
    """The rounds that lead from one global step to another."""
    used = [record for record in rounds if first < record["global_step"] <= last]
    if local := [record["global_step"] for record in used if record.get("local")]:
        raise UsageError(
            f"{log} has a local stage, which ends at global step {local[-1]} and cannot be repeated; the rounds after "
            "it can, if the list of checkpoints in the folder begins with that of its end, or a later one"
        )
    steps, wanted = [record["global_step"] for record in used], list(range(first + 1, last + 1))
    if steps != wanted:
        missing = next((step for step in wanted if step not in steps), last)
        raise UsageError(
            f"{log} has no round {missing}, which was a step of another mode, could not be written, or is not of this "
            f"job; those from {first + 1} to {last} are needed, from the oldest checkpoint of the folder to its newest"
        )
    return used


def _print(outcome: Outcome, as_json: bool) -> None:
    first, last = outcome.rounds
    if as_json:
        differences = {name: each if math.isfinite(each) else None for name, each in outcome.differences.items()}
        facts = {
            "rounds": [first, last], "from": outcome.first, "to": outcome.last, "differences": differences,
            "not_compared": outcome.not_compared,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    lines = [f"rounds {first} to {last}, from {outcome.first} to {outcome.last}"]
    lines += [f"{difference:.1e}  {name}" for name, difference in outcome.worst[:SHOWN]]
    lines += [f"not compared, since workers have copies of their own: {', '.join(outcome.not_compared)}"] * bool(
        outcome.not_compared
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(entry(main))
