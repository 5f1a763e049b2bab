"""One worker on the ps trains like plain TensorFlow in one process: parameters and slots."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_but

pytestmark = pytest.mark.optimised

STEPS = 20
OPTIMIZERS = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "momentum": partial(tf1.train.MomentumOptimizer, momentum=0.9),
    "nesterov": partial(tf1.train.MomentumOptimizer, momentum=0.9, use_nesterov=True),
    "adam": tf1.train.AdamOptimizer,
    "adagrad": tf1.train.AdagradOptimizer,
    "rmsprop": tf1.train.RMSPropOptimizer,
    "ftrl": tf1.train.FtrlOptimizer,
}
LAYOUTS = {"1 ps": (1, 1 << 24), "2 ps": (2, 1 << 24), "1 ps, sliced": (1, 64), "2 ps, sliced": (2, 64)}


def plain_tensorflow(model: Model, steps: int) -> dict[str, Any]:
    """Every variable and slot after `steps` steps, trained without any ps."""
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        spec = model.model_fn(features, labels, "train")
        rate = tf1.placeholder(tf1.float32, [])
        assert spec.optimizer is not None
        optimizer = spec.optimizer(rate)
        update = optimizer.minimize(spec.loss)
        init = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(init)
        for step in range(steps):
            value = spec.learning_rate(step) if callable(spec.learning_rate) else spec.learning_rate
            session.run(update, {rate: value, **dict(zip(batch, inputs.draw_endlessly(), strict=True))})
        with graph.as_default():
            return session.run({v.op.name: v for v in tf1.global_variables()})


@pytest.mark.parametrize("layout", long_but(["2 ps, sliced"], LAYOUTS))
@pytest.mark.parametrize("optimizer", long_but(["sgd"], ["sgd", "adam"]))
def test_twenty_steps_equal_plain_tensorflow(layout: str, optimizer: str, tmp_path: Any) -> None:
    num_ps, slice_bytes = LAYOUTS[layout]
    model = linear_model(OPTIMIZERS[optimizer])
    compare(model, train(LocalCluster(num_ps), model, STEPS, slice_bytes=slice_bytes, checkpoint_dir=str(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - {"sgd", "adam"}))
def test_every_optimizer_sliced_over_two_ps(optimizer: str, tmp_path: Any) -> None:
    model = linear_model(OPTIMIZERS[optimizer])
    compare(model, train(LocalCluster(2), model, STEPS, slice_bytes=64, checkpoint_dir=str(tmp_path)))


@pytest.mark.long
def test_a_learning_rate_function_of_the_global_step(tmp_path: Any) -> None:
    model = linear_model(OPTIMIZERS["sgd"], learning_rate=lambda step: 0.2 * 0.9**step)
    compare(model, train(LocalCluster(1), model, STEPS, checkpoint_dir=str(tmp_path)))


@pytest.mark.parametrize("layout", long_but(["2 ps, sliced"], LAYOUTS))
@pytest.mark.parametrize("optimizer", long_but(["adam"], sorted(OPTIMIZERS)))
def test_twenty_rounds_of_one_worker(optimizer: str, layout: str, tmp_path: Any) -> None:
    num_ps, slice_bytes = LAYOUTS[layout]
    model = linear_model(OPTIMIZERS[optimizer], learning_rate=lambda step: 0.1 * 0.95**step)
    settings = {"slice_bytes": slice_bytes, "checkpoint_dir": str(tmp_path), "mode": "sync"}
    compare(model, train(LocalCluster(num_ps), model, STEPS, **settings))


def compare(model: Model, run: Any) -> None:
    """The last checkpoint of the run against plain TensorFlow; variables and slots, within 1e-6."""
    expected = plain_tensorflow(model, STEPS)
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    assert reader.get_tensor("global_step") == STEPS
    assert {"hidden/kernel", "hidden/bias", "out"} <= set(expected)
    for name, value in expected.items():
        # Adam's powers are kept once per bucket: any variable's are the ones of the single optimizer.
        ours = reader.get_tensor(f"out/{name}" if name.endswith("_power") else name)
        np.testing.assert_allclose(ours, value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert all(result.dropped == 0 and result.staleness == 0 for result in run.results)
