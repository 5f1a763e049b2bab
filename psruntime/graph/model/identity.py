"""Extracts from a model the facts that identify it, besides its variables (core/plan/identity.py).

An optimizer is described by its class and the constants that it keeps as attributes.  A tensor that it makes of the
learning rate, such as `0.1 * rate`, is described by its operations and constants.  Nothing that is described depends on
the process: no addresses, no lines, no names of functions.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.config.settings import value_text
from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.core.plan.identity import (
    PROTOCOL,
    PSRUNTIME,
    SPEAKS,
    TENSORFLOW,
    ModelIdentity,
    differences,
    in_a_line,
)
from psruntime.errors import UsageError
from psruntime.graph.base.types import Op, Optimizer, Tensor, Variable
from psruntime.graph.buckets.optimizers import EVERY, Rule, make_optimizer, rules_of
from psruntime.model import Model, ModelSpec

FUNCTION = "a function"
SET = "--set "  # and the name of a parameter
MOST_CHARS = 1000  # of a value, without its digest
MOST_ENTRIES = 64  # of a constant array
MOST_DEPTH = 6  # of a tensor's operations
_TRACKING = ("_self_", "_keras_")  # attributes that TensorFlow itself adds to objects


def identity_of(
    spec: ModelSpec,
    model: Model,
    constraints: Mapping[str, Callable[[Variable], Tensor]] | None = None,
    aggregations: Mapping[str, str] | None = None,
) -> ModelIdentity:
    """The identity of the ModelSpec with mode "train".  constraints, aggregations: of variables, by name."""
    facts = [*versions(), *_params(model)]
    facts += [fact for rule in rules_of(spec, f"model_fn of {model.name}") for fact in _of_rule(rule)]
    facts += [(name, repr(float(limit))) for name, limit in _limits(spec) if limit is not None]
    facts += [(name, "given") for name in ("examples", "updates") if getattr(spec, name) is not None]
    facts += [(f"constraint of {name}", _described(each)) for name, each in sorted((constraints or {}).items())]
    facts += [(f"aggregation of {name}", kind) for name, kind in sorted((aggregations or {}).items())]
    rules = rules_of(spec, "")
    if [rule.pattern for rule in rules] != [EVERY]:
        facts.append(("order of the optimizers", ", ".join(f"'{rule.pattern}'" for rule in rules)))
    return ModelIdentity(tuple((name, clipped(value)) for name, value in facts), *text_of(model.name))


def other_params(model: Model, path: str) -> str:
    """How the parameters of a model differ from those of the checkpoint `path`; empty if no difference is known."""
    try:
        state = SavedState.of_text(Path(path + SUFFIX).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # of stock TensorFlow, or removed meanwhile
        return ""
    if state.identity is None:
        return ""
    theirs = tuple((name, value) for name, value in state.identity.facts if name.startswith(SET))
    ours = tuple((name, clipped(value)) for name, value in _params(model))
    return in_a_line(differences(ModelIdentity(ours), ModelIdentity(theirs), "the checkpoint"))


def _params(model: Model) -> list[tuple[str, str]]:
    return [(f"{SET}{name}", value_text(value)) for name, value in model.params]


def versions() -> list[tuple[str, str]]:
    """The versions that every process of a job has."""
    package = sys.modules[__package__.partition(".")[0]]  # rooms import nothing from above them
    return [(PSRUNTIME, package.__version__), (TENSORFLOW, tf.__version__), (PROTOCOL, SPEAKS)]


def _limits(spec: ModelSpec) -> list[tuple[str, float | None]]:
    return [("clip_norm", spec.clip_norm), ("clip_value", spec.clip_value)]


def _of_rule(rule: Rule) -> Iterator[tuple[str, str]]:
    of = "" if rule.pattern == EVERY else f" of '{rule.pattern}'"
    rate = rule.learning_rate
    with tf1.Graph().as_default():
        try:
            optimizer = make_optimizer(rule, tf1.placeholder(tf1.float32, [], name="learning_rate"))
        except UsageError:  # it needs tensors of the model's graph
            yield f"optimizer{of}", FUNCTION
        else:
            kind = type(optimizer).__name__
            yield f"optimizer{of}", kind
            if slots := _slots_of(optimizer):
                yield f"slots of optimizer {kind}{of}", slots
            for name, value in _constants(optimizer):
                yield f"optimizer {kind}{of}, {name}", value
    yield f"learning_rate{of}", _described(rate) if callable(rate) else repr(float(rate))


def _slots_of(optimizer: Optimizer) -> str:
    """Names of its slots for a variable; empty if it has none, or that cannot be tried here."""
    try:
        optimizer._create_slots([tf1.get_variable("variable", [2, 2], use_resource=True)])
        return ", ".join(sorted(optimizer.get_slot_names()))
    except Exception:  # noqa: BLE001 - an optimizer of the user's; its update raises what is wrong with it
        return ""


def _constants(holder: object) -> Iterator[tuple[str, str]]:
    attributes = getattr(holder, "__dict__", {})
    for name, value in sorted(attributes.items()):
        text = None if name.startswith(_TRACKING) else _constant(value)
        if text is not None:
            public = name.lstrip("_")
            yield name if public in attributes else public, text


def _constant(value: object) -> str | None:
    """The value of a constant as text; None if it is none, or its value is unknown."""
    if isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, np.generic | np.ndarray):
        return repr(value.tolist()) if value.size <= MOST_ENTRIES and value.dtype != object else None
    if isinstance(value, tf1.Tensor):
        return Expressions().of(value)
    if isinstance(value, tf1.train.Optimizer):
        return _described(value)
    if isinstance(value, tuple | list) and value:
        texts = [_constant(each) for each in value]
        return f"[{', '.join(text for text in texts if text)}]" if None not in texts else None
    return None


class Expressions:
    """The expressions of tensors, as text: constants, and the types of operations.

    ends: the name of an operation at which the text ends; empty: its inputs are described too.
    """

    def __init__(self, ends: Callable[[Op], str] = lambda _: "") -> None:
        self._ends = ends
        self._known: dict[tuple[Any, int], str] = {}

    def of(self, tensor: Tensor, depth: int = MOST_DEPTH) -> str:
        """The text of a tensor: at most MOST_CHARS, and the digest of what is beyond them."""
        key = tensor.ref(), depth
        if key not in self._known:
            self._known[key] = clipped(self._text(tensor, depth))
        return self._known[key]

    def _text(self, tensor: Tensor, depth: int) -> str:
        if end := self._ends(tensor.op):
            return end
        constant = tf.get_static_value(tensor)
        if constant is not None and constant.size <= MOST_ENTRIES:
            return str(constant if constant.ndim == 0 else constant.tolist())
        op = tensor.op
        if op.type == "Placeholder":
            return str(op.name) if op.name == "learning_rate" else "a placeholder"
        if op.type in ("Identity", "Cast", "ReadVariableOp") and op.inputs and depth:
            return self.of(op.inputs[0], depth - 1)
        inputs = ", ".join(self.of(each, depth - 1) for each in op.inputs) if depth else "..."
        return f"{op.type}({inputs})"


def _described(value: object) -> str:
    """An object by its class and constants; a function, or an object that has one, by its kind."""
    if isinstance(value, type) or type(value).__module__ in ("builtins", "functools"):
        return FUNCTION
    constants = ", ".join(f"{name}={text}" for name, text in _constants(value))
    return f"{type(value).__name__}({constants})" if isinstance(value, tf1.train.Optimizer) else type(value).__name__


def text_of(module: str) -> tuple[str, str]:
    """(the file of a module, a digest of its content); both empty where there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return (file, _digest(Path(file).read_bytes())) if file else ("", "")
    except OSError:
        return "", ""


def clipped(value: str) -> str:
    """A value of a fact: printable, and with a digest in place of what is too long."""
    text = "".join(c if c.isprintable() else " " for c in value)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
