"""Repeats the rounds of a sync job in one process, and compares with its checkpoints, to the bit.

psruntime replay LOG --checkpoint-dir FOLDER [--model MODULE] [settings of the workers]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import ALL_GPUS, WorkerConfig
from psruntime.core.members.messages import Machine
from psruntime.errors import EXIT_DONE, EXIT_FAILED, UsageError
from psruntime.model import TRAIN, Context, input_seed, load_model
from psruntime.observe.rounds_log import rounds_of, workers_of
from psruntime.process import flags
from psruntime.process.job_file import local_file
from psruntime.process.machine import THREADS, this_machine
from psruntime.process.process import offline

PROG = "psruntime replay"
TOLERANCE = 1e-5
Record = Mapping[str, Any]  # of the rounds log
OF_WORKERS = ("model", "data_dir", "batch_size", "set", "seed", "devices")
OF_JOB = ("min_workers", "local_steps", "on_data_error")
OF_OLD_LOGS = ("plan", "slice_bytes", "min_ps_bytes")
COUNTED = {
    "devices": "devices that each worker had, of which the number counts",
    "min_workers": "that of the job, context.num_workers of input_fn",
}
SHOWN = 5  # of the largest differences, and of the inputs near a kink


@dataclass(frozen=True)
class Comparison:
    """rounds: (first, last) that were repeated, between these checkpoints.

    differences: of each variable and slot the largest one over its largest entry, from the last checkpoint, or from the
        last with which bits differ.
    bits_differ: variable -> number of entries whose bits differ.  not_compared: variables that are not trained.
    may_differ: why the bits may differ; empty: they must not.
    differ_within: (first, last) rounds, between two checkpoints, in which bits began to differ; None if none do.
    near_kinks: inputs within rounding of a kink in the rounds in which differences above the tolerance began.
    """

    rounds: tuple[int, int]
    first: str
    last: str
    differences: dict[str, float]
    bits_differ: dict[str, int]
    not_compared: list[str]
    may_differ: list[str] = field(default_factory=list)
    differ_within: tuple[int, int] | None = None
    near_kinks: list[str] = field(default_factory=list)

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The largest differences first."""
        return sorted(self.differences.items(), key=lambda entry: -entry[1])

    def is_same(self, tolerance: float | None) -> bool:
        """Whether all bits are, or, where they may differ or a tolerance is given, all differences are within it."""
        if not self.bits_differ:
            return True
        limit = tolerance if tolerance is not None else TOLERANCE if self.may_differ else 0.0
        return max(self.differences.values()) <= limit


def main(argv: Sequence[str] | None = None) -> int:
    """Repeats the training; returns 0 if it is the same, else 1."""
    arguments = _parser().parse_args(argv)
    return offline(PROG, lambda: _compare(arguments))


def _compare(arguments: argparse.Namespace) -> int:
    job, worker = flags.config_of(JobConfig, arguments), flags.worker_config(arguments)
    sizes = _sizes(arguments.batch_sizes)
    flags.checkpoint_folder(arguments)
    tolerance: float | None = arguments.tolerance
    outcome = _replay(arguments.log, job, worker, sizes, arguments.joint, tolerance)
    _print(outcome, arguments.json)
    if outcome.is_same(tolerance):
        return EXIT_DONE
    limit = f"within {TOLERANCE if tolerance is None else tolerance:g} (--tolerance)"
    exact = "to the bit, and nothing is known for which bits may differ; --tolerance X accepts a difference"
    sys.stderr.write(f"{PROG}: not the same {limit if tolerance is not None or outcome.may_differ else exact}\n")
    return EXIT_FAILED


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Repeats the rounds that the rounds log of a sync job names, in one process with plain TensorFlow, from the "
        "oldest checkpoint of the job to its newest, and compares, to the bit.  Give the flags that the workers had.",
        first=("checkpoint_dir", *OF_WORKERS, *OF_JOB),
        usage=f"{PROG} LOG [flags]",
    )
    parser.add_argument("log", type=local_file, metavar="LOG", help="the file of --rounds-log")
    flags.add_checkpoint_dir_flag(parser)
    parser.add_settings(WorkerConfig, only=OF_WORKERS, helps=COUNTED)
    parser.add_settings(JobConfig, only=OF_JOB, helps=COUNTED)
    parser.add_settings(
        JobConfig,
        only=OF_OLD_LOGS,
        helps=dict.fromkeys(
            OF_OLD_LOGS, "as of the job, for a rounds log of an earlier version, which does not name it"
        ),
    )
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--batch-sizes", default="", metavar="W:N,W:N,...", help="batch sizes of single workers, where they differ"
    )
    most_used.add_argument(
        "--joint", action="store_true", help="compute the joint batch of a round in one piece, instead of each "
        "worker's by itself: the same but for rounding",
    )  # fmt: skip
    most_used.add_argument(
        "--tolerance", type=flags.number, metavar="X", help="largest difference, over the largest entry of a variable, "
        f"that counts as the same (default: 0, or {TOLERANCE:g} where the bits may differ)",
    )  # fmt: skip
    most_used.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _sizes(text: str) -> dict[int, int]:
    pairs = text.split(",") if text else []
    if wrong := [pair for pair in pairs if not re.fullmatch(r"\d+:[1-9]\d*", pair)]:
        raise UsageError(f"--batch-sizes must be WORKER:SIZE, with commas between them, got '{wrong[0]}'")
    return {int(worker): int(size) for worker, size in (pair.split(":") for pair in pairs)}


def _devices(names: tuple[str, ...]) -> int:
    """The number of devices of each worker by --devices; gpu:auto is one."""
    if names == (ALL_GPUS,):
        raise UsageError(f"--devices {ALL_GPUS}: name the devices that the workers had; only their number counts here")
    return max(1, len(names))


def _replay(
    log: str, job: JobConfig, worker: WorkerConfig, sizes: Mapping[int, int], joint: bool, tolerance: float | None
) -> Comparison:
    """TensorFlow is imported here only, after its environment is set."""
    rounds, workers, devices = rounds_of(log), workers_of(log), _devices(worker.device_names)
    machines = {tag: record for tag, record in workers.items() if "processor" in record}
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True)

    from psruntime.graph.input.batches import DataErrors
    from psruntime.graph.input.input_stream import InputStream
    from psruntime.graph.replay.job_replay import JobReplay

    checkpoints = _checkpoints(job.checkpoint_dir)
    first, last = min(checkpoints), max(checkpoints)
    used = _between(rounds, first, last, log)
    model, own = (
        load_model(worker.model, worker.set),
        {part["incarnation"]: part["worker"] for r in used for part in r["parts"]},
    )

    def stream(index: int, incarnation: str) -> InputStream:
        size, began_at = sizes.get(index, worker.batch_size), workers.get(incarnation, {}).get("began_at", 0)
        seed = input_seed(worker.seed, index, began_at)
        context = Context(TRAIN, index, job.min_workers, size, worker.data_dir, seed)
        return InputStream(model, context, job.local_steps * devices, DataErrors(job.skips_bad_batches))

    here = this_machine(environment.tensorflow_version())
    may_differ = ["--joint is given"] if joint else [*_losses_of(used), *_others_of(own, machines, used, here)]
    _take_threads([machines[each]["threads"] for each in own if each in machines])
    replay = JobReplay(model, stream, job.plan_sizes, joint)
    found = replay.compare(used, checkpoints, TOLERANCE if tolerance is None else tolerance)
    may_differ += [f"operation {name} draws random numbers" for name in found.model_draws[:1]]
    may_differ += [f"the gradients depend on {n}, which each worker changes for itself" for n in found.model_reads[:1]]
    return Comparison(
        (first + 1, last), checkpoints[first], checkpoints[last],
        {name: each.largest for name, each in found.differences.items()},
        {name: each.entries for name, each in found.differences.items() if each.entries},
        found.not_compared, may_differ, found.apart, found.near_kinks,
    )  # fmt: skip


def _losses_of(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Facts that decide the bits and that the records of the rounds lack."""
    reasons = dict[str, None]()
    for record in rounds:
        if "plan" not in record:
            reasons["the rounds log is of an earlier version, and does not name the plan"] = None
        for key, flag in (("wire", "--wire"), ("top_k", "--top-k")):
            if key in record:
                reasons[f"gradients travelled with {flag} {record[key]}"] = None
        counted = [part for part in record["parts"] if part["examples"]]
        scales = {part["examples"] * part.get("divisor", len(record["parts"])) for part in counted}
        if (len(counted) > 2 or len(scales) > 1) and not all("positions" in part for part in counted):
            reasons[f"round {record['global_step']} lacks the order in which the gradients were added"] = None
    return list(reasons)


def _others_of(
    workers: Mapping[str, int], machines: Mapping[str, Record], rounds: Sequence[Record], here: Machine
) -> list[str]:
    """The processes that computed on another device than the CPU here, or with another TensorFlow.

    workers: incarnation -> index.  machines: by incarnation, of workers.
    """
    reasons, found = dict[str, None](), list[tuple[str, Record]]()
    for tag, worker in sorted(workers.items(), key=lambda item: item[1]):
        if tag in machines:
            found.append((f"worker {worker}", machines[tag]))
        else:
            reasons[f"worker {worker} computed on a GPU, or its processor is not in the rounds log"] = None
    for record in rounds:
        found += [(f"ps {ps['ps']}", ps) for ps in record.get("ps", ())]
        if len(record.get("ps", ())) < record.get("plan", [1])[0]:
            reasons["the processor of each ps is not in the rounds log"] = None
    for name, machine in found:
        version = machine.get("tensorflow", "")
        if machine["processor"] != here.processor:
            reasons[f"{name} computed on another processor, {machine['processor']}"] = None
        if version != here.tensorflow:
            known = f"TensorFlow {version}, and this is {here.tensorflow}" if version else "an unknown TensorFlow"
            reasons[f"{name} computed with {known}"] = None
    threads = sorted({machine["threads"] for _, machine in found})
    if len(threads) > 1:
        reasons[f"the workers and ps computed with {', '.join(map(str, threads))} threads"] = None
    return list(reasons)


def _take_threads(threads: Sequence[int]) -> None:
    """Sets TensorFlow's threads to those of the job: with others sums are split differently."""
    for number in threads[:1]:
        os.environ[THREADS] = str(number)


def _checkpoints(folder: str) -> dict[int, str]:
    """Global step -> path."""
    from psruntime.graph.checkpoint.listing import CheckpointList, step_of

    found = {step: path for path in CheckpointList(folder).listed() if (step := step_of(path)) is not None}
    if len(found) < 2:
        raise UsageError(
            f"{folder} has {len(found)} checkpoints, and two are needed: one to begin from and one to compare with"
        )
    return found


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


def _print(outcome: Comparison, as_json: bool) -> None:
    if as_json:
        differences = {name: each if math.isfinite(each) else None for name, each in outcome.differences.items()}
        facts = {**asdict(outcome), "differences": differences}
        sys.stdout.write(json.dumps({"from": facts.pop("first"), "to": facts.pop("last"), **facts}) + "\n")
        return
    (first, last), count = outcome.rounds, len(outcome.differences)
    lines = [f"rounds {first} to {last}, from {outcome.first} to {outcome.last}"]
    lines += [f"the bits may differ: {reason}" for reason in outcome.may_differ]
    lines += [f"of {count} variables and slots {count - len(outcome.bits_differ)} are the same to the bit"]
    if outcome.differ_within:
        first, last = outcome.differ_within
        lines += [f"the bits differ from a round on that is among {first} to {last}; at the end by:"]
        lines += [f"{difference:.1e}  {name}" for name, difference in outcome.worst[:SHOWN]]
    lines += [f"{text}: rounding explains a difference from there on" for text in outcome.near_kinks[:SHOWN]]
    if outcome.not_compared:
        lines += [f"not compared, since they are not trained: {', '.join(outcome.not_compared)}"]
    sys.stdout.write("\n".join(lines) + "\n")
