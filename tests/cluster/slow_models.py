"""The model of models.py on a worker that is 12 times slower."""

from __future__ import annotations

from typing import Any

from psruntime import ModelSpec
from tests.cluster.models import STEP_S, input_fn, model_with

__all__ = ["input_fn", "model_fn"]


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    return model_with(12 * STEP_S, features, labels)
