"""A plan for people: its buckets, the content of each ps, and the same for other numbers of ps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from psruntime.core.plan.buckets import Bucket
from psruntime.core.plan.plan import Plan
from psruntime.core.plan.plan_report import PlanReport, report, tensors_of
from psruntime.observe.render import bytes_text, table


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
