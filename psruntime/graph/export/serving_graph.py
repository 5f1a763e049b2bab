"""The graph of a model that is served: from features, as tensors or as tf.Examples, to its predictions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.faults import blame
from psruntime.graph.base.graphs import ancestors, model_graph
from psruntime.graph.base.types import DType, Graph, Op, Tensor
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.call import call_model_fn
from psruntime.graph.model.evaluate import training_names
from psruntime.model import EVAL, Context, Model, ModelSpec

FEATURES, PREDICTIONS, EXAMPLES = "features", "predictions", "examples"
DEFAULT, OF_EXAMPLES = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY, "tf_example"  # names of signatures
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class ServingGraph:
    """signatures: name -> (inputs, outputs), tensors by name.  left_out: why there is no signature for tf.Examples;
    empty if there is one.  of_training: as of `require_fit`.
    """

    graph: Graph
    signatures: dict[str, tuple[Tensors, Tensors]]
    left_out: str
    of_training: Callable[[], set[str] | None]


def build_serving_graph(model: Model, context: Context) -> ServingGraph:
    """The model with mode "eval", for batches of any size.

    The features have the layout of the data of mode "eval", unless the model module has `serving_input_fn()`, which
    returns (features, inputs by name) and makes its placeholders itself.

    Raises:
        UsageError: input_fn, serving_input_fn or model_fn fails, or the predictions cannot be served.
    """
    inputs = InputStream(model, context)
    inputs.close()
    serving = _build(model, inputs, None)
    if model.serving_input_fn is not None:
        return serving
    return _build(model, inputs, serving.signatures[DEFAULT][0])  # a tf.Example need not have any other


def _build(model: Model, inputs: InputStream, used: Container[str] | None) -> ServingGraph:
    """used: names of the features on which predictions depend; None if that is unknown yet."""
    with model_graph().as_default() as graph:
        features, labels, _ = inputs.layout.placeholders(any_size=True)
        if model.serving_input_fn is not None:
            features, given = _of_user(model)
            signatures, left_out = {DEFAULT: given}, "serving_input_fn defines the inputs"
        else:
            signatures, features, left_out = _with_examples(model, features, used)
        spec = call_model_fn(model, features, labels, EVAL)
        outputs = predictions_of(model, spec)
        needed = ancestors(part for tensor in outputs.values() for part in parts_of(tensor))
        _require_given(model, needed, signatures[DEFAULT], labels)
        asked = {name: (_only(needed, given), outputs) for name, given in signatures.items()}
        if not asked[DEFAULT][0]:
            raise UsageError(
                f"model_fn of {model.name}: the predictions depend on no feature, so there is nothing to ask"
            )
        return ServingGraph(graph, asked, left_out, partial(training_names, model, inputs.layout))


def _of_user(model: Model) -> tuple[Any, Tensors]:
    what = f"serving_input_fn of {model.name}"
    assert model.serving_input_fn
    with blame(what):
        made = model.serving_input_fn()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping) and made[1]):
        raise UsageError(f"{what} must return (features, tensors that are given, by name), got {made!r:.200}")
    for name, tensor in made[1].items():
        if not isinstance(tensor, tf1.Tensor | tf1.SparseTensor):
            raise UsageError(f"{what}: {name} must be a placeholder, got {type(tensor).__name__}")
    return made[0], dict(made[1])


def _with_examples(model: Model, features: Any, used: Container[str] | None) -> tuple[dict[str, Tensors], Any, str]:
    """(inputs by signature, features that may be fed in both ways, why only in one)."""
    what = f"input_fn of {model.name}"
    named = {name: t for name, t in named_tensors(FEATURES, features, what).items() if used is None or name in used}
    layout, why = {}, ""
    for name, tensor in named.items():
        if isinstance(tensor, tf.RaggedTensor) and used is not None:
            raise UsageError(f"{what}: feature {name} is ragged, which no signature has; write a serving_input_fn")
        is_dense = isinstance(tensor, tf1.Tensor) and tensor.shape.rank
        if not is_dense or not tensor.shape[1:].is_fully_defined():
            why = f"feature {name} is sparse, a scalar or of a shape that is not known"
        elif (as_stored := _stored(tensor.dtype)) is None:
            why = f"feature {name} is {tensor.dtype.name}, which a tf.Example cannot store"
        else:
            layout[name] = tf1.io.FixedLenFeature(tensor.shape[1:].as_list(), as_stored)
    if why:
        return {DEFAULT: named}, features, why
    examples = tf1.placeholder(tf1.string, [None], name=EXAMPLES)
    parsed = tf1.io.parse_example(examples, layout)
    either = {}
    for number, (name, t) in enumerate(named.items()):
        default = tf1.cast(parsed[name], t.dtype)
        either[name] = tf1.placeholder_with_default(default, [None, *t.shape[1:]], name=f"given_{number}")
    packed = tf.nest.pack_sequence_as(features, [either.get(name, t) for name, t in _paths(FEATURES, features)])
    return {DEFAULT: either, OF_EXAMPLES: {EXAMPLES: examples}}, packed, ""


def _stored(dtype: DType) -> DType:
    """The dtype in which a tf.Example stores it; None if it cannot."""
    if dtype == tf1.string:
        return tf1.string
    if dtype.is_integer or dtype.is_bool:
        return tf1.int64
    return tf1.float32 if dtype.is_floating else None


def predictions_of(model: Model, spec: ModelSpec) -> Tensors:
    """The predictions by name."""
    what = f"model_fn of {model.name}"
    if spec.predictions is None:
        raise UsageError(
            f"{what} returns no predictions, which are what a served model is asked for: give "
            "ModelSpec(predictions=...)"
        )
    outputs = named_tensors(PREDICTIONS, spec.predictions, what)
    for name, each in outputs.items():
        if isinstance(each, tf.Variable):
            outputs[name] = tf1.convert_to_tensor(each)
        elif not isinstance(each, tf1.Tensor | tf1.SparseTensor):
            raise UsageError(f"{what}: {name} must be a dense or sparse tensor, got {type(each).__name__}")
    return outputs


def _require_given(model: Model, needed: set[Op], given: Tensors, labels: Any) -> None:
    """Raises UsageError if predictions depend on labels, or on other placeholders than the inputs."""
    known = {part.op for tensor in given.values() for part in parts_of(tensor)}
    of_labels = {part.op for part in parts_of(labels)}
    for op in needed - known:
        if op in of_labels:
            raise UsageError(f"model_fn of {model.name}: the predictions depend on the labels, which a server has not")
        if op.type == "Placeholder" and op.name != EXAMPLES:
            raise UsageError(
                f"model_fn of {model.name}: the predictions depend on placeholder {op.name}, which is not given"
            )


def _only(needed: set[Op], tensors: Tensors) -> Tensors:
    """The tensors on which predictions depend."""
    return {name: tensor for name, tensor in tensors.items() if any(part.op in needed for part in parts_of(tensor))}


def parts_of(structure: Any) -> list[Tensor]:
    """Its dense tensors."""
    return [t for t in tf.nest.flatten(structure, expand_composites=True) if isinstance(t, tf1.Tensor)]


def named_tensors(name: str, structure: Any, what: str) -> Tensors:
    """Tensors by name: those of a mapping by its keys, of a sequence by their numbers, deeper ones by both."""
    named: Tensors = {}
    for path, leaf in _paths(name, structure):
        if path in named:
            raise UsageError(f"{what}: two tensors would both be called {path}; give one of them another name")
        named[path] = leaf
    return named


def _paths(name: str, structure: Any, is_top: bool = True) -> Iterator[tuple[str, Any]]:
    """(name, leaf) of a structure, in the order of tf.nest."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _paths(f"{key}" if is_top else f"{name}_{key}", structure[key], False)
    elif isinstance(structure, list | tuple):
        for number, each in enumerate(structure):
            yield from _paths(f"{name}_{number}", each, False)
    else:
        yield name, structure
