"""--warm-start: a new job begins with values of another checkpoint, and as often as it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment
from psruntime.errors import CheckpointError, PassingError, UsageError
from psruntime.graph.recovery.warm_start import WarmStart
from psruntime.model import Model, ModelSpec
from tests.support.bad_files import make_unreadable
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, LocalControlPlane, Run, train
from tests.support.selection import long_after
from tests.support.small_models import get, linear, model_of
from tests.support.stock import contents

ADAGRAD = embedding_model(tf1.train.AdagradOptimizer)


def save(folder: Path, **values: Any) -> str:
    """A checkpoint of stock TensorFlow; returns its path."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        for name, value in values.items():
            tf1.get_variable(name, initializer=tf1.constant(value))
        session.run(tf1.global_variables_initializer())
        return str(tf1.train.Saver().save(session, str(folder / "earlier.ckpt"), 7, write_meta_graph=False))


def begun(run: Run, step: int = 0) -> dict[str, Any]:
    """What the job has in its first checkpoint."""
    return contents(f"{run.job.checkpoint_dir}/model.ckpt-{step}")


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.RandomState(seed).normal(size=shape).astype(dtype)


TABLES = {"embedding": numbers(50, 6), "wide": numbers(50, seed=1), "kernel": numbers(24, 1, seed=2)}


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"plan": "per-variable"}, {"slice_bytes": 64}])
def test_variables_of_the_same_name_are_taken_whole_or_in_parts(settings: dict[str, Any], tmp_path: Path) -> None:
    """Tables of a group are spread over both ps; kernel and bias share a bucket, of which bias is not taken."""
    path = save(tmp_path, **TABLES, other=numbers(3), global_step=np.int64(70), **{"kernel/Adagrad": numbers(24, 1)})
    run = train(
        LocalCluster(2), ADAGRAD, 2, checkpoint_dir=str(tmp_path / "own"), warm_start=path, save_steps=1, **settings
    )
    fresh = train(LocalCluster(2), ADAGRAD, 1, checkpoint_dir=str(tmp_path / "fresh"), **settings)
    first = begun(run)
    for name, value in TABLES.items():
        np.testing.assert_array_equal(first[name], value)
    for name in ("bias", "kernel/Adagrad", "global_step"):
        np.testing.assert_array_equal(first[name], begun(fresh)[name], "this is not taken")
    (event,) = run.named("warm_started")
    assert event == {"path": path, "variables": 3, "names": "embedding, kernel, wide", "left": "bias"}
    assert fresh.named("warm_started") == []
    assert np.any(run.saved()["kernel"] != TABLES["kernel"]), "it trains on from there"


@pytest.mark.long
def test_a_pattern_and_other_names_say_what_is_taken(tmp_path: Path) -> None:
    save(tmp_path, embedding=numbers(50, 6), old=numbers(24, 1, seed=5), bias=numbers(1))
    run = train(
        LocalCluster(2), ADAGRAD, 1, checkpoint_dir=str(tmp_path / "own"), warm_start=str(tmp_path),
        warm_start_vars="kernel|bi", warm_start_names="kernel=old",
    )  # fmt: skip
    first = begun(run)
    np.testing.assert_array_equal(first["kernel"], numbers(24, 1, seed=5))
    np.testing.assert_array_equal(first["bias"], numbers(1))
    assert np.any(first["embedding"] != numbers(50, 6))
    assert run.named("warm_started")[0]["left"] == "embedding, wide"


def with_average() -> Model:
    def build(x: Any, y: Any, _: Any) -> Any:
        average = tf1.get_variable("average", [], initializer=tf1.zeros_initializer(), trainable=False)
        kernel = get("kernel", [5, 1], partitioner=tf1.fixed_size_partitioner(2))
        update = average.assign(average * 0.5)
        return ModelSpec(linear(x, kernel, y) + 0 * average, tf1.train.AdamOptimizer, 0.1, updates=[update])

    return model_of(build)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_moving_averages_and_partitioned_variables_are_taken_too(mode: str, tmp_path: Path) -> None:
    path = save(tmp_path, kernel=numbers(5, 1), average=np.float32(8))
    run = train(LocalCluster(2), with_average(), 1, mode=mode, checkpoint_dir=str(tmp_path / "own"), warm_start=path)
    first = begun(run)
    np.testing.assert_array_equal(first["kernel"], numbers(5, 1))
    assert first["average"] == 8
    assert run.saved()["average"] == 4, "the worker's own copy began with it"


@pytest.mark.long
def test_a_job_that_is_begun_anew_begins_with_the_same(tmp_path: Path) -> None:
    """A ps is lost before there is a checkpoint; then the job has one of its own, and needs the other no more."""
    path = save(tmp_path, **TABLES)
    cluster = LocalCluster(2)
    train(cluster, ADAGRAD, 1, warm_start=path)
    cluster.forget(1)
    again = train(cluster, ADAGRAD, 1, warm_start=path, checkpoint_dir=str(tmp_path / "own"))
    assert [event["variables"] for event in again.named("warm_started")] == [3]
    for name, value in TABLES.items():
        np.testing.assert_array_equal(begun(again)[name], value)
    for file in tmp_path.glob("earlier*"):
        file.unlink()
    cluster.forget(0)
    cluster.forget(1)
    third = train(cluster, ADAGRAD, 1, warm_start=path, checkpoint_dir=str(tmp_path / "own"))
    assert third.named("warm_started") == [] and third.named("restored")


@pytest.mark.long
def test_only_the_ps_that_lost_its_variables_begins_anew(tmp_path: Path) -> None:
    path = save(tmp_path, **TABLES)
    cluster, settings = LocalCluster(2), {"plan": "per-variable", "on_ps_loss": "partial", "warm_start": path}
    train(cluster, ADAGRAD, 3, **settings)
    cluster.forget(1)
    second = train(cluster, ADAGRAD, 0, **settings)
    assert second.named("initialised")[0]["only_ps"] == "1"
    anew = set()
    with cluster.session(second.graph.graph) as session:
        for bucket in second.graph.plan.buckets:
            held = session.run(second.graph.model.stores[bucket.name].master.read_value()).reshape(-1)
            for piece in bucket.pieces:
                if (value := TABLES.get(piece.variable)) is None:
                    continue
                row_size = value[0].size
                rows = value[piece.start // row_size :: piece.stride][: piece.size // row_size]
                begins = np.array_equal(held[piece.offset : piece.offset + piece.size], rows.reshape(-1))
                assert begins == (bucket.ps == 1), piece
                anew |= {piece.variable} if begins else set()
    assert len(anew) >= 2, "tables have rows on both ps"


MISFITS = [
    ({"kernel": numbers(24, 2)}, {}, "has kernel as float32[24, 2], and the model has kernel as float32[24, 1]"),
    (TABLES, {"warm_start_names": "kernel=core"}, "has no core, for kernel"),
    ({"kernel": numbers(24, 1, dtype="float64")}, {}, "has kernel as float64[24, 1], and the model has kernel as"),
    ({"other": numbers(1)}, {}, "has no variable of the model; the model has bias, embedding, kernel, wide"),
    (TABLES, {"warm_start_vars": "ernel"}, "has no variable of the model that --warm-start-vars 'ernel' matches"),
    (TABLES, {"warm_start_names": "core=kernel"}, "--warm-start-names: the model has no variable core"),
]


@pytest.mark.parametrize(("values", "settings", "said"), long_after(2, MISFITS))
def test_what_does_not_fit_is_one_line_before_anything_is_begun(
    values: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = save(tmp_path, **values)
    with pytest.raises(UsageError, match="--warm-start") as refused:
        train(LocalCluster(1), ADAGRAD, 1, warm_start=path, checkpoint_dir=str(tmp_path / "own"), **settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "own").exists()


def test_a_checkpoint_that_is_not_there_or_is_damaged_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is no checkpoint, nor a folder that has one"):
        train(LocalCluster(1), ADAGRAD, 1, warm_start=str(tmp_path / "nowhere"))
    path = save(tmp_path, **TABLES)
    Path(f"{path}.index").write_bytes(b"no index")
    with pytest.raises(UsageError, match="cannot be read"):
        train(LocalCluster(1), ADAGRAD, 1, warm_start=path)


@pytest.mark.long
@pytest.mark.parametrize(("ending", "said"), [(".index", "No such device"), (".data-00000-of-00001", "Input/output")])
def test_a_disk_that_fails_is_this_machines(ending: str, said: str, tmp_path: Path) -> None:
    path = save(tmp_path, **TABLES)
    make_unreadable(Path(f"{path}{ending}"), opens=ending != ".index")
    with pytest.raises(PassingError, match=said) as failed:
        train(LocalCluster(1), ADAGRAD, 1, warm_start=path)
    assert failed.value.exit_code == 75 and "\n" not in str(failed.value)


def test_a_file_system_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"--warm-start nosuch://other/job cannot be read: .*nosuch") as refused:
        train(LocalCluster(1), ADAGRAD, 1, warm_start="nosuch://other/job")
    assert "\n" not in str(refused.value)


def test_of_a_folder_the_chief_takes_what_is_newest_when_it_begins(tmp_path: Path) -> None:
    """The other job may still train, and remove what was newest when this worker looked for mistakes."""
    save(tmp_path, **TABLES)

    class Training(LocalControlPlane):
        def await_view(self) -> Assignment:
            for file in tmp_path.glob("earlier*-7.*"):
                file.rename(file.with_name(file.name.replace("-7.", "-9.")))
            listed = tmp_path / "checkpoint"
            listed.write_text(listed.read_text().replace("-7", "-9"))
            return super().await_view()

    run = train(LocalCluster(1), ADAGRAD, 1, make_control_plane=Training, warm_start=str(tmp_path))
    assert [event["path"] for event in run.named("warm_started")] == [str(tmp_path / "earlier.ckpt-9")]


@pytest.mark.long
def test_one_that_is_lost_while_the_job_starts_ends_this_chief_and_another_may_see_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = save(tmp_path, **TABLES)
    opened = WarmStart.open

    def then_lost(*arguments: Any) -> Any:
        found = opened(*arguments)
        for file in tmp_path.glob("earlier*"):
            file.unlink()
        return found

    monkeypatch.setattr(WarmStart, "open", then_lost)
    with pytest.raises(PassingError, match="warm start from "):
        train(LocalCluster(1), ADAGRAD, 1, warm_start=path)


class Removing(LocalControlPlane):
    """Removes files when the worker has joined."""

    files: tuple[Path, str]

    def await_view(self) -> Assignment:
        folder, pattern = self.files
        for file in folder.glob(pattern):
            file.unlink()
        return super().await_view()


def removing(folder: Path, pattern: str) -> Any:
    return type("Removing", (Removing,), {"files": (folder, pattern)})


@pytest.mark.long
def test_another_mode_goes_on_with_what_the_ps_hold(tmp_path: Path) -> None:
    path, cluster = save(tmp_path, **TABLES), LocalCluster(2)
    train(cluster, ADAGRAD, 2, mode="async", warm_start=path)
    again = train(cluster, ADAGRAD, 2, make_control_plane=removing(tmp_path, "earlier*"), mode="sync", warm_start=path)
    assert again.named("adopted") and again.named("warm_started") == []
    assert not list(tmp_path.glob("earlier*"))


@pytest.mark.long
def test_a_job_whose_own_folder_is_emptied_does_not_begin_at_random(tmp_path: Path) -> None:
    path, own, cluster = save(tmp_path, **TABLES), tmp_path / "own", LocalCluster(2)
    settings = {"checkpoint_dir": str(own), "warm_start": path, "start_over": "on"}
    train(cluster, ADAGRAD, 2, **settings)
    cluster.forget(0)
    for file in tmp_path.glob("earlier*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"the variables cannot begin with a warm start: .* is no checkpoint"):
        train(cluster, ADAGRAD, 2, make_control_plane=removing(own, "*"), **settings)
    assert not list(own.glob("model.ckpt*"))


@pytest.mark.long
def test_a_worker_that_comes_when_the_job_has_begun_does_not_need_it(tmp_path: Path) -> None:
    run = train(LocalCluster(1), ADAGRAD, 1)
    events: list[Any] = []
    start = WarmStart(JobConfig(warm_start=str(tmp_path / "gone")), 0, lambda event, **facts: events.append(event))
    start.check(run.graph, lambda: True)
    assert events == ["cannot_warm_start"]
    with pytest.raises(UsageError, match="gone is no checkpoint"):
        start.check(run.graph)


@pytest.mark.long
def test_a_dynamic_table_is_refused(tmp_path: Path) -> None:
    from tests.support.dynamic_reference import dynamic_model

    ids = np.arange(16).reshape(8, 2)
    model = dynamic_model(ids, np.zeros(8, np.float32), capacity=64)
    first = train(LocalCluster(1), model, 1, checkpoint_dir=str(tmp_path / "first"))
    (table,) = [spec.name for spec in first.graph.plan.specs if spec.dynamic]
    with pytest.raises(UsageError, match=f"{table} is a dynamic table, which a warm start cannot take"):
        train(LocalCluster(1), model, 1, warm_start=str(tmp_path / "first"))
