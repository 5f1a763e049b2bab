"""Models that make variables in ways of their own, themselves or by layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.model import ModelSpec
from tests.support.small_models import UNIFORM, Build, error, get, linear


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
