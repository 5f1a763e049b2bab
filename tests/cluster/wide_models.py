"""The model of models.py with variables of some size, so that what they move stands out from all else."""

from __future__ import annotations

from typing import Any

from psruntime import ModelSpec
from tests.cluster.models import STEP_S, input_fn, model_with

WIDTH = 2500

__all__ = ["input_fn", "model_fn"]


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    return model_with(4 * STEP_S, features, labels, WIDTH)
