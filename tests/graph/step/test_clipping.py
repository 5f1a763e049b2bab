"""Clipping, per push or per round of one worker: as stock TensorFlow clips the gradients of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan.plan import make_plan
from psruntime.graph.buckets.bucket_store import PlanStores
from psruntime.graph.buckets.gradient import BucketGradient, clipped
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.gradients import bucket_gradients
from psruntime.graph.model.pulled_model import build_pulled_model, record_specs
from psruntime.model import Context, Model, ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, STEPS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_but

CONTEXT = Context("train", 0, 1, 8, "", 3)


def clipping(model: Model, **limits: float) -> Model:
    """The model with limits."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        spec = model.model_fn(features, labels, mode)
        return ModelSpec(spec.loss, spec.optimizer, spec.learning_rate, **limits)

    return Model(model.name, model.input_fn, model_fn)


def plain_clipped(
    model: Model, clip_norm: float | None, clip_value: float | None
) -> tuple[dict[str, Any], list[float]]:
    """(variables after STEPS of plain TensorFlow with stock clipping, global norm of each step).

    Gradients with respect to rows are summed over duplicates first, as a stock optimizer does when it applies them.
    """
    inputs = InputStream(model, CONTEXT)
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        spec = model.model_fn(features, labels, "train")
        assert spec.optimizer is not None
        variables = tf1.trainable_variables()
        gradients = [summed(g) for g in tf1.gradients(spec.loss, variables)]
        norm = tf1.global_norm(gradients)
        if clip_norm is not None:
            gradients, _ = tf1.clip_by_global_norm(gradients, clip_norm)
        if clip_value is not None:
            gradients = [
                tf1.IndexedSlices(tf1.clip_by_value(g.values, -clip_value, clip_value), g.indices)
                if isinstance(g, tf1.IndexedSlices)
                else tf1.clip_by_value(g, -clip_value, clip_value)
                for g in gradients
            ]
        update = spec.optimizer(spec.learning_rate).apply_gradients(list(zip(gradients, variables, strict=True)))
        init = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(init)
        norms = []
        for _ in range(STEPS):
            feed = dict(zip(batch, inputs.draw_endlessly(), strict=True))
            norms.append(float(session.run([norm, update], feed)[0]))
        with graph.as_default():
            return session.run({v.op.name: v for v in tf1.global_variables()}), norms


def summed(gradient: Any) -> Any:
    if not isinstance(gradient, tf1.IndexedSlices):
        return gradient
    rows, positions = tf1.unique(gradient.indices)
    return tf1.IndexedSlices(tf1.math.unsorted_segment_sum(gradient.values, positions, tf1.size(rows)), rows)


MODELS = {
    "dense": (linear_model(OPTIMIZERS["momentum"], 0.02), 64, 2.0),
    "embeddings": (embedding_model(OPTIMIZERS["adagrad"], 0.05), 1 << 24, 5.0),
}


@pytest.mark.parametrize("mode", long_but(["async"], ["async", "sync"]))
@pytest.mark.parametrize("limit", long_but(["clip_norm"], ["clip_norm", "clip_value"]))
@pytest.mark.parametrize("kind", long_but(["dense"], MODELS))
def test_clipping_equals_stock_clipping(kind: str, limit: str, mode: str, tmp_path: Any) -> None:
    model, slice_bytes, norm = MODELS[kind]
    limits = {"clip_norm": norm} if limit == "clip_norm" else {"clip_value": 0.05}
    expected, norms = plain_clipped(model, limits.get("clip_norm"), limits.get("clip_value"))
    if "clip_norm" in limits:
        assert min(norms) < limits["clip_norm"] < max(norms), "some steps are clipped and some are not"
    settings = {"slice_bytes": slice_bytes, "checkpoint_dir": str(tmp_path), "mode": mode}
    run = train(LocalCluster(2), clipping(model, **limits), STEPS, **settings)
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    for name, value in expected.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_formula_and_dtypes() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        dense = BucketGradient(tf1.constant([3.0, 0.0]))
        sparse = BucketGradient(tf1.constant([[0.0, 4.0]], tf1.float64), tf1.constant([7], tf1.int64))
        half = BucketGradient(tf1.constant([300.0, 300.0], tf1.float16))  # their squares overflow float16
        gradients = {"dense": dense, "sparse": sparse}

        def values(found: dict[str, BucketGradient]) -> dict[str, list[Any]]:
            return {name: session.run(g.values).tolist() for name, g in found.items()}

        assert values(clipped(gradients, 2.5, None)) == {"dense": [1.5, 0.0], "sparse": [[0.0, 2.0]]}
        assert values(clipped(gradients, 5.5, None)) == values(gradients)
        assert values(clipped(gradients, None, 3.5)) == {"dense": [3.0, 0.0], "sparse": [[0.0, 3.5]]}
        assert clipped(gradients, None, None) == gradients
        assert clipped(gradients, 1.0, None)["sparse"].indices is sparse.indices
        norm = 300 * np.sqrt(2)
        np.testing.assert_allclose(values(clipped({"h": half}, norm / 2, None))["h"], [150, 150], rtol=1e-3)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_norm_that_is_not_finite_makes_all_nan_as_stock_does(bad: float) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        tensors = [tf1.constant([bad]), tf1.constant([1.0])]
        ours = clipped({str(i): BucketGradient(t) for i, t in enumerate(tensors)}, 1.0, None)
        stock, _ = tf1.clip_by_global_norm(tensors, 1.0)
        assert np.isnan(session.run(stock)).all()
        assert np.isnan(session.run([g.values for g in ours.values()])).all()


def test_pushed_rows_are_unique_with_the_sum_of_duplicates() -> None:
    def loss(ids: Any, labels: Any) -> Any:
        embedding = tf1.get_variable("embedding", [50, 2], initializer=tf1.zeros_initializer())
        weights = tf1.constant([[1.0], [2.0], [4.0], [8.0]])
        return tf1.reduce_sum(tf1.nn.embedding_lookup(embedding, ids) * weights) + tf1.reduce_sum(
            16.0 * tf1.gather(embedding, ids[:, 1])
        )

    cluster = LocalCluster(1)
    model = embedding_model(OPTIMIZERS["sgd"], loss=loss)
    run = train(cluster, model, 0)
    inputs = InputStream(model, CONTEXT)
    job = JobConfig(ps=1, max_workers=cluster.max_workers)
    plan = make_plan(record_specs(model, inputs, "train"), 1, *job.plan_sizes)
    assert plan.fingerprint == run.graph.plan.fingerprint
    with tf1.Graph().as_default() as graph:
        pulled = build_pulled_model(model, inputs, "train", PlanStores(plan, job.max_workers), 0)
        gradient = bucket_gradients(pulled, plan, 0)["embedding/rows_0"]
    with cluster.session(graph) as session:
        feed = dict(zip(pulled.batch, [np.array([[9, 3, 9, 4]]), np.zeros([1], np.float32)], strict=True))
        values, indices = session.run(gradient.tensors, feed)
    assert dict(zip(indices.tolist(), values.tolist(), strict=True)) == {3: [18.0, 18.0], 4: [8.0, 8.0], 9: [5.0, 5.0]}
