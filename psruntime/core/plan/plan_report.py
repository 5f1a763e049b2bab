"""What a plan means for a job: what each bucket and each ps holds, and how many tensors travel in a step."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.plan.buckets import Bucket
from psruntime.core.plan.plan import Plan

# Tensors of a step between a worker and a ps, in mode async and bounded, as TensorFlow cuts its graph.
DENSE_TENSORS = 2  # the master comes, the gradient goes
SPARSIFIED_TENSORS = 4  # what changed comes, and where; the largest entries of the gradient go, and where they are
SPARSIFIED_PS_TENSORS = 1  # with any of these: what the worker has of all of them goes
TABLE_TENSORS = 2  # the gradient's rows go, and their indices
LOOKUP_TENSORS = 2  # one lookup a table, or one level of them a table group, of each mini-batch: ids go, rows come
PS_TENSORS = 2  # with any update: the header goes, the outcomes come
STEP_PS = 0  # that counts the global step, which is updated like a bucket


@dataclass(frozen=True)
class PsReport:
    """What one ps has: buckets and homes, bytes of their values without the optimizer's, tensors in a step."""

    ps: int
    buckets: int
    copies: int
    size_bytes: int
    tensors: int


@dataclass(frozen=True)
class PlanReport:
    """Of a plan as a whole.

    balance: bytes of the fullest ps over the mean of all, at least 1; 1 without any bytes.
    """

    every_ps: tuple[PsReport, ...]
    balance: float

    @property
    def buckets(self) -> int:
        return sum(ps.buckets for ps in self.every_ps)

    @property
    def tensors(self) -> int:
        """Between one worker and all ps in a step."""
        return sum(ps.tensors for ps in self.every_ps)


def report(plan: Plan, local_steps: int = 1, is_sparsified: bool = False) -> PlanReport:
    """Counts what the plan says, for so many mini-batches a step.

    is_sparsified: whether of dense gradients the largest entries are sent, where they can be.
    """
    every_ps = tuple(_on(plan, ps, local_steps, is_sparsified) for ps in range(plan.num_ps))
    total = sum(ps.size_bytes for ps in every_ps)
    fullest = max(ps.size_bytes for ps in every_ps)
    return PlanReport(every_ps, fullest * plan.num_ps / total if total else 1.0)


def tensors_of(bucket: Bucket, local_steps: int = 1, is_sparsified: bool = False) -> int:
    """That travel for it in a step."""
    if not bucket.is_table:
        return SPARSIFIED_TENSORS if is_sparsified and bucket.can_be_sparsified else DENSE_TENSORS
    ids_are_there = bucket.is_grouped and local_steps == 1  # those of the lookups of a group are the gradient's
    return TABLE_TENSORS + LOOKUP_TENSORS * local_steps - ids_are_there


def _on(plan: Plan, ps: int, local_steps: int, is_sparsified: bool) -> PsReport:
    buckets = plan.on(ps)
    copies = sum(copy.ps == ps for copy in plan.copies)
    tensors = sum(tensors_of(bucket, local_steps, is_sparsified) for bucket in buckets)
    if is_sparsified and any(bucket.can_be_sparsified for bucket in buckets):
        tensors += SPARSIFIED_PS_TENSORS
    if buckets or ps == STEP_PS:
        tensors += PS_TENSORS
    return PsReport(ps, len(buckets), copies, plan.bytes_on(ps), tensors)
