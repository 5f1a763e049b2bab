"""Tables: variables that stay on the ps, are looked up there, and get sparse updates."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, LEDGER_SIZE, STALE
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, STEPS, plain_tensorflow
from tests.support.embedding_model import IDS, ROWS, WIDTH, embedding_model, make_variables, predict
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.selection import long_but

TABLES = {"embedding", "wide"}
EVERY = ["sgd", "momentum", "adam", "adagrad", "rmsprop", "ftrl"]


def compare(model: Model, run: Run) -> None:
    """The last checkpoint of the run against plain TensorFlow: every variable, every slot, within 1e-6."""
    expected, ours = plain_tensorflow(model, STEPS), run.saved()
    assert {"embedding", "wide", "kernel", "bias"} <= set(expected)
    for name, value in expected.items():
        mine = ours[f"bias/{name}"] if name.endswith("_power") else ours[name]
        np.testing.assert_allclose(mine, value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert all(result.dropped == 0 and result.staleness == 0 for result in run.results)


@pytest.mark.parametrize("num_ps", long_but([2], [1, 2]))
@pytest.mark.parametrize("optimizer", long_but(["adam"], EVERY))
@pytest.mark.optimised
def test_twenty_steps_equal_plain_tensorflow(optimizer: str, num_ps: int, tmp_path: Any) -> None:
    model = embedding_model(OPTIMIZERS[optimizer], 0.03)
    run = train(LocalCluster(num_ps), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert {b.variable for b in run.graph.plan.buckets if b.is_table} == TABLES


@pytest.mark.long
@pytest.mark.parametrize("optimizer", EVERY)
@pytest.mark.optimised
def test_twenty_rounds_equal_plain_tensorflow(optimizer: str, tmp_path: Any) -> None:
    model = embedding_model(OPTIMIZERS[optimizer], 0.03)
    compare(model, train(LocalCluster(2), model, STEPS, mode="sync", checkpoint_dir=str(tmp_path)))


@pytest.mark.long
def test_a_dense_optimizer_would_differ(tmp_path: Any) -> None:
    """The comparison above can tell a lazy update from a dense one."""
    model = embedding_model(OPTIMIZERS["momentum"], 0.03)

    def loss(ids: Any, labels: Any) -> Any:
        return tf1.reduce_mean(tf1.square(predict(ids) - labels)) + 0.0 * tf1.reduce_sum(make_variables()[0])

    dense = embedding_model(OPTIMIZERS["momentum"], 0.03, loss)
    run = train(LocalCluster(1), dense, STEPS, checkpoint_dir=str(tmp_path))
    compare(dense, run)
    assert np.abs(plain_tensorflow(model, STEPS)["embedding"] - run.saved()["embedding"]).max() > 1e-3


def tied(ids: Any, labels: Any) -> Any:
    """Looked up, and multiplied as a whole, as tied softmax weights are."""
    embedding = make_variables()[0]
    rows = tf1.nn.embedding_lookup(embedding, ids[:, 0])
    logits = tf1.matmul(rows, embedding, transpose_b=True)
    return tf1.reduce_mean(
        tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=ids[:, 1], logits=logits)
    ) + tf1.reduce_mean(tf1.square(predict(ids) - labels))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_variable_that_is_used_whole_as_well_is_pulled(optimizer: str, tmp_path: Any) -> None:
    model = embedding_model(OPTIMIZERS[optimizer], 0.03, tied)
    run = train(LocalCluster(2), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert {b.variable for b in run.graph.plan.buckets if b.is_table} == {"wide"}


def read_whole(ids: Any, labels: Any) -> Any:
    """Also reads the table as a whole, outside the gradient."""
    penalty = tf1.reduce_sum(tf1.stop_gradient(tf1.square(make_variables()[0])))
    return tf1.reduce_mean(tf1.square(predict(ids) - labels)) * (1.0 + 0.01 * penalty)


@pytest.mark.long
def test_a_table_may_be_read_whole(tmp_path: Any) -> None:
    model = embedding_model(OPTIMIZERS["adagrad"], 0.01, read_whole)
    run = train(LocalCluster(2), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert {b.variable for b in run.graph.plan.buckets if b.is_table} == TABLES


@pytest.mark.long
def test_a_table_whose_gradient_turns_out_dense(tmp_path: Any) -> None:
    """The model changes between its builds: sparse where it is learnt, dense where it is trained."""
    calls: list[int] = []

    def fickle(ids: Any, labels: Any) -> Any:
        calls.append(1)
        loss = tf1.reduce_mean(tf1.square(predict(ids) - labels))
        return loss if len(calls) == 1 else loss + 0.1 * tf1.reduce_sum(tf1.square(make_variables()[0]))

    model = embedding_model(OPTIMIZERS["momentum"], 0.03, fickle)
    run = train(LocalCluster(2), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert run.graph.plan.pieces_of("embedding")[0][0].is_table


@pytest.mark.long
def test_keras_embeddings_are_tables(tmp_path: Any) -> None:
    import tf_keras

    def loss(ids: Any, labels: Any) -> Any:
        return tf1.reduce_mean(tf1.square(tf_keras.layers.Embedding(ROWS, 3, name="rows")(ids) - labels[:, None, None]))

    model = embedding_model(OPTIMIZERS["adagrad"], loss=loss)
    run = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path))
    assert run.graph.plan.specs == (VariableSpec("rows/embeddings", (ROWS, 3), "float32", sparse=True, group=1),)
    sums = run.saved()["rows/embeddings/Adagrad"]  # 0.1 at the start
    touched = (sums != np.float32(0.1)).all(axis=1)
    assert touched[0] and not touched[-5:].any(), "ids are skewed to 0 and never among the last five"


def test_an_optimizer_without_a_sparse_update_is_refused_by_the_name_of_the_variable() -> None:
    class DenseOnly(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
        def _resource_apply_sparse_duplicate_indices(self, *_: Any) -> None:
            raise NotImplementedError

    with pytest.raises(UsageError, match=r"optimizer DenseOnly cannot update variable \w+, whose gradient is sparse"):
        train(LocalCluster(1), embedding_model(DenseOnly), 1)


# --- refusals ---


@pytest.mark.parametrize("optimizer", long_but(["adam"], sorted(OPTIMIZERS)))
def test_a_refused_push_changes_no_bit_of_a_table_or_its_slots(optimizer: str) -> None:
    cluster = LocalCluster(1, max_staleness=0)
    run = train(cluster, embedding_model(OPTIMIZERS[optimizer]), 3)
    graph, stores = run.graph, run.graph.model.stores
    with graph.graph.as_default():
        held = {
            v.op.name: v.read_value()
            for name in stores
            for v in [stores[name].master, *graph.optimizers[name].variables]
        }
    inputs = InputStream(embedding_model(OPTIMIZERS[optimizer]), Context("train", 0, 1, 8, "", 3))
    feed = dict(zip(graph.model.batch, inputs.draw_endlessly(), strict=True))
    with cluster.session(graph.graph) as session:
        before = session.run(held)
        wrong_incarnation = {graph.request.fed: graph.request.values((0, 76, 100, 76))}
        outcomes = session.run(graph.step, {**feed, **wrong_incarnation})["outcomes"]
        assert APPLIED not in np.concatenate(outcomes)[:, 0]
        stale = {version: np.zeros(version.shape) for version in graph.model.versions.values()}
        request = {graph.request.fed: graph.request.values((0, 77, 101, 77))}
        outcomes = session.run(graph.step, {**feed, **stale, **request})["outcomes"]
        assert set(np.concatenate(outcomes)[:-1, 0]) == {STALE}
        for name, value in session.run(held).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        request = {graph.request.fed: graph.request.values((0, 77, 102, 77))}
        outcomes = session.run(graph.step, {**feed, **request})["outcomes"]
        assert set(np.concatenate(outcomes)[:, 0]) == {APPLIED}
        after = session.run(held)
        assert all(np.any(after[f"psruntime/master/{name}"] != before[f"psruntime/master/{name}"]) for name in stores)


# --- checkpoints, books, evaluation ---


@pytest.mark.long
@pytest.mark.parametrize("layout", [(2, 1), (1, 3)])
def test_a_checkpoint_goes_from_any_number_of_ps_to_any_other(layout: tuple[int, int], tmp_path: Any) -> None:
    saved = saved_and_moved(embedding_model(OPTIMIZERS["adagrad"]), layout, str(tmp_path))
    assert saved["embedding"].shape == saved["embedding/Adagrad"].shape == (ROWS, WIDTH)
    assert saved["wide"].shape == saved["wide/Adagrad"].shape == (ROWS,)


def saved_and_moved(model: Model, layout: tuple[int, int], folder: str) -> dict[str, Any]:
    """What a checkpoint of one number of ps holds; one that another number restored from it holds the same."""
    before = train(LocalCluster(layout[0]), model, 4, checkpoint_dir=folder).saved()
    run = train(LocalCluster(layout[1]), model, 0, checkpoint_dir=folder)
    assert run.control_plane.prepared_at == [4]
    after = run.saved()
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    return before


@pytest.mark.long
def test_a_ps_counts_the_bytes_and_updates_of_its_tables() -> None:
    cluster = LocalCluster(2)
    run = train(cluster, embedding_model(OPTIMIZERS["adagrad"]), 5)
    tables = 2 * 4 * (ROWS * WIDTH + ROWS)  # values and accumulators, float32
    others = 2 * 4 * (IDS * WIDTH + 1)
    held = []
    for state in cluster.states:
        state.set_plan(run.graph.plan)
        stats, _ = state.read()
        assert state.unbalanced() == []
        assert stats.received == stats.applied == 5 * stats.buckets
        held.append(stats.bytes_held)
    sections = sum(len(run.graph.sections_on(ps)) for ps in (0, 1))
    books = 8 * (1 + LEDGER_SIZE + 2 * cluster.max_workers) * (len(run.graph.plan.buckets) + 1) + 8
    books += 8 * 3 * cluster.max_workers * sections
    controls = 2 * (8 * (cluster.max_workers + 3) + 4)  # int64, and the scale of the learning rates
    assert sum(held) == tables + others + books + controls


@pytest.mark.long
def test_evaluation_looks_up_on_the_ps() -> None:
    cluster = LocalCluster(2)
    model = embedding_model(OPTIMIZERS["sgd"], 0.03)
    run = train(cluster, model, 3)
    context = Context("eval", 0, 1, 500, "", 3)
    evaluation = PulledEvaluation(model, context, run.graph.plan, cluster.max_workers)
    with closing(cluster.session(evaluation.graph)) as session:
        values = evaluation.measure(session)
    assert {op.type for op in evaluation.graph.get_operations()} >= {"ResourceGather"}
    expected = plain_predictions(model, plain_tensorflow(model, 3), context)
    np.testing.assert_allclose(values["mean_prediction"], expected, rtol=1e-5)


def plain_predictions(model: Model, variables: dict[str, Any], context: Context) -> float:
    inputs = InputStream(model, context)
    embedding, wide, kernel, bias = (variables[n] for n in ("embedding", "wide", "kernel", "bias"))
    found = []
    while (batch := inputs.draw()) is not None:
        ids = batch[0]
        dense = embedding[ids].reshape(len(ids), -1) @ kernel
        found.append(dense[:, 0] + bias + embedding[ids[:, 0]].sum(axis=1) + wide[ids].sum(axis=1))
    return float(np.concatenate(found).mean())


def test_the_specs_say_which_variables_are_sparse() -> None:
    model = embedding_model(OPTIMIZERS["sgd"])
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    assert {s.name: s.sparse for s in record_specs(model, inputs, "train")} == {
        "embedding": True, "wide": True, "kernel": False, "bias": False,
    }  # fmt: skip
