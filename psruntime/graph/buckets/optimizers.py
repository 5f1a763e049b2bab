"""The optimizers of a model: one for each bucket, chosen by the name of its variable.

Everything that belongs to a bucket stays on its ps: the optimizer's own variables, and its learning rate,
which is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.errors import UsageError
from psruntime.faults import Place, blame
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Optimizer, Tensor, Variable
from psruntime.graph.buckets.update_rules import momentum_of, subtracted, take_unique_rows
from psruntime.model import ModelSpec
from psruntime.optimizers import GroupFtrl, LazyAdam, RowwiseAdagrad

EVERY = "*"
# Their updates treat every entry alike and by itself, so a variable may be sliced and flattened under them.
ELEMENT_WISE = (
    tf1.train.GradientDescentOptimizer,
    tf1.train.MomentumOptimizer,
    tf1.train.AdamOptimizer,
    tf1.train.AdagradOptimizer,
    tf1.train.AdadeltaOptimizer,
    tf1.train.RMSPropOptimizer,
    tf1.train.FtrlOptimizer,
    tf1.train.ProximalGradientDescentOptimizer,
    tf1.train.ProximalAdagradOptimizer,
    LazyAdam,
)
# Row-wise: they treat every row alike and by itself, but need all of it.  Rows of tables may be spread under them,
# dense variables stay whole.
ROW_WISE = (RowwiseAdagrad, GroupFtrl)
KNOWN = (*ELEMENT_WISE, *ROW_WISE)
OF_SUMS = (tf1.train.FtrlOptimizer, tf1.train.AdagradDAOptimizer, GroupFtrl)


@dataclass(frozen=True)
class Rule:
    """Variables whose name matches `pattern` are updated by what `factory` makes, at this learning rate."""

    pattern: str
    factory: Callable[[Tensor], Optimizer]
    learning_rate: float | Callable[[int], float]


def rules_of(spec: ModelSpec, where: str) -> list[Rule]:
    """The rules of a spec, in the order in which they are tried.

    Raises:
        UsageError: the spec's optimizer or learning_rate is not what it must be; `where` is its model_fn.
    """
    factories = spec.optimizer if isinstance(spec.optimizer, Mapping) else {EVERY: spec.optimizer}
    rates = (
        spec.learning_rate if isinstance(spec.learning_rate, Mapping) else dict.fromkeys(factories, spec.learning_rate)
    )
    rules = []
    for pattern, factory in factories.items():
        if factory is None or not callable(factory):
            raise UsageError(f"{where}: optimizer must be a class or function that makes one, got {factory!r}")
        if pattern in rates:
            rules.append(Rule(pattern, factory, rates[pattern]))
        else:
            raise UsageError(f"{where}: learning_rate has no entry for the optimizer of '{pattern}'")
    for pattern, rate in rates.items():
        if pattern not in factories:
            raise UsageError(f"{where}: learning_rate has an entry for '{pattern}', for which there is no optimizer")
        if isinstance(rate, tf1.Tensor | tf.Variable):
            raise UsageError(
                f"{where}: learning_rate is a tensor ({rate.name}); give a number or a Python function "
                "of the global step, for example lambda step: 0.1 * 0.96 ** (step / 1000)"
            )
        if not callable(rate) and (isinstance(rate, bool) or not isinstance(rate, int | float)):
            raise UsageError(f"{where}: learning_rate must be a number or a function of the global step, got {rate!r}")
    return rules


def rule_of(variable: str, rules: list[Rule]) -> int:
    """The number of the first rule that matches.

    Raises:
        UsageError: none does.
    """
    for number, rule in enumerate(rules):
        if fnmatchcase(variable, rule.pattern):
            return number
    raise UsageError(
        f"no pattern of ModelSpec.optimizer matches variable {variable}: {', '.join(r.pattern for r in rules)}; "
        "end the mapping with '*'"
    )


def groups_of(sparse: Mapping[str, bool], rules: list[Rule]) -> dict[str, int]:
    """Variable -> number of its rule from 1, if that is known to be element-wise, or of a sparse one row-wise; else 0.

    sparse: variable -> whether its gradients name rows.  Makes each optimizer once, in the current graph.

    Raises:
        UsageError: no optimizer for a variable, or it cannot be used.
    """
    rate = tf1.placeholder(tf1.float32, [])
    kinds = [type(make_optimizer(rule, rate)) for rule in rules]
    number_of = {name: rule_of(name, rules) for name in sparse}
    for number, rule in enumerate(rules):
        if kinds[number] not in KNOWN and list(number_of.values()).count(number) > 1 and _looks_across(rule):
            raise UsageError(
                f"optimizer {_kind(rule)} updates a variable by the gradients of others too, which are on other ps; "
                "clip all gradients together with ModelSpec.clip_norm, or give each variable an update of its own"
            )

    def group(name: str, number: int) -> int:
        return number + 1 if kinds[number] in (KNOWN if sparse[name] else ELEMENT_WISE) else 0

    return {name: group(name, number) for name, number in number_of.items()}


def learning_rates_at(rules: list[Rule], global_step: int) -> list[float]:
    """The learning rate of each rule for the update that follows this global step.

    Raises:
        UserCodeError: the user's function failed.
    """
    rates = [rule.learning_rate for rule in rules]
    with blame("learning_rate", place=Place.RATE):
        return [float(rate(global_step) if callable(rate) else rate) for rate in rates]


class BucketOptimizer:
    """The optimizer of one bucket, on its ps.

    number: of its rule.  learning_rate: as it was given.  variables: its own, complete once the update is built.
    momentum: that the workers apply; None: they apply none.
    """

    def __init__(
        self, rules: list[Rule], bucket: Bucket, learning_rates: Sequence[Tensor], sparsified: bool = False
    ) -> None:
        """learning_rates: float32 [] of each rule, on the ps.  sparsified: whether workers send the largest entries."""
        self._bucket = bucket
        self.number = rule_of(bucket.variable, rules)
        self._rule = rules[self.number]
        self.learning_rate = learning_rates[self.number]
        self.variables: list[Variable] = []
        with tf1.device(ps_device(bucket.ps)), self._recorded():
            self._optimizer = make_optimizer(self._rule, self.learning_rate)
            if type(self._optimizer) in KNOWN:
                take_unique_rows(self._optimizer)
        self.momentum = momentum_of(self._optimizer) if sparsified else None

    @property
    def is_by_entry(self) -> bool:
        """Whether a gradient that names entries of a flat master changes no others: Adam moves all in every update."""
        return type(self._optimizer) in ELEMENT_WISE and type(self._optimizer) is not tf1.train.AdamOptimizer

    @property
    def kind(self) -> str:
        return type(self._optimizer).__name__

    @property
    def is_of_sums(self) -> bool:
        """Whether it computes the parameters from sums over all updates, with one learning rate for all of them."""
        return isinstance(self._optimizer, OF_SUMS)

    @property
    def passes_over_tables(self) -> bool:
        """Whether a sparse gradient makes it read and write all rows, those that have no gradient too."""
        return _passes_over_tables(self._optimizer)

    @property
    def is_by_row(self) -> bool:
        """Whether a sparse gradient changes only the rows that it names, of the master and the slots."""
        return is_by_row(self._optimizer)

    def bytes_of_all(self, master: Variable) -> int:
        """Bytes of the master and its slots."""
        slots = [variable for variable in self.variables if self.is_slot(variable, master)]
        return sum(variable.shape.num_elements() * variable.dtype.size for variable in [master, *slots])

    def apply(self, gradient: Tensor, master: Variable) -> Op:
        """An operation that updates the master by the gradient: a tensor of its shape, or IndexedSlices of its rows."""
        with self._recorded():
            if self.momentum:
                return subtracted(self._optimizer, self.learning_rate, gradient, master)
            return self._optimizer.apply_gradients([(gradient, master)])

    def fresh_row(self, master: Variable) -> list[tuple[Variable, Tensor]]:
        """(slot [rows, ...], its entries of a row that was never updated), of every slot of a master that has rows."""
        scope = f"fresh/{self._bucket.name}/"  # one name for every bucket, for variables that the optimizer has once
        with tf1.name_scope(scope), tf1.device(ps_device(self._bucket.ps)), self._recorded():
            self._optimizer._create_slots([master])
        with tf1.name_scope(f"{scope}like/"), tf1.device(ps_device(self._bucket.ps)), _recording([]):
            one_row = tf1.get_variable(f"psruntime/one_row/{self._bucket.name}", [1, *master.shape[1:]], master.dtype)
            like = make_optimizer(self._rule, self.learning_rate)
            like._create_slots([one_row])
            names = self._optimizer.get_slot_names()
            return [(self._optimizer.get_slot(master, n), like.get_slot(one_row, n).initial_value[0]) for n in names]

    def is_slot(self, variable: Variable, master: Variable) -> bool:
        """Whether one of its variables has entries for each row of the master; else it is one for all rows."""
        slots = [self._optimizer.get_slot(master, name) for name in self._optimizer.get_slot_names()]
        if any(slot is variable for slot in slots) and variable.shape[:1] == master.shape[:1]:
            return True
        return bool(variable.shape.rank != 0 and variable.shape == master.shape)

    def _recorded(self) -> AbstractContextManager[None]:
        """Variables made meanwhile are the optimizer's own, also those that its `variables()` leaves out."""
        return _recording(self.variables)


def is_by_row(optimizer: Optimizer) -> bool:
    """Whether it is known of an optimizer that a sparse gradient changes only the rows that it names."""
    return type(optimizer) in KNOWN and not _passes_over_tables(optimizer)


def _passes_over_tables(optimizer: Optimizer) -> bool:
    """Whether it is TensorFlow's AdamOptimizer, or inherits its sparse update."""
    return getattr(type(optimizer), "_resource_apply_sparse", None) is tf1.train.AdamOptimizer._resource_apply_sparse


@contextmanager
def _recording(variables: list[Variable]) -> Iterator[None]:
    """Variables made meanwhile are in no collection of the model's, and added to `variables`.

    Its name is without guard/... or close/..., the kind of step it is made for: all modes have the same variables.
    """

    def creator(next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _, _, of_bucket = tf1.get_default_graph().get_name_scope().partition("/")
        with tf1.name_scope(f"optimizer/{of_bucket}/") if of_bucket else nullcontext():
            variable = next_creator(**{**kwargs, "use_resource": True, "collections": [], "trainable": False})
        variables.append(variable)
        return variable

    with tf1.variable_creator_scope(creator):
        yield


def _looks_across(rule: Rule) -> bool:
    """Whether the update of one variable reads the gradient of another; tried with two variables."""
    with tf1.Graph().as_default() as graph:
        optimizer = make_optimizer(rule, tf1.placeholder(tf1.float32, []))
        variables = [tf1.get_variable(f"variable_{i}", [2, 2], use_resource=True) for i in range(2)]
        gradients = [tf1.placeholder(tf1.float32, [2, 2]) for _ in variables]
        before = set(graph.get_operations())
        try:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        except Exception:  # noqa: BLE001 - what it needs is not here; its real update raises more
            return False
        made = [op for op in graph.get_operations() if op not in before]
        for variable, other in zip(variables, reversed(gradients), strict=True):
            updates = [op for op in made if any(tensor is variable.handle for tensor in op.inputs)]
            if other.op in ancestors(updates, data_only=True):
                return True
    return False


def _kind(rule: Rule) -> str:
    with tf1.Graph().as_default():
        return type(make_optimizer(rule, tf1.placeholder(tf1.float32, []))).__name__


def make_optimizer(rule: Rule, learning_rate: Tensor) -> Optimizer:
    """A `tf.compat.v1.train.Optimizer` with this learning rate, float32 [], in the current graph.

    Raises:
        UsageError: the rule's factory fails, or makes what cannot be used.
    """
    with blame("ModelSpec.optimizer" + (f" of '{rule.pattern}'" if rule.pattern != EVERY else "")):
        optimizer = rule.factory(learning_rate)
    kind = type(optimizer).__name__
    if isinstance(optimizer, tf1.train.SyncReplicasOptimizer):
        raise UsageError("optimizer made a SyncReplicasOptimizer; give the optimizer inside it, and run the job with "
                         "--mode sync")  # fmt: skip
    if not isinstance(optimizer, tf1.train.Optimizer):
        raise UsageError(
            f"optimizer made {kind}; it must make a tf.compat.v1.train.Optimizer, "
            "for example optimizer=tf1.train.AdamOptimizer"
        )
    for method in ("minimize", "compute_gradients"):
        if getattr(type(optimizer), method) is not getattr(tf1.train.Optimizer, method):
            raise UsageError(
                f"optimizer {kind} has a {method} of its own, which is not called here: gradients are taken on the "
                "worker and applied on the ps; use ModelSpec.clip_norm or clip_value, change the loss, or change the "
                "gradients in apply_gradients"
            )
    return optimizer
