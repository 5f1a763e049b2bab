"""What a model does and psruntime cannot: refused in one line that names it and says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime import optimizers
from psruntime.errors import UsageError
from psruntime.model import ModelSpec
from tests.support.local_cluster import LocalCluster, train
from tests.support.small_models import get, linear, model_of


def assigned(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return ModelSpec(linear(x, kernel, y), tf1.train.AdamOptimizer, updates=[kernel.assign(kernel * 0.9)])


def scattered(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return ModelSpec(linear(x, kernel, y), tf1.train.AdamOptimizer, updates=[tf1.scatter_update(kernel, [0], [[0.0]])])


def assigned_in_a_branch(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    update = tf1.cond(tf1.reduce_sum(x) > 0, lambda: tf1.identity(kernel.assign(kernel * 0.9)), lambda: kernel * 1.0)
    return ModelSpec(linear(x, kernel, y), tf1.train.AdamOptimizer, updates=[update])


def minimized(x: Any, y: Any, _: Any) -> Any:
    loss = linear(x, get("kernel", [5, 1]), y)
    tf1.train.AdamOptimizer().minimize(loss)
    return ModelSpec(loss, tf1.train.AdamOptimizer)


def counts_the_step(x: Any, y: Any, _: Any) -> Any:
    loss = linear(x, get("kernel", [5, 1]), y)
    return ModelSpec(loss, tf1.train.AdamOptimizer, updates=[tf1.train.get_or_create_global_step().assign_add(1)])


def scheduled_in_the_graph(x: Any, y: Any, _: Any) -> Any:
    rate = tf1.train.exponential_decay(0.1, tf1.train.get_or_create_global_step(), 10, 0.9)
    return ModelSpec(linear(x, get("kernel", [5, 1]), y), lambda _: tf1.train.AdamOptimizer(rate))


def rate_is_a_variable(x: Any, y: Any, _: Any) -> Any:
    rate = tf1.get_variable("rate", initializer=0.1, trainable=False)
    return ModelSpec(linear(x, get("kernel", [5, 1]), y), tf1.train.AdamOptimizer, rate)


def by_handle(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return linear(x, tf1.raw_ops.ReadVariableOp(resource=kernel.handle, dtype=tf1.float32), y)


def constrained_table(_x: Any, y: Any, ids: Any) -> Any:
    table = get("table", [7, 4], constraint=lambda v: tf1.maximum(v, 0.0))
    return linear(tf1.gather(table, ids), get("head", [4, 1]), y)


def keras_metric(x: Any, y: Any, _: Any) -> Any:
    import tf_keras

    loss = linear(x, get("kernel", [5, 1]), y)
    mean = tf_keras.metrics.Mean(name="mean")
    return ModelSpec(loss, tf1.train.AdamOptimizer, updates=[mean.update_state(loss)])


def with_optimizer(optimizer: Any, rate: Any = 0.1) -> Any:
    return lambda x, y, _: ModelSpec(linear(x, get("kernel", [5, 1]), y), optimizer, rate)


class Damped(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return [(gradient * 0.1, variable) for gradient, variable in super().compute_gradients(*args, **kwargs)]


class Saver(tf1.train.CheckpointSaverHook):  # type: ignore[misc]
    """A hook that would save copies."""


class ByGlobalNorm(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
    def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*pairs, strict=True)
        clipped, _ = tf1.clip_by_global_norm(gradients, 1.0)
        return super().apply_gradients(list(zip(clipped, variables, strict=True)), *args, **kwargs)


def by_global_norm(x: Any, y: Any, _: Any) -> Any:
    return ModelSpec(linear(x @ get("first", [5, 5]), get("kernel", [5, 1]), y), ByGlobalNorm)


def from_a_copy(x: Any, y: Any, _: Any) -> Any:
    scale = tf1.get_variable("scale", initializer=tf1.ones([5, 1]), trainable=False)
    return linear(x * scale[:, 0], tf1.Variable(scale + 1.0, name="kernel"), y)


def recomputed(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return linear(x, tf1.recompute_grad(lambda value: value * kernel)(tf1.ones([5, 1])), y)


def changed(kind: str, dtype: Any, initial: Any = 0) -> Any:
    """A model that changes a variable with an aggregation."""

    def build(x: Any, y: Any, _: Any) -> Any:
        settings = {"trainable": False, "aggregation": getattr(tf1.VariableAggregation, kind)}
        seen = tf1.get_variable("seen", [], dtype, initializer=tf1.constant_initializer(initial), **settings)
        update = seen.assign(seen.read_value())
        return ModelSpec(linear(x, get("kernel", [5, 1]), y), tf1.train.AdamOptimizer, updates=[update])

    return build


REFUSED = {
    r"optimizer ByGlobalNorm updates a variable by the gradients of others too.*ModelSpec.clip_norm": by_global_norm,
    r"optimizer Damped has a compute_gradients of its own.*use ModelSpec.clip_norm": lambda x, y, _: ModelSpec(
        linear(x, get("kernel", [5, 1]), y), Damped),
    r"reads a variable inside a function with a gradient of its own .*value\(\) as an argument": recomputed,
    r"variable kernel is initialised from the value of variable scale, .*scale.initialized_value\(\)": from_a_copy,
    r"changes trainable variable kernel in operation Assign.*write a penalty into the loss": assigned,
    r"changes trainable variable kernel in operation ResourceScatterUpdate": scattered,
    r"changes trainable variable kernel in operation cond": assigned_in_a_branch,
    r"changes trainable variable kernel in operation Adam/.*return ModelSpec\(loss, optimizer=": minimized,
    r"changes the global step in operation .*psruntime counts it": counts_the_step,
    r"AdamOptimizer reads the global step in the graph, for variable kernel; give ModelSpec.learning_rate a Python":
        scheduled_in_the_graph,
    r"learning_rate is a tensor \(rate:0\); give a number or a Python function": rate_is_a_variable,
    r"failed at .*test_refused_models.py:\d+: TypeError: Input 'resource' of 'ReadVariableOp'": by_handle,
    r"variable table has a constraint and is looked up by rows": constrained_table,
    r"hooks has Saver, a CheckpointSaverHook, .*--checkpoint-dir and --save-steps": lambda x, y, _: ModelSpec(
        linear(x, get("kernel", [5, 1]), y), tf1.train.AdamOptimizer, hooks=[Saver("folder", save_steps=1)]),
    r"uses metric Mean of Keras at .*; use tf.metrics.mean$": keras_metric,
    r"variable ids has dtype int32; a trainable one needs one of": lambda x, y, _: linear(
        x * tf1.cast(tf1.Variable([1, 2, 3, 4, 5], name="ids"), tf1.float32), get("kernel", [5, 1]), y),
    r"variable open has shape": lambda x, y, _: linear(
        x, tf1.Variable(tf1.placeholder_with_default(tf1.ones([5, 1]), [None, 1]), name="open", validate_shape=False), y
    ),
    r"variable seen has dtype int32 and aggregation MEAN, and the model changes it; use a": changed("MEAN", tf1.int32),
    r"seen has dtype bool and aggregation SUM, and the model changes it; make it an": changed("SUM", tf1.bool, False),
    r"variable seen has dtype bool and aggregation ONLY_FIRST_REPLICA": changed("ONLY_FIRST_REPLICA", tf1.bool, False),
    r"variable seen has dtype string; a global one needs one of bool": changed("SUM", tf1.string, ""),
    r"no pattern of ModelSpec.optimizer matches variable kernel: wide/\*; end the mapping with '\*'":
        with_optimizer({"wide/*": tf1.train.FtrlOptimizer}),
    r"learning_rate has no entry for the optimizer of '\*'": with_optimizer({"*": tf1.train.FtrlOptimizer}, {"a": 1}),
    r"learning_rate has an entry for 'a', for which there is no optimizer": with_optimizer(
        {"*": tf1.train.FtrlOptimizer}, {"*": 1, "a": 1}),
    r"learning_rate must be a number or a function of the global step, got 'fast'": with_optimizer(
        tf1.train.FtrlOptimizer, "fast"),
    r"SyncReplicasOptimizer; give the optimizer inside it, and run the job with --mode sync": with_optimizer(
        lambda rate: tf1.train.SyncReplicasOptimizer(tf1.train.AdamOptimizer(rate), 2)),
    r"optimizer made object; it must make a tf.compat.v1.train.Optimizer": with_optimizer(lambda _: object()),
    r"ModelSpec.optimizer failed: TypeError: .*missing 1 required positional argument: 'momentum'": with_optimizer(
        tf1.train.MomentumOptimizer),
    r"ModelSpec.optimizer of 'kern\*' failed at .*test_refused_models.py:\d+: ValueError: .* must be at least 0":
        with_optimizer({"kern*": lambda rate: optimizers.RowwiseAdagrad(rate, epsilon=-1.0)}),
    r"updates must be operations or tensors, got 'all'": lambda x, y, _: ModelSpec(
        linear(x, get("kernel", [5, 1]), y), tf1.train.AdamOptimizer, updates=["all"]),
    r"hooks must be tf.train.SessionRunHook objects, got": lambda x, y, _: ModelSpec(
        linear(x, get("kernel", [5, 1]), y), tf1.train.AdamOptimizer, hooks=[print]),
}  # fmt: skip


@pytest.mark.parametrize("complaint", REFUSED)
def test_is_refused_by_name(complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        train(LocalCluster(1), model_of(REFUSED[complaint]), 1)
    assert "\n" not in str(caught.value)
