"""The DLRM of the examples with tables of 100,000 rows, which also prints its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.gpu.gate import hooks
from psruntime import ModelSpec
from psruntime.examples.criteo import CATEGORIES
from psruntime.examples.dlrm import Dlrm

MODEL = Dlrm(rows=(100_000,) * CATEGORIES, width=64, bottom=(512, 256), top=(512, 256))
input_fn = MODEL.input_fn


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """That of MODEL."""
    return replace(MODEL.model_fn(features, labels, mode), hooks=hooks())
