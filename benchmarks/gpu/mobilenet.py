"""The MobileNetV2 of the examples, on images of 96 x 96, in the trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.gpu.gate import hooks
from psruntime import ModelSpec
from psruntime.examples import mobilenet_v2

input_fn = mobilenet_v2.input_fn


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """That of the example."""
    return replace(mobilenet_v2.model_fn(features, labels, mode), hooks=hooks())
