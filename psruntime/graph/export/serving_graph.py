"""The graph of a model that is served: from features, given as they are or as tf.Examples, to its predictions."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.ancestors import ancestors
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import EVAL, Context, Model
from psruntime.usercode import blame

FEATURES, PREDICTIONS, EXAMPLES = "features", "predictions", "examples"
DEFAULT, OF_EXAMPLES = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY, "tf_example"  # names of signatures
Tensors = dict[str, Any]


@dataclass(frozen=True)
class ServingGraph:
    """signatures: name -> (what is given, what comes of it), tensors by name.  left_out: why there is no signature
    for tf.Examples; empty if there is one.
    """

    graph: Any
    signatures: dict[str, tuple[Tensors, Tensors]] = field(default_factory=dict)
    left_out: str = ""


def build_serving_graph(model: Model, context: Context) -> ServingGraph:
    """The model with mode "eval", for batches of any size.

    The features have the layout of the data of mode "eval", unless the model module has `serving_input_fn()`, which
    returns (features, tensors that are given, by name) and makes its placeholders itself.

    Raises:
        UsageError: input_fn, serving_input_fn or model_fn fails, there are no predictions, or they need labels.
    """
    inputs = InputStream(model, context)
    inputs.close()
    whole = _build(model, inputs, None)
    if not whole.left_out:
        return _build(model, inputs, whole.signatures[DEFAULT][0])  # a tf.Example need not hold any other
    return whole


def _build(model: Model, inputs: InputStream, used: Container[str] | None) -> ServingGraph:
    """used: names of the features on which predictions depend; None: that is not known yet."""
    with tf1.Graph().as_default() as graph:
        features, labels, fed = inputs.layout.placeholders(any_size=inputs.layout.is_dense)
        if model.serving_input_fn is not None:
            features, given = _of_user(model)
            signatures, left_out = {DEFAULT: given}, "serving_input_fn says what is given"
        else:
            signatures, features, left_out = _with_examples(features, used)
        with blame(f"model_fn of {model.name} (mode {EVAL})"):
            spec = model.model_fn(features, labels, EVAL)
        outputs = _named(PREDICTIONS, spec.predictions)
        if not outputs:
            raise UsageError(
                f"model_fn of {model.name} returns no predictions, which are what a served model is asked for: give "
                "ModelSpec(predictions=...)"
            )
        only_labels = ancestors(_flat(labels))
        for name, tensor in outputs.items():
            if any(each.op in only_labels for each in fed if each.op in ancestors([tensor])):
                raise UsageError(f"model_fn of {model.name}: {name} depends on the labels, which a server has not")
        needed = ancestors(outputs.values())
        asked = {name: _only(needed, given) for name, given in signatures.items()}
        return ServingGraph(graph, {name: (given, outputs) for name, given in asked.items() if given}, left_out)


def _of_user(model: Model) -> tuple[Any, Tensors]:
    what = f"serving_input_fn of {model.name}"
    assert model.serving_input_fn
    with blame(what):
        made = model.serving_input_fn()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping) and made[1]):
        raise UsageError(f"{what} must return (features, tensors that are given, by name), got {made!r:.200}")
    return made[0], dict(made[1])


def _with_examples(features: Any, used: Container[str] | None) -> tuple[dict[str, Tensors], Any, str]:
    """(what is given for each signature, features that may be given in both ways, why only in one)."""
    named = {name: t for name, t in _paths(FEATURES, features) if used is None or name in used}
    layout, why = {}, ""
    for name, tensor in named.items():
        if not isinstance(tensor, tf1.Tensor) or not tensor.shape[1:].is_fully_defined():
            why = f"feature {name} is sparse, ragged or of a shape that is not known"
        elif (as_stored := _stored(tensor.dtype)) is None:
            why = f"feature {name} is {tensor.dtype.name}, which a tf.Example cannot hold"
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


def _stored(dtype: Any) -> Any:
    """As what a tf.Example has it; None if it cannot."""
    if dtype == tf1.string:
        return tf1.string
    if dtype.is_integer or dtype.is_bool:
        return tf1.int64
    return tf1.float32 if dtype.is_floating else None


def _only(needed: set[Any], tensors: Tensors) -> Tensors:
    """Those on which predictions depend."""
    return {name: tensor for name, tensor in tensors.items() if any(part.op in needed for part in _flat(tensor))}


def _flat(structure: Any) -> list[Any]:
    return [t for t in tf.nest.flatten(structure, expand_composites=True) if t is not None]


def _named(name: str, structure: Any) -> Tensors:
    """Tensors by name: those of a mapping by its keys, of a sequence by their numbers."""
    return {} if structure is None else dict(_paths(name, structure))


def _paths(name: str, structure: Any, is_top: bool = True) -> Iterator[tuple[str, Any]]:
    """In the order of tf.nest."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _paths(f"{key}" if is_top else f"{name}_{key}", structure[key], False)
    elif isinstance(structure, list | tuple):
        for number, each in enumerate(structure):
            yield from _paths(f"{name}_{number}", each, False)
    else:
        yield name, structure
