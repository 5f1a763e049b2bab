"""What the model of a script is besides its values (core/plan/identity.py), extracted from its graph.

A script does not hand over its optimizers: they are known by the operations with which they update a trainable
variable `w`.  As a rule that is one, such as `ApplyAdam`; a sparse update may be composed of several.  What they are
given has a value that the graph knows, a rate for example, or is the gradient: TensorFlow makes it in the name scope
`gradients`, and what the script does with it after that, such as clipping, is described.

No fact depends on what may differ between the workers of a job: their devices, data, batch size, variables of
their own, and operations that are no part of a step, as the chief has some.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.core.framework.variable_pb2 import VariableDef

from psruntime.classic.counting import VARIABLES, counters_of
from psruntime.core.plan.identity import PROTOCOL, PSRUNTIME, TENSORFLOW, ModelIdentity, differences, in_a_line
from psruntime.graph.base.graphs import ancestors, uses_of
from psruntime.graph.model.identity import Expressions, clipped, text_of, versions

GRADIENT = "gradient"
OF = "{of}"  # in the name of a fact, for the variables of its rule
_OF_GRADIENTS = re.compile(r"(^|/)(gradients|gradient_tape)(_\d+)?/")
_KERNEL = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]")  # an operation with which TensorFlow's optimizers update
_WRITE = re.compile(r"(Resource)?(Assign|Scatter)")
_NOT_DESCRIBED = ("indices",)

Fact = tuple[str, str]


def identity_of_script(graph: Any, counters: Collection[Any]) -> ModelIdentity:
    """Of the graph that a script has built.  counters: the operations that count its global step."""
    names = {key: [v.op.name for v in graph.get_collection(key)] for key in (*_COLLECTIONS, _LOCAL)}
    facts = [*versions(), *_facts(graph, names, counters)]
    return ModelIdentity(tuple((name, clipped(value)) for name, value in facts), *text_of("__main__"))


def identity_of_checkpoint(path: str) -> ModelIdentity | None:
    """Of the script that wrote a checkpoint, by the graph beside it; without what that does not tell, the versions of
    psruntime and of the protocol.  None: there is no graph, or none that this process can read."""
    with suppress(Exception), tf1.Graph().as_default() as graph:  # it has the script's own operations, whatever they do
        meta = tf1.MetaGraphDef.FromString(Path(f"{path}.meta").read_bytes())
        tf1.import_graph_def(meta.graph_def, name="")
        kept = {key: [VariableDef.FromString(b) for b in meta.collection_def[key].bytes_list.value] for key in _KEYS}
        names = {key: [_name_of_operation(each.variable_name) for each in variables] for key, variables in kept.items()}
        (step,) = kept[tf1.GraphKeys.GLOBAL_STEP]
        counters = counters_of(graph, _name_of_operation(step.variable_name), _name_of_operation(step.initializer_name))
        facts = [(TENSORFLOW, meta.meta_info_def.tensorflow_version), *_facts(graph, names, counters)]
        return ModelIdentity(tuple((name, clipped(value)) for name, value in facts))
    return None


def unlike(ours: ModelIdentity, path: str) -> str:
    """In what a script differs from the one that wrote a checkpoint; empty: in nothing that is known."""
    theirs = identity_of_checkpoint(path)
    if theirs is None:
        return ""
    return in_a_line(differences(ours.without(PSRUNTIME, PROTOCOL), theirs, "the checkpoint"))


_COLLECTIONS = (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.TRAINABLE_VARIABLES)
_LOCAL = tf1.GraphKeys.LOCAL_VARIABLES
_KEYS = (*_COLLECTIONS, _LOCAL, tf1.GraphKeys.GLOBAL_STEP)


def _facts(graph: Any, names: dict[str, list[str]], counters: Collection[Any]) -> Iterator[Fact]:
    """names: of the variables of each of _COLLECTIONS, and of _LOCAL, which belong to one worker."""
    known = {name: graph.get_operation_by_name(name) for key in _COLLECTIONS for name in names[key]}
    variables = {
        name: op
        for name, op in known.items()
        if op.type in VARIABLES and name not in names[_LOCAL] and "/job:worker" not in op.device
    }
    trainable = {name: variables[name] for name in names[_COLLECTIONS[1]] if name in variables}
    in_step = ancestors(counters)
    writes = {name: [op for op in _writes(graph, variable) if op in in_step] for name, variable in variables.items()}
    for name, variable in trainable.items():
        writes[name] += [op for op in _writes(graph, variable) if _KERNEL.match(op.type) and op not in in_step]
    scopes: dict[str, set[Any]] = {}
    for op in (op for ops in writes.values() for op in ops):
        scopes.setdefault(posixpath.dirname(op.name), set()).add(op)
    expressions = Expressions(lambda op: GRADIENT if _OF_GRADIENTS.search(op.name) else "")
    rules: dict[tuple[Fact, ...], list[str]] = {}
    for name in sorted(trainable):
        of_scopes = {posixpath.dirname(op.name): None for op in writes[name]}
        updates = sorted((op for scope in of_scopes for op in scopes[scope]), key=lambda op: str(op.name))
        if updates:
            rules.setdefault(tuple(_of_rule(updates, name, expressions)), []).append(name)
    updates_of: dict[str, list[str]] = {}
    for rule, updated in sorted(rules.items(), key=lambda each: each[0][0][1].count(",")):  # the simplest first
        of = "" if len(rules) == 1 else f" of {updated[0]}" + (f" and {len(updated) - 1} more" if updated[1:] else "")
        updates_of[of] = updated
        yield from ((name.replace(OF, of), value) for name, value in rule)
    for name, variable in sorted(variables.items()):
        shape, dtype = variable.get_attr("shape"), tf1.as_dtype(variable.get_attr("dtype"))
        dims = "" if shape.unknown_rank else ", ".join(str(dim.size) for dim in shape.dim)
        yield f"variable {name}", f"{dtype.name}[{dims}]"
    yield from ((f"variables of the optimizer{of}", ", ".join(updated)) for of, updated in updates_of.items())


def _writes(graph: Any, variable: Any) -> Iterator[Any]:
    for use in uses_of(variable.outputs[0]):
        if _KERNEL.match(use.kind) or _WRITE.match(use.kind):
            yield graph.get_operation_by_name(use.operation)


def _of_rule(updates: list[Any], variable: str, expressions: Expressions) -> Iterator[Fact]:
    """The facts of the operations that update one variable; OF in a name stands for the variables of the rule."""
    kinds = [op.type for op in updates]
    yield f"optimizer{OF}", ", ".join(kinds)
    slots = dict.fromkeys(name for op in updates for name in _variables_of(op) if name != variable)
    if slots:
        yield f"slots of the optimizer{OF}", ", ".join(sorted(name.removeprefix(f"{variable}/") for name in slots))
    for number, op in enumerate(updates):
        again = kinds[:number].count(op.type)
        kind = f"{op.type} {again + 1}" if again else op.type
        for argument, given in zip(op.op_def.input_arg, op.inputs, strict=False):
            if argument.name in _NOT_DESCRIBED or _is_variable(given):
                continue
            text = expressions.of(given)
            if argument.name == "grad" and text != GRADIENT:
                yield f"gradient{OF} for {kind}", text
            elif argument.name != "grad":
                yield f"optimizer {kind}{OF}, {argument.name}", text


def _variables_of(op: Any) -> Iterable[str]:
    return (given.op.name for given in op.inputs if _is_variable(given))


def _is_variable(tensor: Any) -> bool:
    return bool(tensor.dtype == tf1.resource or tensor.dtype._is_ref_dtype)


def _name_of_operation(name: str) -> str:
    """Of a tensor or operation, as a VariableDef names it."""
    return name.partition(":")[0]
