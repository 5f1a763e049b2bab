"""Several mini-batches a step: their mean gradient is applied, once, and each is worked on by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import NOT_FINITE
from psruntime.core.plan.plan import report
from psruntime.graph.buckets.optimizers import rules_of
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Model, ModelSpec
from tests.graph.model.table_models import TABLE
from tests.graph.model.test_model_table import CONTEXT, as_in_tf1, updates_of, whole_variables
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.graph.step.test_messages import step_of
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, linear_model, train, with_spec
from tests.support.selection import long_but
from tests.support.small_models import model_of

COUNT, STEPS = 3, 4
WAYS = ["while v1", "lookup in a while v2", "cond v1", "moving averages"]
MODELS = {
    "dense": linear_model(OPTIMIZERS["adam"], 0.02),
    "tables": embedding_model(OPTIMIZERS["adagrad"], 0.05),
    **{way: model_of(TABLE[way]) for way in WAYS},
}


def uneven(model: Model) -> Model:
    """Every third batch has only 3 examples."""

    def input_fn(context: Any) -> Any:
        return model.input_fn(context).enumerate().map(cut)

    def cut(number: Any, batch: Any) -> Any:
        size = tf1.where(tf1.equal(number % 3, 2), 3, 8)
        return tf1.nest.map_structure(lambda tensor: tensor[:size], batch)

    return replace(model, input_fn=input_fn)


def accumulating(model: Model) -> dict[str, Any]:
    """Every global variable after plain TensorFlow has trained: COUNT runs for gradients, one that applies them."""
    inputs = InputStream(model, CONTEXT)
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        with tf1.variable_creator_scope(as_in_tf1):
            spec = model.model_fn(features, labels, "train")
        (rule,) = rules_of(spec, "model_fn")
        count = tf1.train.get_or_create_global_step()
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(spec.loss, variables)
        joint = [
            tf1.IndexedSlices(tf1.placeholder(g.dtype), tf1.placeholder(tf1.int64), tf1.shape(v))
            if isinstance(g, tf1.IndexedSlices)
            else tf1.placeholder(g.dtype, v.shape)
            for g, v in zip(gradients, variables, strict=True)
        ]
        updates = updates_of(spec, batch)
        rate = tf1.placeholder(tf1.float32, [])
        apply = rule.factory(rate).apply_gradients(zip(joint, variables, strict=True))
        with tf1.control_dependencies([apply]):
            step = count.assign_add(1)
        start = [tf1.global_variables_initializer(), tf1.local_variables_initializer()]
        final = dict(whole_variables())
    with tf1.Session(graph=graph) as session:
        session.run(start)
        for number in range(STEPS):
            taken, weights = [], []
            for _ in range(COUNT):
                drawn = inputs.draw_endlessly()
                weights.append(inputs.examples(drawn))
                feed = dict(zip(batch, drawn, strict=True))
                taken.append(session.run([gradients, updates], feed)[0])
            shares = np.array(weights) / sum(weights)
            rates = {rate: rule.learning_rate(number) if callable(rule.learning_rate) else rule.learning_rate}
            for into, parts in zip(joint, zip(*taken, strict=True), strict=True):
                if isinstance(into, tf1.IndexedSlices):
                    rates[into.indices] = np.concatenate([part.indices for part in parts])
                    rates[into.values] = np.concatenate([s * p.values for s, p in zip(shares, parts, strict=True)])
                else:
                    rates[into] = sum(s * part for s, part in zip(shares, parts, strict=True))
            session.run(step, rates)
        return dict(session.run(final))


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
@pytest.mark.parametrize("kind", long_but(["dense"], MODELS))
def test_the_mean_gradient_of_all_is_applied_and_updates_run_for_each(kind: str, mode: str, tmp_path: Any) -> None:
    model = uneven(MODELS[kind]) if kind in ("dense", "tables") else MODELS[kind]
    run = train(LocalCluster(2), model, STEPS, mode=mode, local_steps=COUNT, checkpoint_dir=str(tmp_path))
    saved = run.saved()
    for name, value in accumulating(model).items():
        if not name.endswith("_power"):
            np.testing.assert_allclose(saved[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
    assert saved["global_step"] == STEPS
    assert not run.graph.unmoved
    assert {result.examples for result in run.results} == {8 + 8 + 3 if "uneven" in str(model.input_fn) else 8 * COUNT}


@pytest.mark.long
def test_a_step_moves_no_more_than_with_one() -> None:
    model = linear_model(OPTIMIZERS["adam"])
    few, many = (train(LocalCluster(2), model, 1, local_steps=count) for count in (1, COUNT))
    assert step_of(many, model) == step_of(few, model) == report(many.graph.plan, COUNT).tensors


@pytest.mark.long
def test_a_table_is_looked_up_for_each_and_pushed_once() -> None:
    model = embedding_model(OPTIMIZERS["adam"])
    for plan, lookups_beside in [("packed", 0), ("per-variable", COUNT * 2)]:  # one of the tables is looked up twice
        run = train(LocalCluster(2), model, 1, local_steps=COUNT, plan=plan)
        assert step_of(run, model) == report(run.graph.plan, COUNT).tensors + lookups_beside


@pytest.mark.parametrize("within", ["the graph", "a function"])
def test_each_draws_random_numbers_of_its_own(within: str, tmp_path: Any) -> None:
    """The sum and the sum of the squares of the numbers tell whether they were the same."""

    def draw() -> Any:
        return tf1.random.uniform([], seed=5)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        sums = [tf1.get_variable(name, [], initializer=tf1.zeros_initializer(), trainable=False) for name in ("s", "q")]
        number = tf.function(draw)() if within == "a function" else draw()
        spec = linear.model_fn(features, labels, mode)
        return replace(spec, updates=[sums[0].assign_add(number), sums[1].assign_add(number * number)])

    linear = linear_model(OPTIMIZERS["sgd"])
    model = replace(linear, model_fn=model_fn)
    saved = train(LocalCluster(1), model, 1, local_steps=2, checkpoint_dir=str(tmp_path)).saved()
    assert saved["s"] > 0
    assert 2 * saved["q"] > saved["s"] ** 2 + 1e-3


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_one_that_is_not_finite_spoils_the_push(mode: str) -> None:
    """As it would spoil one large batch."""
    linear = linear_model(OPTIMIZERS["sgd"])

    def input_fn(context: Any) -> Any:
        poison = tf1.data.Dataset.range(1000).map(lambda i: tf1.where(tf1.equal(i, 4), float("nan"), 1.0))
        zipped = tf1.data.Dataset.zip((linear.input_fn(context), poison))
        return zipped.map(lambda batch, factor: (batch[0] * factor, batch[1]))

    run = train(LocalCluster(1), replace(linear, input_fn=input_fn), 4, mode=mode, local_steps=COUNT, on_nan="continue")
    ledgers = run.cluster.ledgers(run.graph.plan)
    assert {ledger[NOT_FINITE] for ledger in ledgers.values()} == {1}
    assert [np.isnan(result.loss) for result in run.results] == [False, True, False, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_kept_in_single(dtype: str, tmp_path: Any) -> None:
    """The gradient of 3 mini-batches of 8 times 4000 is beyond float16, their mean is not."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        weight = tf1.get_variable("weight", [4], dtype, initializer=tf1.zeros_initializer())
        loss = tf1.reduce_sum(weight) * tf1.constant(4000.0, dtype)
        return ModelSpec(loss + 0 * tf1.cast(features[0, 0], dtype), OPTIMIZERS["sgd"], 1 / 4000)

    model = replace(linear_model(OPTIMIZERS["sgd"]), model_fn=model_fn)
    saved = train(LocalCluster(1), model, 2, local_steps=COUNT, checkpoint_dir=str(tmp_path)).saved()
    np.testing.assert_allclose(saved["weight"].astype("float32"), np.full([4], -2.0), rtol=1e-2)


def test_what_weighs_nothing_counts_for_nothing(tmp_path: Any) -> None:
    """Also if its loss is not finite; and nothing happens where nothing weighs anything."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer())
        number = tf1.reduce_mean(tf1.cast(features, tf1.float32))  # 0, 1, 2, ...: the first of each two weighs nothing
        counts = tf1.logical_and(number % 2 > 0, number < 4)
        loss = weight * tf1.where(counts, 1.0, float("nan"))
        return ModelSpec(loss, OPTIMIZERS["sgd"], 1.0, examples=tf1.where(counts, 1.0, 0.0))

    def input_fn(context: Any) -> Any:
        return tf1.data.Dataset.range(100)  # without a batch's dimension

    model = Model("weighed", input_fn, model_fn)
    run = train(LocalCluster(1), model, 4, local_steps=2, checkpoint_dir=str(tmp_path))
    assert run.saved()["weight"] == -2.0
    assert all(np.isfinite(result.loss) for result in run.results)


@pytest.mark.long
def test_a_shape_that_only_python_knows_is_kept(tmp_path: Any) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        known = tf1.py_func(lambda x: x, [features], tf1.float32)
        known.set_shape(features.shape)
        return linear.model_fn(known, labels, mode)

    linear = linear_model(OPTIMIZERS["sgd"])
    saved = [
        train(LocalCluster(1), model, 2, local_steps=2, checkpoint_dir=str(tmp_path / model.name)).saved()
        for model in (linear, replace(linear, name="python", model_fn=model_fn))
    ]
    for name, value in saved[0].items():
        np.testing.assert_array_equal(saved[1][name], value, err_msg=name)


@pytest.mark.long
def test_a_limit_of_the_norm_is_for_the_mean(tmp_path: Any) -> None:
    """One step of plain gradient descent moves the variables by the limit times the rate."""
    model = with_spec(linear_model(OPTIMIZERS["sgd"], 1.0), clip_norm=1e-3)
    run = train(LocalCluster(2), model, 1, local_steps=COUNT, checkpoint_dir=str(tmp_path / "a"))
    moved = run.saved()
    zero = with_spec(linear_model(OPTIMIZERS["sgd"], 0.0))
    start = train(LocalCluster(2), zero, 1, checkpoint_dir=str(tmp_path / "b")).saved()
    squares = sum(np.square(moved[name] - start[name]).sum() for name in start if name != "global_step")
    assert np.sqrt(squares) == pytest.approx(1e-3, rel=1e-3)
