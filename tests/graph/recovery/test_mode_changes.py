"""Variables outlive a change of mode: each trains on with what the one before has left on the ps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.session.session import ModeChangedError, ViewSessionCreator
from tests.graph.recovery.test_recovery import ADAM, SLICED
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.selection import long_after


def bytes_held(run: Run) -> list[int]:
    with run.cluster.session(run.graph.graph) as session:
        return [int(session.run(control.bytes_held)) for control in run.graph.controls]


@pytest.mark.long
def test_a_ps_that_came_in_another_mode_has_its_rounds_from_then_on(tmp_path: Path) -> None:
    """Rounds, then steps, in which a ps is lost, then rounds: these go on with what is there."""
    cluster = LocalCluster(2)
    settings = {"save_steps": 1000, "checkpoint_dir": str(tmp_path), **SLICED}
    first = train(cluster, ADAM, 4, mode="sync", **settings)
    train(cluster, ADAM, 2, mode="async", **settings)
    cluster.forget(1)
    train(cluster, ADAM, 2, mode="async", **settings)
    again = train(cluster, ADAM, 2, mode="sync", **settings)
    assert [event["global_step"] for event in again.named("adopted")] == [8] and not again.named("restored")
    assert again.control_plane.steps_lost == 0 and again.saved()["global_step"] == 10
    assert bytes_held(again) == bytes_held(first)


@pytest.mark.parametrize(("mode", "other"), long_after(1, [("async", "sync"), ("sync", "async")]))
def test_a_mode_goes_on_in_the_graph_that_it_had(tmp_path: Path, mode: str, other: str) -> None:
    """Which does not grow with each change, and saves and adopts as a new one does."""
    cluster = LocalCluster(2)
    settings = {"save_steps": 2, "checkpoint_dir": str(tmp_path), **SLICED}
    first = train(cluster, ADAM, 4, mode=mode, **settings)
    size = len(first.graph.graph.get_operations())
    train(cluster, ADAM, 3, mode=other, **settings)
    again = train(cluster, ADAM, 2, mode=mode, built=first.built, **settings)
    assert [event["global_step"] for event in first.named("adopted")] == [7] and not first.named("restored")
    assert again.saved()["global_step"] == 9
    assert len(again.graph.graph.get_operations()) == size


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_says_that_it_prepares_before_it_builds_another_graph(is_chief: bool) -> None:
    """Else it would be cut off while it builds: nobody could know that it is at it."""
    asked: list[str] = []
    control_plane: Any = SimpleNamespace(
        mode="sync", is_chief=lambda: is_chief, await_view=lambda: asked.append("a view")
    )
    preparation: Any = SimpleNamespace()
    creator = ViewSessionCreator(tf1.Graph(), control_plane, preparation, print, print, has_rounds=False)
    with pytest.raises(ModeChangedError):
        creator.create_session()
    assert asked == (["a view"] if is_chief else [])
