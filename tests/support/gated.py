"""A model whose processes can be held at gates (tests/support/gates.py), and which tells what it reads.

    draw-N       worker N is about to draw a batch: nothing of it is under way
    compute-N    worker N has pulled its variables and has not computed the gradient
    stepped-N    worker N has run its step (in mode sync: has kept its gradient, and not pushed it)
    stop         where it is closed, every worker stops after its step, which ends the job
    apply-NAME   the ps of this variable is inside an update of it, with the lock held: in async and bounded mode in
                 that of a push, in mode sync in that of a close.  The update goes on, whoever is gone
    tear-NAME    the same, but if who asked for the update is killed meanwhile, TensorFlow takes it back: it is cut off

A worker that stands at stepped-N also reads the variables through its own session when it is asked to (`READ`).
A test writes a module with this model by `gates.write_model`, and keeps out of TensorFlow itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime import Context, ModelSpec
from tests.support.gates import CLOSED, DYNAMIC, GROUPED, MARK, PIPES, READ, UNSEEN, VALUES, keep_pace, stand_at

OPTIMIZERS: dict[str, Any] = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "momentum": partial(tf1.train.MomentumOptimizer, momentum=0.9),
    "adam": tf1.train.AdamOptimizer,
}


ROWS = 23  # of a table


def make(gates: str, optimizer: str, tables: Sequence[str] = ()) -> tuple[Any, Any]:
    """(input_fn, model_fn).  The workers have data of their own, the same in every process of an index.

    tables: kinds of tables that the model has as well, under Adagrad: two that share a table group, a dynamic one.
    """
    worker = [-1]  # index of this process, once its input is made

    def at(place: str, *arrays: Any) -> Any:
        stand_at(gates, f"{place}-{worker[0]}")
        if place == "compute":
            keep_pace(gates, worker[0])
        return arrays[0]

    def input_fn(context: Context) -> Any:
        if context.mode == "eval":
            return tf1.data.Dataset.from_tensors((tf1.ones([8, 4]), tf1.ones([8])))
        worker[0] = context.worker_index

        def drawn(x: Any, y: Any) -> Any:
            same = tf1.ensure_shape(tf1.numpy_function(partial(at, "draw"), [x], tf1.float32), x.shape)
            return same, y

        def example(i: Any) -> Any:
            x = tf1.random.stateless_uniform([4], seed=[tf1.cast(i, tf1.int32), context.seed])
            return x, tf1.sin(3 * tf1.reduce_sum(x))

        return tf1.data.Dataset.range(1 << 20).map(example).batch(context.batch_size).map(drawn)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        normal = tf1.truncated_normal_initializer(stddev=0.5, seed=7)
        kernel = tf1.get_variable("kernel", [4, 8], initializer=normal)
        head = tf1.get_variable("head", [8, 1], initializer=normal)
        if mode == "train":
            arguments = [features, tf1.identity(kernel), tf1.identity(head)]
            held = tf1.numpy_function(partial(at, "compute"), arguments, tf1.float32)
            features = tf1.ensure_shape(held, features.shape)
        looked_up, variables = _looked_up(features, tables)
        predicted = tf1.matmul(tf1.nn.tanh(tf1.matmul(features, kernel)), head)[:, 0] + looked_up
        hooks = [AfterStep(gates, worker, {"kernel": kernel, "head": head, **variables}), StopAtGate(gates)]
        gated = partial(_gated, gates, OPTIMIZERS[optimizer])
        return ModelSpec(
            tf1.reduce_mean(tf1.square(predicted - labels)),
            {"tables/*": tf1.train.AdagradOptimizer, "*": gated} if tables else gated, 0.02,
            hooks=hooks if mode == "train" else (),
        )  # fmt: skip

    return input_fn, model_fn


def _looked_up(features: Any, kinds: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """(what the tables of these kinds add to a prediction, [batch]; the variables by name)."""
    ids = tf1.cast(features * ROWS, tf1.int64) % ROWS
    found, variables = [tf1.zeros_like(features[:, 0])], {}
    with tf1.variable_scope("tables"):
        for number, name in enumerate(["shelf", "book"] if GROUPED in kinds else []):
            values = tf1.random_uniform_initializer(-0.1, 0.1, seed=number)
            variables[f"tables/{name}"] = tf1.get_variable(name, [ROWS, 3], initializer=values)
            rows = tf1.nn.embedding_lookup(variables[f"tables/{name}"], ids[:, number])
            found.append(tf1.reduce_sum(rows, axis=1))
        if DYNAMIC in kinds:  # more ids than rows
            numbers = ids[:, 2] * ROWS + ids[:, 3]
            rows = psruntime.embedding(numbers, "reader", 3, capacity=4 * 32, admit_after=2, initializer=UNSEEN)
            found.append(tf1.reduce_sum(rows, axis=1))
    return tf1.add_n(found), variables


class AfterStep(tf1.train.SessionRunHook):  # type: ignore[misc]
    """The gate stepped-N.  worker: [index of this process]."""

    def __init__(self, gates: str, worker: list[int], variables: dict[str, Any]) -> None:
        self._gates = gates
        self._worker = worker
        self._fetches = {**variables, "global_step": tf1.train.get_or_create_global_step()}

    def after_run(self, run_context: Any, run_values: Any) -> None:
        name = f"stepped-{self._worker[0]}"
        stand_at(self._gates, name, lambda: self._read(run_context.session, f"{self._gates}/{name}"))

    def _read(self, session: Any, path: str) -> None:
        if not os.path.exists(path + READ):
            return
        os.remove(path + READ)
        values = {name: value.ravel().tolist() for name, value in session.run(self._fetches).items()}
        new = f"{path}{VALUES}.{os.getpid()}"
        Path(new).write_text(json.dumps(values))
        os.rename(new, path + VALUES)


class StopAtGate(tf1.train.SessionRunHook):  # type: ignore[misc]
    """The gate stop."""

    def __init__(self, gates: str) -> None:
        self._closed = f"{gates}/stop{CLOSED}"

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if os.path.exists(self._closed):
            run_context.request_stop()


def _gated(gates: str, base: Any, learning_rate: Any) -> Any:
    """An optimizer of this kind whose update of a dense variable begins with the gates tear-NAME and apply-NAME."""
    kind = base.func if isinstance(base, partial) else base
    settings = base.keywords if isinstance(base, partial) else {}

    class Gated(kind):  # type: ignore[misc,valid-type]
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            name = handle.op.name.rsplit("master/", 1)[-1].replace("/", "_")
            with tf1.control_dependencies([_look_until_open(f"{gates}/tear-{name}", grad)]):
                passed = _pass(f"{gates}/apply-{name}", grad)
            with tf1.control_dependencies([passed]):
                return super()._resource_apply_dense(grad, handle)

    return Gated(learning_rate, **settings)


def _pass(gate: str, gradient: Any) -> Any:
    """An operation that ends when the gate is open.  It cannot be ended otherwise: it is inside one system call."""
    pair = tf.io.read_file(_no_constant(gate, gradient))
    first, second = (tf1.strings.join([gate, pair, end]) for end in PIPES)
    with tf1.control_dependencies([tf.io.write_file(first, "+")]):
        return tf.io.write_file(second, "+")


def _no_constant(path: str, gradient: Any) -> Any:
    """The path as a tensor that TensorFlow does not know before there is a gradient, so what is read is read then."""
    huge = tf1.reduce_sum(tf1.cast(gradient, tf1.float32)) > 1e38
    return tf1.strings.join([path, tf1.where(huge, "-", "")])


def _look_until_open(gate: str, gradient: Any) -> Any:
    """Ends when the gate is open.  A loop, which TensorFlow may end between two turns."""
    closed = _no_constant(gate + CLOSED, gradient)

    def found(path: Any) -> Any:
        return tf.io.matching_files(path)

    def stand(path: Any) -> Any:
        with tf1.control_dependencies([tf.io.write_file(gate + MARK, "ps")]):
            return tf1.strings.reduce_join(found(path))  # the path itself, or nothing any more

    return tf1.while_loop(lambda path: tf1.size(found(path)) > 0, stand, [closed])
