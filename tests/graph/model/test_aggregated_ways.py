"""How a model may change its variables: in functions, loops and branches, and in steps that fail afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.model import ModelSpec
from tests.graph.model.aggregated_models import SUM, own, spec_of
from tests.support.control_flow import control_flow
from tests.support.local_cluster import LocalCluster, train
from tests.support.selection import long_but
from tests.support.small_models import ROWS, get, linear, model_of


def in_function(variable: Any) -> Any:
    @tf1.function
    def change(by: Any) -> Any:
        variable.assign_add(by)
        return variable.read_value()

    return change(2.0)


def in_loop(variable: Any) -> Any:
    def body(i: Any) -> Any:
        with tf1.control_dependencies([variable.assign_add(1.0)]):
            return i + 1

    return tf1.while_loop(lambda i: i < 2, body, [0])


def in_branch(variable: Any) -> Any:
    return tf1.cond(tf1.equal(1, tf1.size(variable)), lambda: variable.assign_add(2.0), lambda: tf1.constant(0.0))


@pytest.mark.parametrize("v2", long_but([True], [True, False]), ids=["v2", "v1"])
@pytest.mark.parametrize("way", long_but([in_loop], [in_function, in_loop, in_branch]), ids=lambda way: way.__name__)
def test_they_may_be_changed_in_functions_loops_and_branches(way: Any, v2: bool, tmp_path: Any) -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        total = own("total", [], SUM)
        return spec_of(linear(x, get("kernel", [5, 1]), y), [way(total)])

    with control_flow(v2):
        for local_steps in (1, 2):
            folder = str(tmp_path / str(local_steps))
            run = train(LocalCluster(1), model_of(build), 3, checkpoint_dir=folder, local_steps=local_steps)
            assert run.saved()["total"] == 6.0 * local_steps


@pytest.mark.parametrize("v2", long_but([True], [True, False]), ids=["v2", "v1"])
def test_an_assignment_in_a_branch_is_a_change(v2: bool, tmp_path: Any) -> None:
    """In a step that does not take it the worker has no value of its own."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        total, step = own("total", [], SUM), tf1.train.get_or_create_global_step()
        is_first = tf1.equal(step, 0)
        change = tf1.cond(is_first, lambda: tf1.identity(total.assign(5.0)), lambda: tf1.constant(0.0))
        return spec_of(linear(x, get("kernel", [5, 1]), y), [change])

    with control_flow(v2):
        run = train(LocalCluster(1), model_of(build), 3, checkpoint_dir=str(tmp_path))
        assert not run.graph.model.aggregated.copies["total"].is_assigned(set(run.graph.graph.get_operations()))
        assert run.saved()["total"] == 5.0


FAILING: list[dict[str, Any]] = [{"mode": "async"}, {"mode": "sync"}, {"pipeline": 3}, {"local_steps": 2}]


@pytest.mark.parametrize("settings", long_but([{"mode": "sync"}], FAILING), ids=str)
def test_a_step_that_fails_after_its_change_leaves_nothing_of_it(settings: dict[str, Any], tmp_path: Any) -> None:
    """Batches whose first id is 1 fail, twice each, and are passed over; those after them are as before."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        counts, steps = own("counts", [ROWS], SUM), own("steps", [], SUM, "int64")
        change = [tf1.scatter_add(counts, ids, tf1.ones_like(y)), steps.assign_add(1)]
        with tf1.control_dependencies(change):
            checked = tf1.debugging.assert_none_equal(ids[0], 1)
        return spec_of(linear(x, get("kernel", [5, 1]), y), [checked])

    run = train(LocalCluster(1), model_of(build), 6, on_data_error="skip", checkpoint_dir=str(tmp_path), **settings)
    saved = run.saved()
    assert run.skipped and saved["counts"].sum() == 8 * saved["steps"]
    assert saved["steps"] == 6 * settings.get("local_steps", 1)
