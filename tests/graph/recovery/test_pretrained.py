"""init_from_checkpoint and warm_start in model_fn: each kind of variable begins with the values of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime.errors import UsageError
from psruntime.graph.base import variable_values
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.model import EVAL, Context, ModelSpec
from tests.graph.recovery.test_warm_start import begun, numbers, save
from tests.support.local_cluster import LocalCluster, train
from tests.support.small_models import error, get, linear, model_of

VALUES = {
    "body/kernel": numbers(5, 4),
    "body/frozen": numbers(5, seed=1),
    "body/parts": numbers(5, 4, seed=2),
    "body/table": numbers(7, 4, seed=3),
    "body/other": numbers(9, 4, seed=4),
    "body/fixed": numbers(7, 4, seed=5),
    "body/mean": numbers(5, seed=6),
}
TRAINABLE = {"body/kernel", "body/parts", "body/table", "body/other"}

Init = Callable[[str, dict[str, Any]], None]


def by_scope(path: str, _: dict[str, Any]) -> None:
    tf1.train.init_from_checkpoint(path, {"body/": "body/"})


def by_root(path: str, _: dict[str, Any]) -> None:
    tf1.train.init_from_checkpoint(path, {"/": "/"})


def by_name(path: str, _: dict[str, Any]) -> None:
    tf1.train.init_from_checkpoint(path, {name: name for name in VALUES})


def by_variable(path: str, variables: dict[str, Any]) -> None:
    tf1.train.init_from_checkpoint(path, variables)


def by_warm_start(path: str, _: dict[str, Any]) -> None:
    tf1.train.warm_start(path, vars_to_warm_start="body/")


def by_warm_start_of_all(path: str, _: dict[str, Any]) -> None:
    tf1.train.warm_start(path, vars_to_warm_start=["body/"])


def of_all_kinds(path: str, init: Init) -> Any:
    """A dense variable, frozen ones, parts, two tables of a group, a table that is not trained, a moving average."""

    def build(x: Any, y: Any, ids: Any) -> Any:
        with tf1.variable_scope("body"):
            kernel = get("kernel", [5, 4])
            frozen = tf1.get_variable("frozen", [5], trainable=False)
            parts = get("parts", [5, 4], partitioner=tf1.fixed_size_partitioner(2))
            table, other = get("table", [7, 4]), get("other", [9, 4])
            fixed = tf1.get_variable("fixed", [7, 4], trainable=False)
            mean = tf1.get_variable("mean", [5], trainable=False)
        variables = {v.op.name: v for v in (kernel, frozen, table, other, fixed, mean)}
        init(path, {**variables, "body/parts": list(parts)})
        shadow = tf1.get_variable("shadow", initializer=kernel.initialized_value() * 1.0, trainable=False)
        rows = [tf1.nn.embedding_lookup(t, ids) for t in (table, other, fixed)]
        prediction = tf1.reduce_sum(tf1.matmul(x * frozen, kernel + parts) + sum(rows), axis=1)
        loss = error(prediction, y) + 0.0 * (tf1.reduce_sum(mean) + tf1.reduce_sum(shadow))
        return ModelSpec(loss, tf1.train.AdagradOptimizer, 1e-3, updates=[mean.assign(mean * 0.5)])

    return model_of(build)


BEGINNINGS = [
    (by_scope, {}, set(VALUES)),
    (by_root, {"plan": "per-variable"}, set(VALUES)),
    (by_name, {"slice_bytes": 64}, set(VALUES)),
    (by_variable, {"mode": "sync"}, set(VALUES)),
    (by_warm_start, {}, TRAINABLE),
    (by_warm_start_of_all, {}, set(VALUES)),
]


@pytest.mark.long
@pytest.mark.parametrize(("init", "settings", "taken"), BEGINNINGS)
def test_each_kind_of_variable_begins_with_the_values(
    init: Init, settings: dict[str, Any], taken: set[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(variable_values, "CHUNK_BYTES", 48)  # tables and parts travel in several chunks
    path = save(tmp_path, **VALUES, global_step=np.int64(70), shadow=VALUES["body/kernel"])
    model = of_all_kinds(path, init)
    run = train(LocalCluster(2), model, 2, checkpoint_dir=str(tmp_path / "own"), save_steps=1, **settings)
    first = begun(run)
    for name, value in VALUES.items():
        if name in taken:
            np.testing.assert_array_equal(first[name], value, err_msg=name)
        else:
            assert np.any(first[name] != value), name
    np.testing.assert_array_equal(first["shadow"], VALUES["body/kernel"], "it begins with what the kernel begins with")
    last = run.saved()
    np.testing.assert_array_equal(last["body/frozen"], first["body/frozen"])
    np.testing.assert_allclose(last["body/mean"], first["body/mean"] / 4)
    assert np.any(last["body/kernel"] != first["body/kernel"]), "it trains on from there"
    assert [event["path"] for event in run.named("pretrained")] == [path]
    again = train(LocalCluster(2), model, 1, checkpoint_dir=str(tmp_path / "own"), **settings)
    assert again.named("restored") and not again.named("pretrained"), "the job's own checkpoint wins"


def test_a_moving_average_that_was_made_before_begins_with_the_value_too(tmp_path: Path) -> None:
    path = save(tmp_path, kernel=numbers(5, 1))

    def build(x: Any, y: Any, _: Any) -> Any:
        kernel = get("kernel", [5, 1])
        shadow = tf1.get_variable("shadow", initializer=kernel.initialized_value(), trainable=False)
        tf1.train.init_from_checkpoint(path, {"kernel": kernel})
        return linear(x, kernel, y) + 0.0 * tf1.reduce_sum(shadow)

    run = train(LocalCluster(1), model_of(build), 1, checkpoint_dir=str(tmp_path / "own"))
    np.testing.assert_array_equal(begun(run)["shadow"], numbers(5, 1))


def test_variables_of_one_bucket_begin_with_two_checkpoints(tmp_path: Path) -> None:
    paths = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths[name] = save(tmp_path / name, value=numbers(5, 1, seed=ord(name)))

    def build(x: Any, y: Any, _: Any) -> Any:
        kernels = {name: get(name, [5, 1]) for name in ("a", "b", "c")}
        for name, path in paths.items():
            tf1.train.init_from_checkpoint(path, {"value": kernels[name]})
        return linear(x, sum(kernels.values()), y)

    first = begun(train(LocalCluster(1), model_of(build), 1, checkpoint_dir=str(tmp_path / "own")))
    for name in paths:
        np.testing.assert_array_equal(first[name], numbers(5, 1, seed=ord(name)))
    assert np.any(first["c"]), "this has its own initial value"


@pytest.mark.long
def test_the_evaluation_calls_it_too(tmp_path: Path) -> None:
    path = save(tmp_path, **VALUES)
    model = of_all_kinds(path, by_scope)
    plan = train(LocalCluster(1), model, 1).graph.plan
    PulledEvaluation(model, Context(EVAL, 0, 1, 8, "", 0), plan, 1)


def dynamic(x: Any, y: Any, ids: Any) -> Any:
    rows = psruntime.embedding(ids, "body/table", 4, capacity=64)
    return linear(x, get("kernel", [5, 1]), y) + tf1.reduce_sum(rows)


def python_rows(x: Any, y: Any, ids: Any, call: Any = tf1.py_func) -> Any:
    rows = tf1.get_variable(
        "table", initializer=lambda: tf1.ensure_shape(call(lambda: numbers(7, 4), [], tf1.float32), [7, 4])
    )
    return error(tf1.reduce_sum(tf1.nn.embedding_lookup(rows, ids), axis=1), y)


def with_map(build: Callable[..., Any], assignment_map: dict[str, str]) -> Callable[..., Any]:
    def built(*batch: Any) -> Any:
        loss = build(*batch)
        tf1.train.init_from_checkpoint(built.path, assignment_map)  # type: ignore[attr-defined]
        return loss

    return built


def wider(x: Any, y: Any, _: Any) -> Any:
    with tf1.variable_scope("body"):
        return linear(x, get("kernel", [5, 1]), y)


def stepped(x: Any, y: Any, _: Any) -> Any:
    tf1.train.get_or_create_global_step()
    return linear(x, get("kernel", [5, 1]), y)


def with_vocabulary(x: Any, y: Any, ids: Any) -> Any:
    loss = python_free(x, y, ids)
    vocabulary = tf1.train.VocabInfo("new", 7, 0, "old")
    tf1.train.warm_start(with_vocabulary.path, "table", {"table": vocabulary})  # type: ignore[attr-defined]
    return loss


def python_free(_x: Any, y: Any, ids: Any) -> Any:
    return error(tf1.reduce_sum(tf1.nn.embedding_lookup(get("table", [7, 4]), ids), axis=1), y)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "dynamic": (with_map(dynamic, {"body/": "body/"}), "table cannot begin .* it is a dynamic table; leave it out"),
    "shape": (with_map(wider, {"body/": "body/"}), r"is float32\[5, 4\], and the variable is float32\[5, 1\]"),
    "step": (with_map(stepped, {"global_step": "global_step"}), "psruntime counts the global step"),
    "vocabulary": (with_vocabulary, "VocabInfo is not supported, which table has; .* --warm-start"),
    "py_func": (python_rows, "table table is initialised by a Python function .* --warm-start"),
    "numpy_function": (
        lambda *batch: python_rows(*batch, call=lambda f, args, kind: tf1.numpy_function(f, args, kind)),
        "table table is initialised by a Python function",
    ),
    "py_function": (
        lambda *batch: python_rows(*batch, call=lambda f, args, kind: tf1.py_function(f, args, kind)),
        "table table is initialised by a Python function",
    ),
    "in a branch": (
        lambda *batch: python_rows(
            *batch,
            call=lambda f, args, kind: tf1.cond(
                tf1.constant(True), lambda: tf1.py_func(f, args, kind), lambda: tf1.zeros([7, 4])
            ),
        ),
        "table table is initialised by a Python function",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_begin_so_is_refused_by_name(case: str, tmp_path: Path) -> None:
    build, text = REFUSED[case]
    path = save(tmp_path, **VALUES, table=numbers(7, 4), global_step=np.int64(70))
    build.path = path  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=text):
        train(LocalCluster(1), model_of(build), 0)


def test_a_dense_variable_may_be_initialised_by_a_python_function(tmp_path: Path) -> None:
    def build(x: Any, y: Any, _: Any) -> Any:
        value = lambda: tf1.ensure_shape(tf1.py_func(lambda: numbers(5, 1), [], tf1.float32), [5, 1])  # noqa: E731
        return linear(x, tf1.get_variable("kernel", initializer=value), y)

    run = train(LocalCluster(1), model_of(build), 0, checkpoint_dir=str(tmp_path))
    np.testing.assert_array_equal(begun(run)["kernel"], numbers(5, 1))
