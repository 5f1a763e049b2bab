"""Half precision on the way: equal to plain TensorFlow that rounds what it reads and what it applies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from benchmarks.receives import received
from psruntime.graph.base.variable_values import LASTING
from psruntime.graph.buckets.gradient import BucketGradient, Wire
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.push.pushed_gradient import packed_gradient
from psruntime.model import Context, Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train, with_spec

MODEL = linear_model(OPTIMIZERS["momentum"], 0.02)
STEPS = 12
HALF = ["bfloat16", "float16"]


def rounding(model: Model, dtype: str, feedback: bool) -> dict[str, Any]:
    """The variables after plain TensorFlow has trained."""
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        masters: list[Any] = []
        read: list[Any] = []

        def rounded(getter: Any, *arguments: Any, **more: Any) -> Any:
            masters.append(getter(*arguments, **more))
            read.append(tf1.stop_gradient(through(masters[-1].read_value())))
            return read[-1]

        def through(tensor: Any) -> Any:
            return tf1.cast(tf1.cast(tensor, dtype), tf1.float32)

        with tf1.variable_scope("", custom_getter=rounded, use_resource=True):
            spec = model.model_fn(features, labels, "train")
        assert spec.optimizer
        left = [tf1.Variable(tf1.zeros(master.shape), trainable=False) for master in masters]
        wanted = [gradient + kept for gradient, kept in zip(tf1.gradients(spec.loss, read), left, strict=True)]
        sent = [through(gradient) for gradient in wanted]
        keep = [v.assign(w - s) for v, w, s in zip(left, wanted, sent, strict=True)] if feedback else []
        with tf1.control_dependencies(sent):
            step = tf1.group(spec.optimizer(0.02).apply_gradients(zip(sent, masters, strict=True)), *keep)
        start = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(start)
        for _ in range(STEPS):
            session.run(step, dict(zip(batch, inputs.draw_endlessly(), strict=True)))
        return dict(zip([m.op.name for m in masters], session.run(masters), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("feedback", ["off", "on"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.optimised
def test_what_travels_is_rounded_once_and_nothing_else(dtype: str, feedback: str, tmp_path: Any) -> None:
    folder = str(tmp_path)
    run = train(LocalCluster(2), MODEL, STEPS, wire=dtype, wire_error_feedback=feedback, checkpoint_dir=folder)
    expected, other = (rounding(MODEL, dtype, kept) for kept in (feedback == "on", feedback == "off"))
    saved = run.saved()
    for name, value in expected.items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(np.abs(saved[name] - value).max() > 1e-5 for name, value in other.items()), "feedback made no difference"


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("make", [linear_model, embedding_model])
def test_half_the_bytes_train_nearly_alike(make: Any, mode: str, tmp_path: Any) -> None:
    model = make(OPTIMIZERS["adagrad"], 0.05)
    ends = []
    for wire in ("float32", "bfloat16"):
        run = train(LocalCluster(2), model, 6, mode=mode, wire=wire, checkpoint_dir=str(tmp_path / wire))
        ends.append(run.saved())
    for name, value in ends[0].items():
        np.testing.assert_allclose(ends[1][name], value, rtol=0.05, atol=0.02, err_msg=name)
    assert any(np.any(ends[1][name] != value) for name, value in ends[0].items())


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("make", [linear_model, embedding_model])
@pytest.mark.optimised
def test_no_float32_travels_in_a_step(make: Any, dtype: str) -> None:
    model = make(OPTIMIZERS["adagrad"], 0.05)
    run = train(LocalCluster(2), model, 1, wire=dtype)
    graph = run.graph
    batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
    feed = dict(zip(graph.model.batch, batch, strict=True))
    feed[graph.request.fed] = graph.request.values((0, INCARNATION, 100, 1))
    told = tf1.RunMetadata()
    with run.cluster.session(graph.graph) as session:
        session.run(graph.step, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
    types = {tf1.as_dtype(node.attr["tensor_type"].type) for node in received(told.partition_graphs)}
    assert types - {tf1.int32} == {tf1.as_dtype(dtype), tf1.int64}, "ids of tables may be int32"


def test_a_gradient_that_float16_cannot_hold_stays_finite_and_an_infinite_one_does_not() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        sent = Wire(tf1.float16).saturated(tf1.constant([1e9, -1e9, 1.0, np.inf]))
        pulled = Wire(tf1.float16).packed(tf1.constant([1e9]))
        assert session.run(sent).tolist() == [65504.0, -65504.0, 1.0, np.inf]
        assert session.run(pulled).tolist() == [np.inf]


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALF)
def test_the_gradient_of_rows_is_rounded_only_when_it_is_pushed(dtype: str) -> None:
    """One of 80,000 is beyond float16; within clip_norm it is not."""
    large = with_spec(embedding_model(OPTIMIZERS["sgd"], 0.05), clip_norm=1.0)

    def model_fn(*arguments: Any) -> Any:
        spec = large.model_fn(*arguments)
        return replace(spec, loss=spec.loss * 1e7)

    run = train(LocalCluster(2), replace(large, model_fn=model_fn), 3, wire=dtype)
    assert all(np.isfinite(result.loss) for result in run.results)
    with run.cluster.session(run.graph.graph) as session:
        for store in run.graph.model.stores.values():
            assert np.isfinite(session.run(store.master.read_value())).all()


def test_what_is_left_over_stays_when_the_loss_is_not_finite() -> None:
    with tf1.Graph().as_default() as graph:
        values, finite = tf1.placeholder(tf1.float32, [2]), tf1.placeholder(tf1.bool, [])
        wire = Wire(tf1.bfloat16, feedback=True)
        sent = packed_gradient(wire, "bucket", BucketGradient(values), finite, 0).values
        (lasting,) = tf1.get_collection(LASTING)
        residue, start = lasting.read_value(), lasting.initializer
        with LocalCluster(1).session(graph) as session:
            session.run(start)
            session.run(sent, {values: [1.001, 2.0], finite: True})
            left = session.run(residue).tolist()
            assert left[0] != 0
            assert session.run(sent, {values: [np.nan, 1.0], finite: False}).tolist() == [0.0, 0.0]
            assert session.run(residue).tolist() == left
