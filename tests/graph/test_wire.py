"""Half precision on the way: equal to plain TensorFlow that rounds what it reads and what it applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from benchmarks.receives import received
from psruntime.graph.inputs import InputStream
from psruntime.graph.wire import Wire
from psruntime.model import Context, Model
from tests.graph.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train

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


@pytest.mark.parametrize("feedback", ["off", "on"])
@pytest.mark.parametrize("dtype", HALF)
def test_what_travels_is_rounded_once_and_nothing_else(dtype: str, feedback: str, tmp_path: Any) -> None:
    folder = str(tmp_path)
    run = train(LocalCluster(2), MODEL, STEPS, wire=dtype, wire_error_feedback=feedback, checkpoint_dir=folder)
    expected, other = (rounding(MODEL, dtype, kept) for kept in (feedback == "on", feedback == "off"))
    saved = run.saved()
    for name, value in expected.items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(np.abs(saved[name] - value).max() > 1e-5 for name, value in other.items()), "feedback made no difference"


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


@pytest.mark.parametrize("make", [linear_model, embedding_model])
def test_no_float32_travels_in_a_step(make: Any) -> None:
    model = make(OPTIMIZERS["adagrad"], 0.05)
    run = train(LocalCluster(2), model, 1, wire="bfloat16")
    graph = run.graph
    batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
    feed = dict(zip(graph.model.batch, batch, strict=True))
    feed[graph.header.fed] = graph.header.values((0, INCARNATION, 100, 1))
    told = tf1.RunMetadata()
    with run.cluster.session(graph.graph) as session:
        session.run(graph.step, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
    types = {tf1.as_dtype(node.attr["tensor_type"].type) for node in received(told.partition_graphs)}
    assert types == {tf1.bfloat16, tf1.int64}


def test_float16_keeps_what_is_too_large_for_it_finite() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        packed = Wire(tf1.float16).packed(tf1.constant([1e9, -1e9, 1.0]))
        assert session.run(packed).tolist() == [65504.0, -65504.0, 1.0]
