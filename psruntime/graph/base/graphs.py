"""Graphs: one in which each worker draws random numbers of its own, walks over one, and a second copy of a part of one.

TensorFlow combines the seed of an operation with that of its graph once, when the operation is made.  So the graph of a
worker moves its seed by the worker's index, and a copy of a part of the graph moves the seed of each operation in it.

A part is copied with other inputs: what runs once a mini-batch is built once and copied.  Only operations that may have
another result are copied: those that depend on a changed input, keep state or draw random numbers.  All others are
shared, and so are variables and other resources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import tensorflow.compat.v1 as tf1
from tensorflow.python.util import _pywrap_determinism

from psruntime.graph.base.types import Graph, Op, Proto, Tensor

DEFAULT_SEED = 87654321  # of a graph whose seed is not set: tensorflow/python/framework/random_seed.py
SPACE = 2**31 - 1  # seeds are below it
STRIDE = 1_000_003  # a prime, so that the seeds of two workers meet for far apart indices only


def is_deterministic() -> bool:
    """Whether TF_DETERMINISTIC_OPS asks for deterministic operations: each that draws numbers needs a seed then."""
    return bool(_pywrap_determinism.is_enabled())


def model_graph() -> Graph:
    """A graph for a model; its operations have seeds if they need any."""
    graph = tf1.Graph()
    if is_deterministic():
        graph.seed = DEFAULT_SEED
    return graph


class WorkerGraph(tf1.Graph):  # type: ignore[misc]
    """A graph in which worker `index` draws numbers of its own.

    Every seed of an operation is combined with that of its graph, so the graph's is moved by the index.
    Worker 0 draws what plain TensorFlow draws.  Initial values are the same on every worker.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index
        self.seed = DEFAULT_SEED if is_deterministic() else None

    @property
    def seed(self) -> int | None:
        given: int | None = self._seed
        if self._index == 0:
            return given
        return ((DEFAULT_SEED if given is None else given) + self._index * STRIDE) % SPACE

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seed = seed

    @contextmanager
    def initial_values(self) -> Iterator[None]:
        """While open, operations are seeded as on worker 0."""
        index, self._index = self._index, 0
        try:
            yield
        finally:
            self._index = index


def as_on_worker_0() -> AbstractContextManager[None]:
    """While open, operations of the current graph are seeded as on worker 0."""
    graph = tf1.get_default_graph()
    return graph.initial_values() if isinstance(graph, WorkerGraph) else nullcontext()


class _Reseeded:
    """Copy `number` of functions, from those of a graph's `library`, FunctionDefLibrary.

    functions: those that had to be copied, for the library of the copied part.
    """

    def __init__(self, library: Proto, number: int) -> None:
        self._definitions: Mapping[str, Proto] = {f.signature.name: f for f in library.function}
        self._number = number
        self._names: dict[str, str] = {}  # function -> its copy, or itself if it draws nothing
        self.functions: list[Proto] = []

    def reseed(self, node: Proto) -> bool:
        """Changes a NodeDef that draws numbers, or calls a function that does; returns whether it was changed."""
        changed = False
        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):  # 0 and 0: no seed was given
            node.attr["seed2"].i = (node.attr["seed2"].i + self._number * STRIDE) % SPACE
            changed = True
        for value in node.attr.values():
            for function in [value.func] if value.HasField("func") else value.list.func:
                copied = self._copied(function.name)
                changed |= copied != function.name
                function.name = copied
        if node.op in self._definitions:
            copied = self._copied(node.op)
            changed |= copied != node.op
            node.op = copied
        return changed

    def _copied(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = name  # one that calls itself, meanwhile
            if name in self._definitions:
                copy = type(self._definitions[name])()
                copy.CopyFrom(self._definitions[name])
                if sum(self.reseed(node) for node in copy.node_def):
                    copy.signature.name = self._names[name] = f"{name}_minibatch_{self._number}"
                    self.functions.append(copy)
        return self._names[name]


def ancestors(
    of: Iterable[Tensor | Op], stops_at: Callable[[Op], bool] = lambda _: False, data_only: bool = False
) -> set[Op]:
    """The operations of these tensors and operations, and all that run before them.

    stops_at: whether to leave out an operation, and with it what only it depends on.
    data_only: whether to leave out control inputs, which run before but give no value.
    """
    found: set[Op] = set()
    waiting: list[Op] = [getattr(each, "op", each) for each in of]
    while waiting:
        op = waiting.pop()
        if op in found or stops_at(op):
            continue
        found.add(op)
        waiting += [tensor.op for tensor in op.inputs]
        waiting += [] if data_only else op.control_inputs
    return found


LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})
READS = LOOKUPS | {"ReadVariableOp", "VarIsInitializedOp"}
_PASSED_ON = frozenset({"Identity", "IdentityN", "Switch", "Merge", "Enter", "Exit", "NextIteration"})
_PASSED_ON |= {f"Ref{kind}" for kind in _PASSED_ON}  # of variables of the old kind


@dataclass(frozen=True)
class Use:
    """kind: the type of the operation.  operation: its name, or that of the one that calls the function it is in."""

    kind: str
    operation: str

    @property
    def changes(self) -> bool:
        """Whether it may write to the variable."""
        return self.kind not in READS


def uses_of(handle: Tensor, but: Collection[str] = ()) -> list[Use]:
    """The uses of a variable's handle, resource [], or reference, without the operations that are named in `but`."""
    found: list[Use] = []
    seen: set[int] = set()
    waiting: list[tuple[Tensor, str]] = [(handle, "")]
    while waiting:
        tensor, caller = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        for op in tensor.consumers():
            name = caller or op.name
            if name in but:
                continue
            bodies = _bodies(op)
            if op.type in _PASSED_ON:
                waiting += [(output, caller) for output in op.outputs if output.dtype == handle.dtype]
            elif bodies:
                waiting += [(inner, name) for body in bodies for inner in _within(op, tensor, body)]
            else:
                found.append(Use(op.type, name))
    return found


def inner_ops(op: Op) -> list[Op]:
    """The operations of the functions that an operation calls, and of those that these call."""
    within = [inner for body in _bodies(op) for inner in body.get_operations()]
    return within + [deeper for inner in within for deeper in inner_ops(inner)]


def _bodies(op: Op) -> list[Graph]:
    """The graphs of the functions that an operation calls."""
    names = [
        function.name
        for attribute in op.node_def.attr.values()
        for function in (attribute.func, *attribute.list.func)
        if function.name
    ]
    functions = [op.graph._get_function(name) for name in names]
    return [function.graph for function in functions if function is not None]


def _within(op: Op, tensor: Tensor, body: Graph) -> list[Tensor]:
    """The tensor inside the function: the last inputs of an operation are the last arguments of its functions."""
    offset = len(op.inputs) - len(body.inputs)
    return [body.inputs[i - offset] for i, given in enumerate(op.inputs) if given is tensor and i >= offset]


AFTER = "psruntime/after"  # the stand-in for the operation that has to run before, in a copied definition
TABLES = ("MutableDenseHashTable", "MutableDenseHashTableV2")  # resources that take inputs


class Subgraph:
    """The operations from `inputs`, tensors, to `targets`, tensors and operations, of which each copy has its own.

    boundary: operations at which the part ends on the other side.
    """

    def __init__(self, inputs: Iterable[Tensor], targets: Iterable[Tensor | Op], boundary: Iterable[Op]) -> None:
        self._inputs = list(inputs)
        ends = {tensor.op for tensor in self._inputs} | set(boundary)
        candidates = ancestors(targets, ends.__contains__)
        self._operations = _changing({tensor.op for tensor in self._inputs}, candidates)
        self._library = tf1.get_default_graph().as_graph_def().library  # once: it takes all of the graph

    def __contains__(self, operation: Op) -> bool:
        """Whether each copy has its own of this operation."""
        return operation in self._operations

    def copy(
        self, number: int, inputs: Iterable[Tensor], after: Op, moved: Callable[[str], str] = lambda device: device
    ) -> Copy:
        """Copy `number`, from 1, that reads `inputs` and starts when operation `after` has run.

        Its random operations draw numbers of their own.  moved: returns the device of a copied operation from that of
        the original; operations on a variable or another resource stay on its device.

        Raises:
            ValueError: TensorFlow cannot import the definition of the part.
        """
        given = dict(zip(self._inputs, inputs, strict=True))
        definition, outer = tf1.GraphDef(), {f"^{AFTER}": _waited_for(after)}
        reseeded = _Reseeded(self._library, number)
        for op in self._operations:
            node = definition.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)
            if all(tensor.dtype != tf1.resource for tensor in op.inputs):
                node.device = moved(node.device)
            if "frame_name" in node.attr:  # distinguishes loops that run beside each other
                node.attr["frame_name"].s += b"/minibatch_%d" % number
            reseeded.reseed(node)
            outer.update({t.name: given.get(t, t) for t in op.inputs if t.op not in self._operations})
            outer.update({f"^{c.name}": _waited_for(c) for c in op.control_inputs if c not in self._operations})
            if not any(each in self._operations for each in [*(t.op for t in op.inputs), *op.control_inputs]):
                node.input.append(f"^{AFTER}")
        definition.library.function.extend(reseeded.functions)
        operations = list(self._operations)
        used = {_as_input(name) for node in definition.node for name in node.input}
        with tf1.device(None), tf1.control_dependencies(None):
            copies = tf1.import_graph_def(
                definition,
                input_map={name: tensor for name, tensor in outer.items() if _as_input(name) in used},
                return_elements=[op.name for op in operations],
                name=f"minibatch_{number}",
            )
        for operation, copy in zip(operations, copies, strict=True):
            for tensor, copied in zip(operation.outputs, copy.outputs, strict=True):
                copied.set_shape(tensor.shape)  # a shape that the model set in Python is not in the definition
        return Copy(dict(zip(operations, copies, strict=True)), given)


class Copy:
    """Maps the originals of a subgraph to their copies."""

    def __init__(self, operations: Mapping[Op, Op], inputs: Mapping[Tensor, Tensor]) -> None:
        self._operations = operations
        self._inputs = inputs

    def of(self, original: Tensor | Op) -> Tensor | Op:
        """The copy of a tensor or an operation; itself if it is shared."""
        if original in self._inputs:
            return self._inputs[original]
        if not isinstance(original, tf1.Tensor):
            return self._operations.get(original, original)
        copied = self._operations.get(original.op)
        return original if copied is None else copied.outputs[original.value_index]


def _waited_for(operation: Op) -> Tensor:
    """A tensor that stands for the operation where it is waited for: a mapping of inputs takes no operations."""
    if operation.outputs:
        return operation.outputs[0]
    with tf1.control_dependencies([operation]):
        return tf1.constant(0)


def _as_input(name: str) -> str:
    """How most nodes name a tensor that they read: without the number of the first output."""
    return name.removesuffix(":0")


def _changing(inputs: set[Op], candidates: set[Op]) -> dict[Op, None]:
    """The candidates that have to be copied, in the order of their making.

    A loop of the old control flow is copied whole: all of it is in one frame.
    """
    waiting = [op for op in candidates if _has_state(op) or op._get_control_flow_context() is not None]
    waiting += [user for op in inputs for tensor in op.outputs for user in tensor.consumers()]
    found: set[Op] = set()
    while waiting:
        op = waiting.pop()
        if op in found or op not in candidates or _is_resource(op):
            continue
        found.add(op)
        waiting += [user for tensor in op.outputs for user in tensor.consumers()] + op._control_outputs
    return dict.fromkeys(sorted(found, key=lambda op: op._id))


def _has_state(op: Op) -> bool:
    definition = op.op_def
    return definition is None or definition.is_stateful


def _is_resource(op: Op) -> bool:
    """Whether it is a variable, a table or the like, which is there between steps."""
    made = any(t.dtype == tf1.resource or t.dtype._is_ref_dtype for t in op.outputs)
    return op.type in TABLES or (made and not op.inputs)
