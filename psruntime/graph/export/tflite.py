"""Converts a SavedModel to a LiteRT model (TensorFlow Lite's format), by TensorFlow's own converter.

quantize "float16": weights are stored as float16, and computed with as float32.

quantize "int8": full-integer quantization after training (Jacob et al. 2018, "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference").  Weights are int8, activations int8 in ranges that were seen
on batches of the training data, biases int32.  An operation without an int8 kernel is computed in float32.  Inputs and
outputs keep their types, so the signature is that of the SavedModel.  A convolution has a scale for each channel, a
dense layer one: with a scale for each of its units a small one would be a third larger.

Operations that LiteRT lacks are refused, not left as TensorFlow's own ("select TF ops"): no runtime from PyPI runs
those, so such a model could not be measured.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.environment import stderr_closed
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.base.types import Array
from psruntime.graph.dynamic.settings import noted
from psruntime.graph.export.compact import compact
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph
from psruntime.graph.export.wanted import FLOAT16, INT8

Batch = Mapping[str, Array]  # features by name, arrays


def require_convertible(serving: ServingGraph) -> None:
    """Raises UsageError if the model has inputs, or variables, of a kind that LiteRT lacks."""
    with serving.graph.as_default():
        tables = ", ".join(noted())
    if tables:
        raise UsageError(
            f"--tflite: {tables} has rows of any ids (psruntime.embedding), which LiteRT cannot look up; serve the "
            "SavedModel"
        )
    for name, tensor in serving.signatures[DEFAULT][0].items():
        if not isinstance(tensor, tf1.Tensor):
            raise UsageError(f"--tflite: feature {name} is sparse, and a LiteRT model takes dense tensors only")
        if tensor.dtype == tf1.string:
            raise UsageError(
                f"--tflite: feature {name} is a string, for which LiteRT has no operations; write a serving_input_fn "
                "that takes numbers"
            )
        if tensor.shape.rank is None:
            raise UsageError(f"--tflite: feature {name} has no known rank, which a LiteRT model needs")


def convert(folder: str, quantize: str = "", batches: Sequence[Batch] = ()) -> bytes:
    """The LiteRT model of the signature serving_default of a SavedModel.

    quantize: "", "float16" or "int8".  batches: with "int8", on which the ranges of activations are measured.

    Raises:
        UsageError: the model has operations that LiteRT has not, or the converter fails.
    """
    with _quiet():
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                readable(folder), signature_keys=[DEFAULT], tags={tf1.saved_model.tag_constants.SERVING}
            )
            if quantize:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if quantize == FLOAT16:
                converter.target_spec.supported_types = [tf.float16]
            if quantize == INT8:
                converter.representative_dataset = lambda: iter([(DEFAULT, dict(batch)) for batch in batches])
                converter._experimental_disable_per_channel_quantization_for_dense_layers = True
            content: bytes = converter.convert()
        except Exception as error:  # the converter raises errors of many kinds, some of them bare
            raise UsageError(f"--tflite: {_reason(error)}") from error
    return compact(content) if quantize == INT8 else content


def _reason(error: Exception) -> str:
    """The line of the compiler's output that names the cause."""
    text = str(error)
    unknown = re.findall(r"^(?:TF Select|Custom) ops: (.+)$", text, re.MULTILINE)
    if unknown:
        return (
            f"LiteRT has no {', '.join(unknown)}, or not for these types, and the predictions depend on it; compute "
            "what it does before the model, in input_fn, or by other operations"
        )
    return f"TensorFlow's converter fails: {first_line(error)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the converter's output for its own developers."""
    with stderr_closed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
