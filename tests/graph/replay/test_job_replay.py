"""The rounds of a log between checkpoints; and a model that is made for a kink."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime import ModelSpec
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import make_plan
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.replay.job_replay import JobReplay, LoggedBatches
from psruntime.graph.replay.rounds import RoundReplay
from psruntime.model import Context, Model
from tests.graph.replay.test_rounds import write

pytestmark = pytest.mark.optimised

ROUNDS, BATCH = 4, 4
PLAN = [1, 1 << 20, 0, 0]
SPECS = [VariableSpec("weight", (), "float32"), VariableSpec("bias", (), "float32")]


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """features: (x, edge) [batch] each.  What lies at the edge has its whole gradient on one side of it, and none on
    the other."""
    x, edge = features
    weight = tf1.get_variable("weight", [], initializer=tf1.ones_initializer())
    bias = tf1.get_variable("bias", [], initializer=tf1.zeros_initializer())
    error = 0.1 * tf1.square(weight * x - labels) + 50 * tf1.nn.relu(weight - edge) + tf1.square(bias - x)
    return ModelSpec(tf1.reduce_mean(error), tf1.train.GradientDescentOptimizer, 0.05)


def batches(edge: float, seed: int) -> Any:
    """[worker, round, example] of ((x, edge), y); the edge is far below, but for one example of round 3."""
    chance = np.random.default_rng(seed)
    x, y = chance.standard_normal((2, 2, ROUNDS, BATCH)).astype(np.float32)
    edges = np.full_like(x, 9)
    edges[1, 2, 3] = edge
    return (x, edges), y


def model_of(edge: float, seed: int) -> Model:
    (x, edges), y = batches(edge, seed)

    def input_fn(context: Context) -> Any:
        own = context.worker_index
        of_one = ((x[own].reshape(-1), edges[own].reshape(-1)), y[own].reshape(-1))
        return tf1.data.Dataset.from_tensor_slices(of_one).batch(BATCH, drop_remainder=False)

    return Model("tests.kink", input_fn, model_fn)


def stream_of(model: Model, index: int, _incarnation: str) -> InputStream:
    return InputStream(model, Context("train", index, 2, BATCH, "", 3))


def rounds(last: int = ROUNDS) -> list[dict[str, Any]]:
    return [
        {
            "global_step": n + 1, "plan": PLAN,
            "parts": [{"worker": w, "incarnation": f"{w}", "batch": n, "examples": float(BATCH)} for w in (0, 1)],
        }
        for n in range(last)
    ]  # fmt: skip


def trained(model: Model, folder: Any, last: int = ROUNDS, joint: bool = False) -> tuple[dict[int, str], Any]:
    """(checkpoints of a job, each in a folder of its own; its values at the end)."""
    paths = {}
    with closing(LoggedBatches(partial(stream_of, model))) as found:
        layout = found.inputs(rounds()[0]).layout
        with closing(RoundReplay(model, layout, make_plan(SPECS, *PLAN))) as replay:
            replay.take({"weight": np.float32(1), "bias": np.float32(0)}.__getitem__, "start")
            for step in range(last + 1):
                (folder / f"{joint}-{last}-{step}").mkdir()
                paths[step] = write(folder / f"{joint}-{last}-{step}", replay.values())
                if step < last:
                    replay.step(found.parts(rounds()[step]), step)
            return paths, replay.values()


def compare(model: Model, paths: dict[int, str], joint: bool, last: int = ROUNDS) -> Any:
    return JobReplay(model, partial(stream_of, model), PLAN[1:], joint).compare(rounds(last), paths, 1e-5)


def test_a_job_is_the_same_and_a_change_is_found_between_its_checkpoints(tmp_path: Any) -> None:
    model = model_of(9, 1)
    paths, values = trained(model, tmp_path)
    same = compare(model, paths, joint=False)
    assert {each.entries for each in same.differences.values()} == {0} and set(same.differences) == {"weight", "bias"}
    assert (same.apart, same.near_kinks, same.not_compared, same.model_draws) == (None, [], [], [])
    (tmp_path / "changed").mkdir()
    values["bias"] = np.nextafter(values["bias"], np.float32(9))
    changed = compare(model, {**paths, ROUNDS: write(tmp_path / "changed", values)}, joint=False)
    assert {name: each.entries for name, each in changed.differences.items()} == {"weight": 0, "bias": 1}
    assert changed.apart == (ROUNDS, ROUNDS) and changed.near_kinks == [], "a bit is within the tolerance"
    (tmp_path / "between").mkdir()
    between = compare(model, {**paths, 2: write(tmp_path / "between", values)}, joint=False)
    assert between.apart == (2, 2) and any(each.entries for each in between.differences.values())
    fewer = compare(model, {0: paths[0], 3: paths[3], ROUNDS: paths[ROUNDS]}, joint=False)
    assert fewer.apart is None


@pytest.mark.long
def test_a_kink_explains_how_the_joint_batch_differs(tmp_path: Any) -> None:
    """After two rounds the weights differ by rounding; in the third an example lies between the two."""
    for seed in range(40):
        plain = model_of(9, seed)
        paths, values = trained(plain, tmp_path, last=2)
        joint = compare(plain, paths, joint=True, last=2).differences["weight"]
        for path in tmp_path.iterdir():
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
        if joint.entries and joint.largest < 1e-6:
            break
    else:
        pytest.fail("the joint batch is never rounded otherwise")
    outcomes = []
    for edge in (np.nextafter(values["weight"], np.float32(-9)), values["weight"]):  # the other weight is on one side
        model = model_of(float(edge), seed)
        folder = tmp_path / str(len(outcomes))
        folder.mkdir()
        paths, _ = trained(model, folder)
        assert {each.entries for each in compare(model, paths, joint=False).differences.values()} == {0}
        outcomes.append(compare(model, paths, joint=True))
    found = [each for each in outcomes if each.differences["weight"].largest > 0.01]
    assert found, [each.differences for each in outcomes]
    assert found[0].apart == (1, 1) or found[0].apart == (2, 2)
    assert any(text.startswith("round 3, worker 0: an input of Relu Relu is ") for text in found[0].near_kinks), found
