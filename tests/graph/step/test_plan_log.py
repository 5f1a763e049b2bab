"""What a worker says of its graph before it trains."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime import optimizers
from psruntime.graph.step.setup import log_plan
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import ROWS, WIDTH, embedding_model
from tests.support.local_cluster import LocalCluster, train

TABLES = 4 * (ROWS * WIDTH + ROWS)  # bytes of `embedding` and `wide`, float32


def logged(optimizer: Any, **settings: Any) -> dict[str, dict[str, Any]]:
    """Event -> its facts."""
    said: dict[str, dict[str, Any]] = {}
    graph = train(LocalCluster(2), embedding_model(optimizer), 0, **settings).graph
    log_plan(graph, is_packed=True, log=lambda event, **facts: said.update({event: facts}))
    return said


class Inheriting(tf1.train.AdamOptimizer):  # type: ignore[misc]
    """An optimizer of a user's."""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_adam_says_once_what_it_passes_over_in_every_step(mode: str) -> None:
    """A table and its two slots; what is dense, kernel and bias, is not meant."""
    facts = logged(tf1.train.AdamOptimizer, mode=mode)["dense_updates"]
    assert facts["tables"].split() == ["embedding", "wide"]
    assert facts["bytes"] == 3 * TABLES
    assert "psruntime.optimizers.LazyAdam" in facts["reason"]


def test_so_does_what_inherits_from_it_and_only_its_tables_count() -> None:
    facts = logged({"wide": Inheriting, "*": OPTIMIZERS["adagrad"]})["dense_updates"]
    assert (facts["tables"], facts["bytes"]) == ("wide", 3 * 4 * ROWS)


@pytest.mark.long
def test_dense_variables_under_an_optimizer_by_rows_are_named() -> None:
    assert logged(optimizers.RowwiseAdagrad)["unpacked"]["variables"] == "kernel bias"
    assert logged(partial(optimizers.LazyAdam, beta1=0.5)).keys() == {"plan"}
