"""What was trained is never passed over in silence: not by a chief without the folder, and not without a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from psruntime.core.members.messages import Assignment
from psruntime.core.members.view import View
from psruntime.errors import JobFailedError
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, LocalControlPlane, linear_model, train

ADAM = linear_model(OPTIMIZERS["adam"])
SEEN = 12


class Refused(Exception):
    """The chief said why it cannot prepare the view."""


class Demanding(LocalControlPlane):
    """The control plane of a job that knows of work that was done."""

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:
        raise Refused(obstacle)


def after(saved_step: int | None) -> Callable[[View, int], LocalControlPlane]:
    return partial(Demanding, saved_step=saved_step, seen_step=SEEN)


@pytest.mark.long
def test_a_chief_that_sees_another_folder_refuses_to_begin(tmp_path: Path) -> None:
    there, here = {"checkpoint_dir": str(tmp_path / "a")}, {"checkpoint_dir": str(tmp_path / "b")}
    cluster = LocalCluster(2)
    train(cluster, ADAM, 4, **there)
    cluster.forget(0)
    cluster.forget(1)
    with pytest.raises(Refused, match=f"checkpoint 4 was written, and is not in {tmp_path}/b here: it is empty; mount"):
        train(cluster, ADAM, 2, make_control_plane=after(4), **here)
    run = train(cluster, ADAM, 2, make_control_plane=after(4), **there)
    assert run.control_plane.prepared_at == [4] and not run.named("initialised")


@pytest.mark.long
def test_a_chief_that_sees_an_older_checkpoint_refuses_to_begin(tmp_path: Path) -> None:
    cluster, folder = LocalCluster(1), {"checkpoint_dir": str(tmp_path)}
    train(cluster, ADAM, 4, **folder)
    cluster.forget(0)
    with pytest.raises(Refused, match=r"checkpoint 9 was written, .* the newest there is 4; mount"):
        train(cluster, ADAM, 2, make_control_plane=after(9), **folder)
    run = train(cluster, ADAM, 2, make_control_plane=after(9), start_over="on", **folder)
    assert run.control_plane.prepared_at == [4]


def test_live_variables_need_no_checkpoint(tmp_path: Path) -> None:
    cluster = LocalCluster(1)
    train(cluster, ADAM, 4, checkpoint_dir=str(tmp_path / "a"))
    run = train(cluster, ADAM, 2, make_control_plane=after(4), checkpoint_dir=str(tmp_path / "b"))
    assert run.named("adopted")


@pytest.mark.long
@pytest.mark.parametrize("on_ps_loss", ["rollback", "partial"])
def test_training_does_not_begin_anew_without_a_word(on_ps_loss: str) -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 4, slice_bytes=64, on_ps_loss=on_ps_loss)
    cluster.forget(1)
    lost = r"all that was trained until global step 12 is lost \(ps 1 lost its variables\).*--start-over"
    with pytest.raises(JobFailedError, match=lost):
        train(cluster, ADAM, 2, make_control_plane=after(None), slice_bytes=64, on_ps_loss=on_ps_loss)
    settings = {"slice_bytes": 64, "on_ps_loss": on_ps_loss, "start_over": "on"}
    run = train(cluster, ADAM, 2, make_control_plane=after(None), **settings)
    assert run.named("initialised")
