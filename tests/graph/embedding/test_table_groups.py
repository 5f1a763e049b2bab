"""Table groups: the lookups of a step travel together, and what is trained is what plain TensorFlow trains."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from benchmarks.receives import receives
from psruntime.core.plan.plan import make_plan, report
from psruntime.errors import UserCodeError
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model, ModelSpec
from tests.graph.model.test_tables import saved_and_moved
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, STEPS, plain_tensorflow
from tests.support.local_cluster import LocalCluster, Run, train

WIDTH = 4
ROWS = {"user": 40, "item": 23, "shop": 7, "word": 31, "kind": 5, "looped": 9}  # all are alike
ALONE = {"bias": 40}  # its rows are scalars
BATCH, IDS = 8, 3
LOOKED_UP_IN_A_LOOP = "looped"


def input_fn(context: Context) -> Any:
    """(ids int64 [batch, tables, IDS], labels [batch]), the same in every run; low ids often, the last two never."""
    limits = np.array([*ROWS.values(), *ALONE.values()]) - 2

    def example(i: Any) -> tuple[Any, Any]:
        draw = tf1.random.stateless_uniform([len(limits), IDS], seed=[tf1.cast(i, tf1.int32), 1])
        ids = tf1.cast(tf1.floor(draw * draw * limits[:, np.newaxis]), tf1.int64)
        return ids, tf1.reduce_sum(tf1.sin(tf1.cast(ids, tf1.float32)))

    return tf1.data.Dataset.range(200).map(example).batch(context.batch_size, drop_remainder=True)


def table(name: str) -> Any:
    values = tf1.truncated_normal_initializer(stddev=0.5, seed=len(name))
    return tf1.get_variable(name, [ROWS[name], WIDTH], initializer=values)


def predict(ids: Any) -> Any:
    """ids [batch, tables, IDS] -> [batch], by every kind of lookup."""
    of = dict(zip([*ROWS, *ALONE], tf1.unstack(ids, axis=1), strict=True))
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
        user, item, shop, word, kind, looped = (table(name) for name in ROWS)
        bias = tf1.get_variable("bias", [ALONE["bias"]], initializer=tf1.zeros_initializer())
        kernel = tf1.get_variable("kernel", [WIDTH, 1], initializer=tf1.ones_initializer())
    plain = tf1.nn.embedding_lookup(user, of["user"])  # [batch, IDS, WIDTH]
    again = tf1.gather(user, tf1.cast(of["user"][:, 0], tf1.int32))
    places = tf1.stack([tf1.repeat(tf1.range(BATCH, dtype=tf1.int64), IDS),
                        tf1.tile(tf1.range(IDS, dtype=tf1.int64), [BATCH])], axis=1)  # fmt: skip
    shape = [BATCH, IDS]
    sparse = tf1.SparseTensor(places, tf1.reshape(of["item"], [-1]), shape)
    weights = tf1.SparseTensor(places, tf1.reshape(tf1.cos(tf1.cast(of["item"], tf1.float32)), [-1]), shape)
    weighted = tf1.nn.embedding_lookup_sparse(item, sparse, weights, combiner="sum")
    safe = tf1.nn.safe_embedding_lookup_sparse(shop, tf1.SparseTensor(places, tf1.reshape(of["shop"], [-1]), shape))
    ragged = tf.RaggedTensor.from_tensor(of["word"])
    words = tf1.reduce_sum(tf.nn.embedding_lookup(word, ragged).to_tensor(), axis=1)
    best = tf1.argmax(plain[:, 0], axis=1)  # ids that depend on rows
    second = tf1.nn.embedding_lookup(kind, best % (ROWS["kind"] - 2))
    third = tf1.gather(word, tf1.argmax(second, axis=1))
    _, summed = tf1.while_loop(
        lambda i, _: i < 2,
        lambda i, total: (i + 1, total + tf1.gather(looped, of["looped"][:, i])),
        [0, tf1.zeros([BATCH, WIDTH])],
        shape_invariants=[tf1.TensorShape([]), tf1.TensorShape([None, WIDTH])],
    )
    either = tf1.cond(tf1.reduce_sum(of["looped"]) > 20, lambda: tf1.gather(looped, of["looped"][:, 2]), lambda: summed)
    rows = tf1.reduce_sum(plain, axis=1) + again + weighted + safe + words + second + third + summed + either
    return tf1.tanh(tf1.matmul(rows, kernel))[:, 0] + tf1.reduce_sum(tf1.gather(bias, of["bias"]), axis=1)


def tables_model(optimizer: Any, learning_rate: float = 0.03, **spec: Any) -> Model:
    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        predicted = predict(features)
        metrics = {"mean_prediction": tf1.metrics.mean(predicted)} if mode == "eval" else None
        return ModelSpec(
            tf1.reduce_mean(tf1.square(predicted - labels)), optimizer, learning_rate, metrics=metrics, **spec
        )

    return Model("tests.tables", input_fn, model_fn)


def compare(model: Model, run: Run) -> None:
    """The last checkpoint of the run against plain TensorFlow: every variable and slot, within 1e-6 of its largest."""
    expected, ours = plain_tensorflow(model, STEPS), run.saved()
    assert set(expected) >= {*ROWS, *ALONE}
    for name, value in expected.items():
        mine = ours[f"kernel/{name}"] if name.endswith("_power") else ours[name]
        np.testing.assert_allclose(mine, value, rtol=0, atol=1e-6 * max(1.0, np.abs(value).max()), err_msg=name)
    assert all(result.dropped == 0 and result.staleness == 0 for result in run.results)


# Gradients that nearly cancel out are as large as their rounding, which Adam makes whole steps of without an epsilon.
EVERY = {**OPTIMIZERS, "adam": partial(tf1.train.AdamOptimizer, epsilon=0.01)}


def grouped(run: Run) -> list[set[str]]:
    return [{of_group.name for of_group in group.tables} for group in run.graph.plan.groups]


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad", "rmsprop", "ftrl"])
@pytest.mark.optimised
def test_twenty_steps_equal_plain_tensorflow(optimizer: str, num_ps: int, tmp_path: Any) -> None:
    model = tables_model(EVERY[optimizer])
    run = train(LocalCluster(num_ps), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert grouped(run) == [set(ROWS) - {LOOKED_UP_IN_A_LOOP}, set(ALONE)]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.optimised
def test_twenty_rounds_equal_plain_tensorflow(optimizer: str, tmp_path: Any) -> None:
    model = tables_model(EVERY[optimizer])
    compare(model, train(LocalCluster(3), model, STEPS, mode="sync", checkpoint_dir=str(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize("layout", [(3, 2), (1, 3)])
def test_a_checkpoint_goes_from_any_number_of_ps_to_any_other(layout: tuple[int, int], tmp_path: Any) -> None:
    saved = saved_and_moved(tables_model(OPTIMIZERS["adagrad"]), layout, str(tmp_path))
    assert saved["user"].shape == saved["user/Adagrad"].shape == (ROWS["user"], WIDTH)


@pytest.mark.long
@pytest.mark.parametrize("chunk", [10, 1 << 20])
def test_initial_values_and_checkpoints_move_in_chunks(
    chunk: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come to their places whatever fits into a chunk; a row at least does."""
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", chunk * WIDTH * 4)
    model = tables_model(OPTIMIZERS["adagrad"])
    expected = plain_tensorflow(model, 0)
    for num_ps, event in [(3, "initialised"), (2, "restored")]:
        run = train(LocalCluster(num_ps), model, 0, checkpoint_dir=str(tmp_path))
        assert run.named(event), "once from the model, once from the checkpoint"
        ours = run.saved()
        for name in (*ROWS, *ALONE, "user/Adagrad"):
            np.testing.assert_array_equal(ours[name], expected[name], err_msg=name)


@pytest.mark.long
def test_mini_batches_of_a_step_are_summed_by_rows(tmp_path: Any) -> None:
    """Two mini-batches of 8 are a batch of 16, but for the order of sums."""
    model = tables_model(OPTIMIZERS["adagrad"])
    run = train(LocalCluster(2), model, 5, checkpoint_dir=str(tmp_path), local_steps=2)
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    with tf1.Graph().as_default() as graph:
        batches = [inputs.layout.placeholders() for _ in range(2)]
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            losses = [model.model_fn(features, labels, "train").loss for features, labels, _ in batches]
        update = tf1.train.AdagradOptimizer(0.03).minimize(tf1.add_n(losses) / 2)
        init = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(init)
        for _ in range(5):
            drawn = [inputs.draw_endlessly() for _ in batches]
            feeds = zip([t for _, _, batch in batches for t in batch], [a for d in drawn for a in d], strict=True)
            session.run(update, dict(feeds))
        with graph.as_default():
            expected = session.run({v.op.name: v for v in tf1.global_variables()})
    ours = run.saved()
    for name in (*ROWS, *ALONE):
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2])
def test_rows_that_have_no_gradient_are_not_moved(num_ps: int, tmp_path: Any) -> None:
    """Momentum moves a row whose gradient is zero; stock leaves one alone that only something without gradient has."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # the second lookup of each table has none
        total = 0.0
        for number, name in enumerate(["user", "item", "word"]):
            rows = table(name)
            kept = tf1.stop_gradient(tf1.gather(rows, features[:, number, 1])) if number < 2 else 0.0
            total += tf1.reduce_sum(tf1.gather(rows, features[:, number, 0]) * (1.0 + kept), axis=1)
        return ModelSpec(tf1.reduce_mean(tf1.square(total - labels)), OPTIMIZERS["momentum"], 0.01)

    model = Model("tests.stopped", input_fn, model_fn)
    ours = train(LocalCluster(num_ps), model, STEPS, checkpoint_dir=str(tmp_path)).saved()
    for name, value in plain_tensorflow(model, STEPS).items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-6 * max(1.0, np.abs(value).max()), err_msg=name)


@pytest.mark.long
@pytest.mark.optimised
def test_each_id_and_each_row_travels_once_however_many_lookups_there_are() -> None:
    cluster = LocalCluster(2)
    graph = train(cluster, tables_model(OPTIMIZERS["sgd"]), 1).graph
    group = graph.plan.groups[0]
    first, second, third = graph.model.lookups.fetched(group)
    ids = np.zeros([BATCH, len(ROWS) + len(ALONE), IDS], np.int64)
    ids[0, :, 1] = 2
    feed = dict(zip(graph.model.batch, [ids, np.zeros([BATCH], np.float32)], strict=True))
    with cluster.session(graph.graph) as session:
        found = session.run([first.keys, first.rows, second.keys, third.keys], feed)
    rows = {(at.offset + row) % 2 for at in group.tables for row in (0, 2)}
    assert rows == {0, 1}
    sent = sorted((ps, int(i)) for ps, of_ps in enumerate(found[0]) for i in of_ps)
    level_0 = [at for at in group.tables if at.name != "kind"]
    assert sent == sorted(((at.offset + row) % 2, (at.offset + row) // 2) for at in level_0 for row in (0, 2))
    assert [len(r) for r in found[1]] == [len(i) for i in found[0]]
    kind = next(at for at in group.tables if at.name == "kind")
    assert 0 < sum(map(len, found[2])) <= kind.rows and all(found[3][ps].dtype == np.int32 for ps in range(2))


@pytest.mark.long
def test_an_id_that_is_no_row_is_named_with_its_table(tmp_path: Any) -> None:
    def beyond(context: Context) -> Any:
        return input_fn(context).map(
            lambda ids, labels: (ids + 35 * tf1.one_hot(1, 7, dtype=tf1.int64)[:, None], labels)
        )

    model = tables_model(OPTIMIZERS["sgd"])
    wrong = Model(model.name, beyond, model.model_fn)
    with pytest.raises(UserCodeError, match=r"ids of table item must be in \[0, 23\), got\] \[\d+\]"):
        train(LocalCluster(2), wrong, 1, checkpoint_dir=str(tmp_path))


def test_tables_whose_gradient_the_model_takes_are_in_no_group() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        user, item = table("user"), table("item")
        rows = tf1.gather(user, features[:, 0]) + tf1.gather(item, features[:, 1])
        loss = tf1.reduce_mean(tf1.square(tf1.reduce_sum(rows, axis=[1, 2]) - labels))
        (slices,) = tf1.gradients(loss, [user])
        return ModelSpec(loss + 0.1 * tf1.reduce_sum(tf1.square(slices.values)), tf1.train.AdagradOptimizer, 0.1)

    inputs = InputStream(Model("tests.penalty", input_fn, model_fn), Context("train", 0, 1, 8, "", 3))
    specs = record_specs(Model("tests.penalty", input_fn, model_fn), inputs, "train")
    assert {spec.name: spec.group for spec in specs} == {"user": 0, "item": 1}


@pytest.mark.long
def test_evaluation_looks_up_in_groups() -> None:
    cluster = LocalCluster(2)
    model = tables_model(OPTIMIZERS["sgd"])
    run = train(cluster, model, 3)
    evaluation = PulledEvaluation(model, Context("eval", 0, 1, 8, "", 3), run.graph.plan, cluster.max_workers)
    with closing(cluster.session(evaluation.graph)) as session:
        values = evaluation.measure(session)
    variables = plain_tensorflow(model, 3)
    inputs = InputStream(model, Context("eval", 0, 1, 8, "", 3))
    found = []
    with tf1.Graph().as_default() as graph:
        features, _, batch = inputs.layout.placeholders()
        predicted = predict(features)
        assign = [variable.assign(variables[variable.op.name]) for variable in tf1.global_variables()]
    with tf1.Session(graph=graph) as session:
        session.run(assign)
        while (drawn := inputs.draw()) is not None:
            found.append(session.run(predicted, dict(zip(batch, drawn, strict=True))))
    np.testing.assert_allclose(values["mean_prediction"], np.concatenate(found).mean(), rtol=1e-5)


@pytest.mark.long
@pytest.mark.optimised
def test_a_step_moves_the_tensors_that_the_plan_counts() -> None:
    """Of one level: the same number whether there are two tables in a group or twenty."""

    def model_of(count: int) -> Model:
        def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
            names = list(ROWS)[:count]
            rows = tf1.add_n([tf1.reduce_sum(tf1.gather(table(n), features[:, i]), 1) for i, n in enumerate(names)])
            return ModelSpec(tf1.reduce_mean(tf1.square(tf1.reduce_sum(rows, 1) - labels)), OPTIMIZERS["adagrad"], 0.1)

        return Model("tests.counted", input_fn, model_fn)

    counted = []
    for count in (2, 6):
        cluster, model = LocalCluster(2), model_of(count)
        run = train(cluster, model, 1)
        batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
        feed = {run.graph.request.fed: run.graph.request.values((0, 77, 100, 77))}
        told = tf1.RunMetadata()
        with cluster.session(run.graph.graph) as session:
            feed.update(zip(run.graph.model.batch, batch, strict=True))
            session.run(run.graph.step, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
        plan = run.graph.plan
        assert plan == make_plan(plan.specs, 2, run.job.slice_bytes, run.job.pack_bytes)
        counted.append(sum(receives(told.partition_graphs).values()))
        assert counted[-1] == report(plan).tensors
    assert counted[0] == counted[1]


def with_more(more: Any, **spec: Any) -> Model:
    """A model of two tables; more(ids, rows) adds to the loss what it returns, and may look up more."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        rows = [tf1.gather(table(name), features[:, number, 0]) for number, name in enumerate(["user", "item"])]
        loss = tf1.reduce_mean(tf1.square(tf1.reduce_sum(tf1.add_n(rows), axis=1) - labels)) + more(features, rows)
        return ModelSpec(loss, OPTIMIZERS["adagrad"], 0.1, **spec)

    return Model("tests.more", input_fn, model_fn)


def assert_trains_as_plain_tensorflow(model: Model, folder: Any) -> Run:
    run = train(LocalCluster(2), model, STEPS, checkpoint_dir=str(folder))
    ours = run.saved()
    for name, value in plain_tensorflow(model, STEPS).items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-6 * max(1.0, np.abs(value).max()), err_msg=name)
    return run


@pytest.mark.long
def test_a_lookup_may_wait_for_the_rows_of_another(tmp_path: Any) -> None:
    def more(ids: Any, rows: list[Any]) -> Any:
        word, third = table("word"), ids[:, 2, 0]
        with tf1.control_dependencies([tf1.debugging.assert_all_finite(rows[0], "finite"), rows[1]]):
            return tf1.reduce_mean(tf1.square(tf1.gather(word, third)))

    run = assert_trains_as_plain_tensorflow(with_more(more), tmp_path)
    assert len(run.graph.model.lookups.fetched(run.graph.plan.groups[0])) == 1, "of one level nevertheless"


@pytest.mark.long
def test_a_lookup_that_the_step_does_not_need_does_not_travel_in_it(tmp_path: Any) -> None:
    """As that of a Keras model's own symbolic input, which nobody feeds, and one that a hook runs without a batch."""
    found: list[Any] = []

    class Neighbours(tf1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.rows = tf1.get_default_graph().get_tensor_by_name("neighbours:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            found.append(run_context.session.run(self.rows))

    def more(ids: Any, rows: list[Any]) -> Any:
        tf1.reduce_sum(tf1.gather(table("word"), tf1.placeholder(tf1.int64, [None])))
        with tf1.variable_scope("", reuse=True):
            tf1.identity(tf1.gather(tf1.get_variable("user", [ROWS["user"], WIDTH]), [1, 2, 3]), name="neighbours")
            return tf1.reduce_mean(tf1.gather(tf1.get_variable("word", [ROWS["word"], WIDTH]), ids[:, 3, 0]))

    run = assert_trains_as_plain_tensorflow(with_more(more, hooks=[Neighbours()]), tmp_path)
    assert len(run.graph.plan.groups[0].tables) == 3
    assert len(found) == STEPS and found[-1].shape == (3, WIDTH) and np.any(found[0] != found[-1])


@pytest.mark.long
def test_no_lookup_waits_for_rows_that_it_does_not_need() -> None:
    """The first level needs the batch alone."""
    graph = train(LocalCluster(2), tables_model(OPTIMIZERS["sgd"]), 0).graph
    for group in graph.plan.groups:
        first = graph.model.lookups.fetched(group)[0]
        assert not {op.type for op in ancestors(first.keys)} & {"ResourceGather", "ReadVariableOp"}
