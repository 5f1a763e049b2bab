"""layer_stack with a wait in each step, in place of what an accelerator would compute meanwhile.

A model module of psruntime.  The wait is WAIT_S long, uses no CPU, and lies between the forward and the backward pass:
so between the pull of every variable and the push of any gradient.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks import layer_stack
from psruntime import Context, ModelSpec

WAIT_S = 0.1


def input_fn(context: Context) -> Any:
    """That of layer_stack."""
    return layer_stack.input_fn(context)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """That of layer_stack; its gradients wait."""
    spec = layer_stack.model_fn(features, labels, mode)
    return replace(spec, loss=waited(spec.loss, tf1.constant(WAIT_S, tf1.float64)))


def waited(loss: Any, wait_s: Any) -> Any:
    """The loss; whoever takes a gradient of it has it so many seconds (float64) after the loss."""

    def wait(value: Any, seconds: Any) -> Any:
        time.sleep(seconds)  # without the interpreter's lock
        return value

    @tf1.custom_gradient  # type: ignore[untyped-decorator]
    def late(loss: Any) -> Any:
        value = tf1.ensure_shape(tf1.numpy_function(wait, [loss, wait_s], loss.dtype), loss.shape)

        def gradient(upstream: Any) -> Any:
            with tf1.control_dependencies([value]):
                return tf1.identity(upstream)

        return value, gradient

    return late(loss)
