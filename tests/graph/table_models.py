"""Every way that TF1 has of making and reading variables, a small model each.

Each is a function of (features float32 [8, 5], labels float32 [8], ids int32 [8] below 7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.model import Context, Model, ModelSpec

ROWS = 7
UNIFORM = partial(tf1.random_uniform_initializer, -0.5, 0.5)

Build = Callable[[Any, Any, Any], Any]  # makes the loss, or the whole ModelSpec


def get(name: str, shape: list[int], seed: int = 1, **settings: Any) -> Any:
    return tf1.get_variable(name, shape, initializer=UNIFORM(seed=seed), **settings)


def error(prediction: Any, labels: Any) -> Any:
    return tf1.reduce_mean(tf1.square(tf1.reshape(prediction, [-1]) - labels))


def linear(x: Any, kernel: Any, y: Any) -> Any:
    return error(tf1.matmul(x, kernel), y)


def of_kernel(make: Callable[[], Any]) -> Build:
    """A linear model of a kernel [5, 1]."""
    return lambda x, y, _: linear(x, make(), y)


def of_table(read: Callable[[Any, Any], Any], **settings: Any) -> Build:
    """A model of a table [7, 4], of which `read` makes [8, 4] from the ids, and a head on it."""

    def build(_x: Any, y: Any, ids: Any) -> Any:
        return linear(read(get("table", [ROWS, 4], 3, **settings), ids), get("head", [4, 1]), y)

    return build


# --- making ---


def explicit_reuse(x: Any, y: Any, _: Any) -> Any:
    with tf1.variable_scope("layer") as scope:
        first = get("kernel", [5, 1])
        scope.reuse_variables()
        return linear(x, first + get("kernel", [5, 1]), y)


def auto_reuse(x: Any, y: Any, _: Any) -> Any:
    def kernel() -> Any:
        with tf1.variable_scope("layer", reuse=tf1.AUTO_REUSE):
            return get("kernel", [5, 1])

    return linear(x, kernel() * kernel(), y)


def template(x: Any, y: Any, _: Any) -> Any:
    layer = tf1.make_template("layer", lambda value: tf1.matmul(value, get("kernel", [5, 5])))
    return error(tf1.reduce_sum(layer(layer(x)), axis=1), y)


def custom_getter(x: Any, y: Any, _: Any) -> Any:
    def half(getter: Any, *args: Any, **kwargs: Any) -> Any:
        return 0.5 * getter(*args, **kwargs)

    with tf1.variable_scope("layer", custom_getter=half):
        return linear(x, get("kernel", [5, 1]), y)


def from_another(value: Callable[[Any], Any]) -> Build:
    def build(x: Any, y: Any, _: Any) -> Any:
        first = tf1.Variable(tf1.random.uniform([5, 1], seed=2), name="first")
        second = tf1.Variable(value(first), name="second")
        return linear(x, first + second, y)

    return build


def twice_from_another(x: Any, y: Any, _: Any) -> Any:
    first = tf1.Variable(tf1.ones([5, 1]), name="first")
    second = tf1.Variable(first.initialized_value() * 2.0, name="second")
    third = tf1.Variable(second.initialized_value() * 3.0, name="third", trainable=False)
    return linear(x, first + second + third, y)


# --- layers ---


def tf1_dense(x: Any, y: Any, _: Any) -> Any:
    hidden = tf1.layers.dense(x, 4, tf1.nn.tanh, kernel_initializer=UNIFORM(seed=1))
    return error(tf1.layers.dense(hidden, 1, kernel_initializer=UNIFORM(seed=2)), y)


def tf1_conv(x: Any, y: Any, _: Any) -> Any:
    image = tf1.reshape(x, [-1, 5, 1, 1])
    return error(tf1.layers.conv2d(image, 1, [5, 1], kernel_initializer=UNIFORM(seed=1)), y)


def tf1_batch_norm(x: Any, y: Any, _: Any) -> Any:
    return linear(tf1.layers.batch_normalization(x, training=True, momentum=0.5), get("head", [5, 1]), y)


def keras_layer(x: Any, y: Any, _: Any) -> Any:
    import tf_keras

    return error(tf_keras.layers.Dense(1, kernel_initializer=UNIFORM(seed=1), name="layer")(x), y)


def keras_model(x: Any, y: Any, _: Any) -> Any:
    import tf_keras

    inputs = tf_keras.Input([5])
    hidden = tf_keras.layers.Dense(3, kernel_initializer=UNIFORM(seed=1), name="hidden")(inputs)
    normed = tf_keras.layers.BatchNormalization(momentum=0.5, name="norm")(hidden)
    outputs = tf_keras.layers.Dense(1, kernel_initializer=UNIFORM(seed=2), name="out")(normed)
    model = tf_keras.Model(inputs, outputs)
    loss = error(model(x, training=True), y)
    return ModelSpec(loss, tf1.train.AdamOptimizer, 0.05, updates=model.updates)


def keras_recurrent(x: Any, y: Any, _: Any) -> Any:
    import tf_keras

    cell = tf_keras.layers.GRUCell(1, kernel_initializer=UNIFORM(seed=1), recurrent_initializer=UNIFORM(seed=2))
    return error(tf_keras.layers.RNN(cell, name="rnn")(x[:, :, tf1.newaxis]), y)


def dynamic_rnn(x: Any, y: Any, _: Any) -> Any:
    cell = tf1.nn.rnn_cell.LSTMCell(1, initializer=UNIFORM(seed=1), name="cell")
    _, state = tf1.nn.dynamic_rnn(cell, x[:, :, tf1.newaxis], dtype=tf1.float32)
    return error(state.h, y)


# --- reading ---


def tied(x: Any, y: Any, ids: Any) -> Any:
    table = get("table", [ROWS, 5], 3)
    return error(
        tf1.reduce_sum(tf1.nn.embedding_lookup(table, ids) + tf1.matmul(x, table, transpose_b=True)[:, :5], 1), y
    )


def while_loop(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 5])
    _, out = tf1.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, tf1.matmul(value, kernel)), [0, x])
    return error(tf1.reduce_sum(out, axis=1), y)


def branches(x: Any, y: Any, _: Any) -> Any:
    left, right = get("left", [5, 1]), get("right", [5, 1], 2)
    return error(tf1.cond(tf1.reduce_sum(y) > 1e9, lambda: tf1.matmul(x, left), lambda: tf1.matmul(x, right)), y)


def lookup_in_loop(_x: Any, y: Any, ids: Any) -> Any:
    table = get("table", [ROWS, 1], 3)
    _, out = tf1.while_loop(
        lambda i, _: i < 2, lambda i, t: (i + 1, t + tf1.nn.embedding_lookup(table, ids)), [0, tf1.zeros([8, 1])],
        shape_invariants=[tf1.TensorShape([]), tf1.TensorShape([None, 1])],
    )  # fmt: skip
    return error(out, y)


def mapped(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return error(tf1.map_fn(lambda row: tf1.matmul(row[tf1.newaxis], kernel)[0], x), y)


def scanned(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 5])
    return error(tf1.reduce_sum(tf1.scan(lambda before, row: tf1.linalg.matvec(kernel, before) + row, x), 1), y)


def in_function(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])

    @tf.function
    def predict(value: Any) -> Any:
        return tf1.matmul(value, kernel)

    return error(predict(x), y)


def custom_gradient(x: Any, y: Any, _: Any) -> Any:
    @tf1.custom_gradient
    def doubled(value: Any) -> Any:
        return tf1.identity(value), lambda upstream: 2.0 * upstream

    return linear(x, doubled(get("kernel", [5, 1]).value()), y)


def penalized(x: Any, y: Any, _: Any) -> Any:
    """The loss has gradients with respect to variables in it."""
    kernel, head = get("kernel", [5, 3]), get("head", [3, 1], 2)
    loss = linear(tf1.tanh(tf1.matmul(x, kernel)), head, y)
    gradients = tf1.gradients(loss, tf1.trainable_variables())
    return loss + 0.1 * tf1.add_n([tf1.reduce_sum(tf1.square(g)) for g in gradients if g is not None])


def sparse_ids(_x: Any, y: Any, ids: Any) -> Any:
    rows = tf1.SparseTensor(tf1.stack([tf1.range(8, dtype=tf1.int64), tf1.zeros([8], tf1.int64)], 1), ids, [8, 1])
    found = tf1.nn.embedding_lookup_sparse(get("table", [ROWS, 4], 3), rows, None, combiner="sum")
    return linear(found, get("head", [4, 1]), y)


def feature_column(_x: Any, y: Any, ids: Any) -> Any:
    column = tf1.feature_column.categorical_column_with_identity("id", ROWS)
    embedded = tf1.feature_column.embedding_column(column, 4, initializer=UNIFORM(seed=3))
    return linear(tf1.feature_column.input_layer({"id": ids}, [embedded]), get("head", [4, 1]), y)


# --- variables that are not trainable ---


def frozen_dense(x: Any, y: Any, _: Any) -> Any:
    scale = tf1.get_variable("scale", initializer=tf1.constant([1.0, 2.0, 3.0, 4.0, 5.0]), trainable=False)
    return linear(x * scale, get("kernel", [5, 1]), y)


def counted(x: Any, y: Any, _: Any) -> Any:
    count = tf1.get_variable("count", [], tf1.int64, initializer=tf1.zeros_initializer(), trainable=False)
    loss = linear(x, get("kernel", [5, 1]), y)
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, updates=[count.assign_add(2)])


def averaged(x: Any, y: Any, _: Any) -> Any:
    level = tf1.get_variable("level", [], initializer=tf1.ones_initializer(), trainable=False)
    average = tf1.train.ExponentialMovingAverage(0.5)
    update = average.apply([level, tf1.reduce_mean(x)])
    return ModelSpec(linear(x, get("kernel", [5, 1]) * average.average(level), y), updates=[update],
                     optimizer=tf1.train.GradientDescentOptimizer, learning_rate=0.05)  # fmt: skip


def with_metrics(x: Any, y: Any, _: Any) -> Any:
    loss = linear(x, get("kernel", [5, 1]), y)
    _, update = tf1.metrics.mean(loss)
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, updates=[update])


def hash_table(_x: Any, y: Any, ids: Any) -> Any:
    pairs = tf.lookup.KeyValueTensorInitializer(
        tf1.range(ROWS, dtype=tf1.int64), tf1.range(ROWS, dtype=tf1.int64)[::-1]
    )
    found = tf.lookup.StaticHashTable(pairs, -1).lookup(tf1.cast(ids, tf1.int64))
    return linear(tf1.nn.embedding_lookup(get("table", [ROWS, 4], 3), found), get("head", [4, 1]), y)


def annealed(x: Any, y: Any, _: Any) -> Any:
    step = tf1.cast(tf1.train.get_or_create_global_step(), tf1.float32)
    return linear(x, get("kernel", [5, 1]), y) / (1.0 + step)


def regularized(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1], regularizer=tf1.nn.l2_loss)
    return linear(x, kernel, y) + tf1.add_n(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))


def constrained(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 2], constraint=lambda v: tf1.clip_by_norm(tf1.maximum(v, 0.0), 0.4, axes=[0]))
    return error(tf1.reduce_sum(tf1.matmul(x, kernel), axis=1), y)


def summarized(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    tf1.summary.histogram("kernel", kernel)
    loss = linear(x, kernel, y)
    tf1.summary.scalar("loss", loss)
    return loss


# --- optimizers ---


class ByNorm(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
    """Looks at a whole variable, in its shape, and keeps a slot that it does not tell of (as BERT's AdamW does)."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: str | None = None) -> Any:
        scaled = []
        for gradient, variable in pairs:
            assert variable.shape.rank == 2
            steps = tf1.get_variable(
                f"{variable.op.name}/steps", [], initializer=tf1.zeros_initializer(), trainable=False
            )
            counted = steps.assign_add(1.0 + 0.0 * tf1.reduce_sum(gradient))
            scaled.append((gradient / (tf1.norm(gradient, axis=0, keepdims=True) + counted), variable))
        return super().apply_gradients(scaled, global_step, name)


def by_norm(x: Any, y: Any, _: Any) -> Any:
    hidden = tf1.tanh(tf1.matmul(x, get("hidden", [5, 4])))
    return ModelSpec(linear(hidden, get("head", [4, 1], 2), y), ByNorm, 0.1)


def by_pattern(x: Any, y: Any, ids: Any) -> Any:
    deep = tf1.matmul(tf1.nn.embedding_lookup(get("deep/table", [ROWS, 4], 3), ids), get("deep/head", [4, 1]))
    loss = error(tf1.matmul(x, get("wide/kernel", [5, 1])) + deep, y)
    optimizers = {"wide/*": tf1.train.FtrlOptimizer, "*": tf1.train.AdagradOptimizer}
    return ModelSpec(loss, optimizers, {"wide/*": 0.1, "*": lambda step: 0.2 * 0.9**step})


def untrained(x: Any, y: Any, _: Any) -> Any:
    get("unused", [3])
    return linear(x, get("kernel", [5, 1]), y)


def v2(build: Build) -> Build:
    def under_v2(x: Any, y: Any, ids: Any) -> Any:
        before = tf1.control_flow_v2_enabled()
        tf1.enable_control_flow_v2()
        try:
            return build(x, y, ids)
        finally:
            if not before:
                tf1.disable_control_flow_v2()

    return under_v2


def model_of(build: Build) -> Model:
    def input_fn(context: Context) -> Any:
        def example(i: Any) -> Any:
            x = tf1.random.stateless_uniform([5], seed=[tf1.cast(i, tf1.int32), 1])
            return {"x": x, "id": tf1.cast(i * i % ROWS, tf1.int32)}, tf1.reduce_sum(x * x)

        return tf1.data.Dataset.range(1000).map(example).batch(context.batch_size, drop_remainder=True)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        made = build(features["x"], labels, features["id"])
        return made if isinstance(made, ModelSpec) else ModelSpec(made, tf1.train.AdagradOptimizer, 0.1)

    return Model("tests.table", input_fn, model_fn)


TABLE: dict[str, Build] = {
    "get_variable": of_kernel(lambda: get("kernel", [5, 1])),
    "get_variable of the old kind": of_kernel(lambda: get("kernel", [5, 1], use_resource=False)),
    "get_variable from an array": of_kernel(lambda: tf1.get_variable("k", initializer=np.ones([5, 1], np.float32))),
    "get_variable with a caching device": of_kernel(lambda: get("kernel", [5, 1], caching_device="/device:CPU:0")),
    "Variable": of_kernel(lambda: tf1.Variable(tf1.ones([5, 1]))),
    "Variable from a function": of_kernel(lambda: tf1.Variable(lambda: tf1.random.uniform([5, 1], seed=1))),
    "Variable of TF2": of_kernel(lambda: tf.Variable(tf1.ones([5, 1]))),
    "float64": lambda x, y, _: linear(tf1.cast(x, tf1.float64), get("kernel", [5, 1], dtype=tf1.float64),
                                      tf1.cast(y, tf1.float64)),
    "scalar": lambda x, y, _: error(tf1.reduce_sum(x, 1) * get("scale", []), y),
    "explicit reuse": explicit_reuse,
    "reuse as needed": auto_reuse,
    "template": template,
    "custom getter": custom_getter,
    "partitioned by rows": of_kernel(lambda: get("kernel", [5, 1], partitioner=tf1.fixed_size_partitioner(2))),
    "partitioned by columns": lambda x, y, _: error(tf1.reduce_sum(tf1.matmul(x, get(
        "kernel", [5, 3], partitioner=tf1.fixed_size_partitioner(2, axis=1))), 1), y),
    "partitioned table": of_table(tf1.nn.embedding_lookup, partitioner=tf1.fixed_size_partitioner(3)),
    "initialized by another's initialized_value": from_another(lambda v: v.initialized_value() * 2.0),
    "initialized by another's value": from_another(lambda v: v * 2.0),
    "initialized one after the other": twice_from_another,
    "layers.dense": tf1_dense,
    "layers.conv2d": tf1_conv,
    "layers.batch_normalization": tf1_batch_norm,
    "Keras layer": keras_layer,
    "Keras model with batch norm": keras_model,
    "Keras recurrent": keras_recurrent,
    "dynamic_rnn": dynamic_rnn,
    "gather of a dense variable": lambda x, y, ids: linear(
        tf1.gather(v := get("table", [ROWS, 5]), ids) + x * tf1.reduce_sum(v), get("head", [5, 1]), y),
    "gather": of_table(tf1.gather),
    "gather_nd": of_table(lambda v, ids: tf1.gather_nd(v, ids[:, tf1.newaxis])),
    "embedding_lookup": of_table(tf1.nn.embedding_lookup),
    "embedding_lookup_sparse": sparse_ids,
    "feature column": feature_column,
    "slices of a variable": lambda x, y, _: error(tf1.reduce_sum(x * get("v", [3, 5])[1], 1), y),
    "tied weights": tied,
    "cond": branches,
    "cond v2": v2(branches),
    "while": while_loop,
    "while v2": v2(while_loop),
    "lookup in a while": lookup_in_loop,
    "lookup in a while v2": v2(lookup_in_loop),
    "map_fn": mapped,
    "scan": scanned,
    "function": in_function,
    "custom gradient": custom_gradient,
    "gradients in the loss": penalized,
    "frozen variable": frozen_dense,
    "frozen table": of_table(tf1.nn.embedding_lookup, trainable=False),
    "counter": counted,
    "moving averages": averaged,
    "metrics": with_metrics,
    "hash table": hash_table,
    "global step": annealed,
    "regularizer": regularized,
    "constraint": constrained,
    "summaries": summarized,
    "optimizer of whole variables": by_norm,
    "optimizers by pattern": by_pattern,
    "frozen table in parts": of_table(
        tf1.nn.embedding_lookup, trainable=False, partitioner=tf1.fixed_size_partitioner(3)),
    "variable that is not used": untrained,
}  # fmt: skip
