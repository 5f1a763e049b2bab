"""Shows the ps of each variable of a model, without a job.

psruntime plan --model MODULE --ps N [--what-if N,N,...] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from psruntime.config import JobConfig
from psruntime.config.process import WorkerConfig
from psruntime.core.plan.buckets import Bucket, VariableSpec
from psruntime.core.plan.plan import Plan, PlanReport, make_plan, report, tensors_of
from psruntime.errors import EXIT_DONE, UsageError
from psruntime.model import TRAIN, Context, load_model
from psruntime.observe.render import bytes_text, table, text_console
from psruntime.process import flags
from psruntime.process.process import offline

PROG = "psruntime plan"


def main(argv: Sequence[str] | None = None) -> int:
    """Builds the model once, in this process."""
    parser = flags.Parser(
        PROG,
        "Shows where the variables of a model would live, without a job.",
        first=("model", "data_dir", "ps", "plan", "slice_bytes", "min_ps_bytes"),
    )
    parser.add_settings(WorkerConfig, only=("model", "data_dir", "batch_size", "set"))
    parser.add_settings(JobConfig, only=("ps", "plan", "slice_bytes", "min_ps_bytes", "local_steps"))
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument("--what-if", default="", metavar="N,N,...", help="other numbers of ps to compare with")
    most_used.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args(argv)
    return offline(PROG, lambda: _show(arguments))


def _show(arguments: argparse.Namespace) -> int:
    job = flags.config_of(JobConfig, arguments)
    others = _numbers(arguments.what_if)
    specs = _specs(flags.worker_config(arguments))
    plans = [make_plan(specs, num_ps, *job.plan_sizes) for num_ps in [job.ps, *others]]
    if arguments.json:
        sys.stdout.write(json.dumps([_as_json(plan, job.local_steps) for plan in plans], indent=2) + "\n")
    else:
        text_console().print(as_tables(plans, job.local_steps))
    return EXIT_DONE


def _specs(worker: WorkerConfig) -> tuple[VariableSpec, ...]:
    """The model's variables.  TensorFlow is imported here only, after its environment is set."""
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True)

    from psruntime.graph.input.input_stream import InputStream
    from psruntime.graph.model.pulled_model import record_specs

    model = load_model(worker.model, worker.set)
    context = Context(TRAIN, 0, 1, worker.batch_size, worker.data_dir, seed=0)
    inputs = InputStream(model, context)
    try:
        return record_specs(model, inputs, TRAIN)
    finally:
        inputs.close()


def _numbers(text: str) -> list[int]:
    numbers = [int(word) if word.isdecimal() else 0 for word in text.split(",")] if text else []
    if 0 in numbers:
        raise UsageError(f"--what-if must be numbers of ps from 1, with commas between them, got '{text}'")
    return numbers


def _as_json(plan: Plan, local_steps: int) -> dict[str, Any]:
    buckets = [asdict(bucket) for bucket in (*plan.buckets, *plan.copies)]
    return {"ps": plan.num_ps, **asdict(report(plan, local_steps)), "buckets": buckets}


def as_tables(plans: Sequence[Plan], local_steps: int) -> RenderableType:
    """The first plan bucket by bucket and ps by ps; then a line for each, if there are several."""
    plan, found = plans[0], report(plans[0], local_steps)
    tables: list[RenderableType] = [_bucket_table(plan, local_steps), Text(), _ps_table(found), Text(_summary(found))]
    if len(plans) > 1:
        tables += [Text(), _comparison(plans, local_steps)]
    return Group(*tables)


def _bucket_table(plan: Plan, local_steps: int) -> Table:
    rows = table("bucket", "ps", "bytes", "tensors a step", "variables")
    for bucket in plan.buckets:
        tensors = str(tensors_of(bucket, local_steps))
        rows.add_row(Text(bucket.name), str(bucket.ps), bytes_text(bucket.size_bytes), tensors, _kind(bucket))
    for copy in plan.copies:
        rows.add_row(Text(copy.name), str(copy.ps), bytes_text(copy.size_bytes), "0", "not trained")
    return rows


def _kind(bucket: Bucket) -> Text:
    if bucket.is_grouped:
        return Text(f"rows of {len(bucket.pieces)} tables" if bucket.is_packed else "rows of a table")
    if bucket.aggregation:
        return Text(f"aggregation {bucket.aggregation}")
    if bucket.is_packed:
        return Text(f"{len(bucket.pieces)} packed")
    return Text("a table" if bucket.is_table else "1")


def _ps_table(found: PlanReport) -> Table:
    rows = table("ps", "buckets", "bytes", "tensors a step")
    for ps in found.every_ps:
        rows.add_row(str(ps.ps), str(ps.buckets), bytes_text(ps.size_bytes), str(ps.tensors))
    return rows


def _summary(found: PlanReport) -> str:
    return (
        f"the fullest ps has {found.balance:.2f} times its share; {found.tensors} tensors travel between a worker "
        "and all ps in a step"
    )


def _comparison(plans: Sequence[Plan], local_steps: int) -> Table:
    rows = table("number of ps", "buckets", "fullest ps", "balance", "tensors a step")
    for plan in plans:
        found = report(plan, local_steps)
        fullest = max(ps.size_bytes for ps in found.every_ps)
        rows.add_row(
            str(plan.num_ps), str(found.buckets), bytes_text(fullest), f"{found.balance:.2f}", str(found.tensors)
        )
    return rows
