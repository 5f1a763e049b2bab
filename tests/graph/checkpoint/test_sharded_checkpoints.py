"""Who writes which part of a checkpoint, and what becomes of one whose writing was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED
from psruntime.errors import CheckpointError
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.session.session import ViewSession
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train
from tests.support.selection import long_but
from tests.support.stock import contents

ADAM = linear_model(OPTIMIZERS["adam"])
SLICED = {"slice_bytes": 160, "plan": "per-variable"}


def data_files(folder: Path, step: int) -> list[str]:
    return sorted(file.name.partition(".data-")[2] for file in folder.glob(f"model.ckpt-{step}.data-*"))


def steer(monkeypatch: Any, placeholder: str, value: Callable[[Any], Any]) -> list[str]:
    """Changes what is fed to a placeholder; returns a list of what was fed instead."""
    run = ViewSession.run
    fed: list[str] = []

    def run_steered(self: Any, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        if isinstance(feed_dict, dict):
            named = [key for key in feed_dict if key.op.name.rpartition("/")[2] == placeholder]
            feed_dict = {**feed_dict, **{key: value(feed_dict[key]) for key in named}}
            fed.extend(str(feed_dict[key]) for key in named)
        return run(self, fetches, feed_dict, **kwargs)

    monkeypatch.setattr(ViewSession, "run", run_steered)
    return fed


BLIND = {
    "sees no such file": ("probe_1", lambda path: f"{path}-of-another-machine", "does not see the folder"),
    "sees another file": ("probe_1", lambda path: path.replace("/probe", "/../other"), "reads another file there"),
    "writes another file": ("content_1", lambda content: content[::-1], "writes elsewhere"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", BLIND)
def test_one_ps_that_does_not_see_the_folder_and_the_chief_writes_all(
    how: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """The same content either way, and each is read the other way."""
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    each = train(LocalCluster(3), ADAM, 3, checkpoint_dir=str(shared), **SLICED)
    assert [event["sharded"] for event in (*each.named("initialised"), *each.named("checkpoint"))] == ["yes", "yes"]
    assert data_files(shared, 3) == [f"0000{i}-of-00003" for i in range(3)]
    placeholder, value, reason = BLIND[how]
    alone.mkdir()
    (alone / "other").write_text("not the probe")
    with monkeypatch.context() as patch:
        fed = steer(patch, placeholder, value)
        chief = train(LocalCluster(3), ADAM, 3, checkpoint_dir=str(alone), **SLICED)
        assert fed
        said = [event["sharded"] for event in (*chief.named("initialised"), *chief.named("checkpoint"))]
        assert len(said) == 2 and all(text.startswith("no, ps 1") and reason in text for text in said)
        assert data_files(alone, 3) == ["00000-of-00001"]
        same(contents(each.checkpoints.latest()), contents(chief.checkpoints.latest()))
        after_each = train(LocalCluster(2), ADAM, 3, checkpoint_dir=str(shared))
        assert after_each.named("restored")[0]["sharded"].startswith("no, ps 1")
    after_chief = train(LocalCluster(2), ADAM, 3, checkpoint_dir=str(alone))
    assert after_chief.named("restored")[0]["sharded"] == "yes"
    same(contents(after_each.checkpoints.latest()), contents(after_chief.checkpoints.latest()))


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """To the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.long
def test_a_chunk_at_a_time(tmp_path: Path, monkeypatch: Any) -> None:
    """Chunks smaller than a slice: a file each, and the same content."""
    whole = train(LocalCluster(2), ADAM, 3, checkpoint_dir=str(tmp_path / "whole"), **SLICED)
    with monkeypatch.context() as patch:
        patch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 16)
        small = train(LocalCluster(2), ADAM, 3, checkpoint_dir=str(tmp_path / "small"), **SLICED)
        assert len(data_files(tmp_path / "small", 3)) > 10
        same(contents(small.checkpoints.latest()), contents(whole.checkpoints.latest()))
        again = train(LocalCluster(1), ADAM, 3, checkpoint_dir=str(tmp_path / "small"))
    same(
        contents(again.checkpoints.latest()),
        contents(train(LocalCluster(1), ADAM, 3, checkpoint_dir=str(tmp_path / "whole")).checkpoints.latest()),
    )


@pytest.mark.long
@pytest.mark.parametrize("how", ["each ps writes", "the chief writes"])
def test_a_large_table_is_moved_in_rows(how: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A table that is larger than a chunk, with its slots: written and read in rows, and the same as whole."""
    model = embedding_model(OPTIMIZERS["adagrad"], 0.03)
    whole = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 32)
        if how == "the chief writes":
            steer(patch, *BLIND["sees another file"][:2])
        folder = str(tmp_path / "rows")
        rows = train(LocalCluster(2), model, 3, checkpoint_dir=folder)
        assert rows.named("checkpoint")[-1]["sharded"].startswith("yes" if how == "each ps writes" else "no")
        same(contents(rows.checkpoints.latest()), contents(whole.checkpoints.latest()))
        again = train(LocalCluster(2), model, 2, checkpoint_dir=folder)
        assert [event["global_step"] for event in again.named("restored")] == [3]
    on = train(LocalCluster(2), model, 2, checkpoint_dir=str(tmp_path / "whole"))
    same(contents(again.checkpoints.latest()), contents(on.checkpoints.latest()))


def is_write(fetches: Any) -> bool:
    return isinstance(fetches, list) and bool(fetches) and getattr(fetches[0], "type", "") == "SaveV2"


@pytest.mark.long
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_ps_that_is_lost_while_it_writes(parts: int, tmp_path: Path, monkeypatch: Any) -> None:
    """After `parts` of the two parts: nothing of it is restored or left, and a later one is whole."""
    run = ViewSession.run
    newest: list[str | None] = []

    def run_and_lose(self: Any, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        if is_write(fetches) and len(newest) < 2:
            newest.append(tf1.train.latest_checkpoint(str(tmp_path)))
            if len(newest) == 2:  # the first is that of step 0
                assert len(fetches) == 2
                run(self, fetches[:parts], feed_dict)
                raise tf1.errors.UnavailableError(None, None, "a ps was lost on purpose")
        return run(self, fetches, feed_dict, **kwargs)

    monkeypatch.setattr(ViewSession, "run", run_and_lose)
    done = train(LocalCluster(2), ADAM, 5, save_steps=3, checkpoint_dir=str(tmp_path), **SLICED)
    assert newest == [None, str(tmp_path / "model.ckpt-0")]
    assert [event["reason"] for event in done.named("checkpoint_failed")] == ["a ps was lost on purpose"]
    assert [Path(event["path"]).name for event in done.named("checkpoint")] == ["model.ckpt-4", "model.ckpt-5"]
    assert not list(tmp_path.glob("model.ckpt-3*")) and not list(tmp_path.glob(".*"))
    unbroken = train(LocalCluster(1), ADAM, 5, checkpoint_dir=str(tmp_path / "unbroken"))
    same(contents(done.checkpoints.latest()), contents(unbroken.checkpoints.latest()))


class Paused:
    """A session whose process is paused in the middle of writing, while `meanwhile` happens."""

    def __init__(self, session: Any, parts: int, meanwhile: Callable[[], None]) -> None:
        self._session, self._parts, self._meanwhile = session, parts, meanwhile

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        if not is_write(fetches):
            return self._session.run(fetches, feed_dict)
        assert len(fetches) == 2
        self._session.run(fetches[: self._parts], feed_dict)
        self._meanwhile()
        return self._session.run(fetches[self._parts :], feed_dict)


@pytest.mark.parametrize("parts", long_but([1], [0, 1, 2]))
def test_a_checkpoint_is_of_one_round_whatever_happens_while_it_is_written(parts: int, tmp_path: Path) -> None:
    """A round is closed after `parts` of the two parts are written: it is not in the checkpoint."""
    cluster = LocalCluster(2)
    run = train(cluster, ADAM, 3, mode="sync", checkpoint_dir=str(tmp_path), **SLICED)
    graph, before = run.graph, contents(run.checkpoints.latest())
    with cluster.session(graph.graph) as session, cluster.session(graph.graph) as of_another:
        paused = Paused(session, parts, lambda: close_a_round(of_another, graph))
        saved = run.checkpoints.save(paused)
        assert {row[APPLIED] for row in cluster.ledgers(graph.plan).values()} == {4}, "a round was closed"
        assert saved and saved.path.endswith("model.ckpt-3")
        same(contents(saved.path), before)
        later = run.checkpoints.save(session)
    assert later and later.path == run.checkpoints.latest()
    assert contents(later.path)["global_step"] == 4
    assert not np.array_equal(contents(later.path)["out"], before["out"])
    assert not list(tmp_path.glob(".*"))


@pytest.mark.long
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_chief_that_was_paused_does_not_keep_a_mix_of_two_copies(parts: int, tmp_path: Path) -> None:
    """Another chief copies a later round after `parts` of the two parts are written; its own is whole."""
    cluster = LocalCluster(2)
    run = train(cluster, ADAM, 3, mode="sync", checkpoint_dir=str(tmp_path), **SLICED)
    other = Checkpoints(run.graph, str(tmp_path), 5, 0)
    with cluster.session(run.graph.graph) as session, cluster.session(run.graph.graph) as of_another:

        def copy_a_later_round() -> None:
            close_a_round(of_another, run.graph)
            copied.append(other.copy(of_another))

        copied: list[Any] = []
        with pytest.raises(CheckpointError, match=r"checkpoint 3 was not written to .*: another chief has begun one"):
            run.checkpoints.save(Paused(session, parts, copy_a_later_round))
        assert other.write(of_another, copied[0]).path.endswith("model.ckpt-4")
    assert contents(str(tmp_path / "model.ckpt-4"))["global_step"] == 4
    assert not list(tmp_path.glob(".*"))


def close_a_round(session: Any, graph: Any) -> None:
    rounds = graph.rounds
    push_id = (0, INCARNATION, 4, 1)
    session.run(rounds.contribute, {rounds.request.fed: rounds.request.values(push_id)})
    session.run(rounds.close, {rounds.request.fed: rounds.request.values(push_id, members=1, factor=1.0)})
