"""A small model for every way of making and reading variables trains like plain TensorFlow, variables and slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.buckets.optimizers import rule_of, rules_of
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model, ModelSpec
from tests.graph.model.table_models import TABLE
from tests.support.local_cluster import LocalCluster, train
from tests.support.selection import long_but
from tests.support.small_models import model_of

STEPS = 6
CONTEXT = Context("train", 0, 1, 8, "", 3)
QUICK = [  # of each kind of making, reading and training variables the way that asks for most
    "partitioned table", "Keras model with batch norm", "lookup in a while v2", "optimizers by pattern",
]  # fmt: skip


@pytest.mark.parametrize("way", long_but(QUICK, TABLE))
def test_trains_like_plain_tensorflow(way: str, tmp_path: Any) -> None:
    model = model_of(TABLE[way])
    run = train(LocalCluster(2), model, STEPS, slice_bytes=16, checkpoint_dir=str(tmp_path))
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    expected = plain_tensorflow(model)
    partitions = run.graph.model.captured.partitions
    names = {partitions[s.name].whole if s.name in partitions else s.name for s in run.graph.plan.specs}
    assert names <= set(expected)
    for name, value in expected.items():
        if not name.endswith("_power"):  # once per variable with us
            np.testing.assert_allclose(reader.get_tensor(name), value, rtol=2e-6, atol=2e-6, err_msg=name)
    assert not run.graph.unmoved


def plain_tensorflow(model: Model) -> dict[str, Any]:
    """Every global variable after the steps, as the checkpoint of a plain run has it."""
    inputs = InputStream(model, CONTEXT)
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        with tf1.variable_creator_scope(as_in_tf1):
            spec = model.model_fn(features, labels, "train")
        rules = rules_of(spec, "model_fn")
        rates = tf1.placeholder(tf1.float32, [len(rules)])
        step = tf1.train.get_or_create_global_step()
        pairs = [
            (gradient, variable)
            for variable, gradient in zip(
                tf1.trainable_variables(), tf1.gradients(spec.loss, tf1.trainable_variables()), strict=True
            )
            if gradient is not None
        ]
        of_rule = [[p for p in pairs if rule_of(p[1].op.name, rules) == n] for n in range(len(rules))]
        with tf1.control_dependencies(updates_of(spec, batch)):
            applied = [rule.factory(rates[n]).apply_gradients(of_rule[n]) for n, rule in enumerate(rules) if of_rule[n]]
        with tf1.control_dependencies(applied):
            counted = step.assign_add(1)
        init = [tf1.local_variables_initializer(), tf1.tables_initializer()]
        definition = graph.as_graph_def()
        early = [
            v.initializer for v in tf1.global_variables() if not needed(definition, v.initializer, "ReadVariableOp")
        ]
        late = [v.initializer for v in tf1.global_variables() if v.initializer not in early]
        variables = dict(whole_variables())
    with tf1.Session(graph=graph) as session:
        session.run([init, early])
        session.run(late)  # what is computed from other variables
        for number in range(STEPS):
            values = [
                rule.learning_rate(number) if callable(rule.learning_rate) else rule.learning_rate for rule in rules
            ]
            session.run(counted, {rates: values, **dict(zip(batch, inputs.draw_endlessly(), strict=True))})
        return dict(session.run(variables))


def as_in_tf1(next_creator: Callable[..., Any], **settings: Any) -> Any:
    """A resource variable with the method that only TF1's own kind has."""
    variable = next_creator(**settings)
    variable.initialized_value = lambda: variable.initial_value
    return variable


def updates_of(spec: ModelSpec, batch: list[Any]) -> list[Any]:
    """Those that can be run: Keras lists some for its symbolic inputs, which nobody feeds."""
    given = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS) if spec.updates is None else spec.updates
    definition = tf1.get_default_graph().as_graph_def()
    fed = {tensor.op.name for tensor in batch}

    operations = [getattr(update, "op", update) for update in given]
    return [op for op in operations if needed(definition, op, "Placeholder") <= fed]


def needed(definition: Any, op: Any, kind: str) -> set[str]:
    """The operations of a kind that this one depends on."""
    return {node.name for node in tf1.graph_util.extract_sub_graph(definition, [op.name]).node if node.op == kind}


def whole_variables() -> Any:
    """(name in a checkpoint, value) of all global variables; the parts of a partitioned one together."""
    parts: dict[str, list[Any]] = {}
    for variable in tf1.global_variables():
        info = variable._get_save_slice_info()
        if info is None:
            yield variable.op.name, variable.read_value()
        else:
            parts.setdefault(info.full_name, []).append((info, variable.read_value()))
    for name, found in parts.items():
        info = found[0][0]
        axis = next((a for a, n in enumerate(info.full_shape) if n != info.var_shape[a]), 0)
        yield name, tf1.concat([value for _, value in found], axis=axis)
