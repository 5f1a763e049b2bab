"""Scripts' graphs in sessions on a view: where operations run, what a chief prepares, which hooks act."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.hooks import ChiefOnly
from psruntime.classic.prepare import remember_checkpoints
from psruntime.core.members.messages import Assignment
from psruntime.errors import CheckpointError, JobFailedError, ModelDiffersError, ReplacedError, UserCodeError
from tests.support.local_cluster import INCARNATION, LocalCluster
from tests.support.paused import Paused
from tests.support.script import Script


@pytest.mark.parametrize("resource", [False, True])
def test_what_has_no_device_runs_on_the_worker_that_opened_the_session(resource: bool, tmp_path: Path) -> None:
    script = Script(LocalCluster(2), str(tmp_path), variable={"use_resource": resource})
    script.prepare()
    with script.session() as session:
        for fetches in (script.free, script.saver.saver_def.save_tensor_name):
            metadata = tf1.RunMetadata()
            feed = {script.saver.saver_def.filename_tensor_name: f"{tmp_path}/probe"}
            options = tf1.RunOptions(output_partition_graphs=True)
            session.run(fetches, feed, options=options, run_metadata=metadata)
            nodes = [node for graph in metadata.partition_graphs for node in graph.node]
            where = {node.op: node.device for node in nodes}
            for op in {"OneShotIterator", "IteratorGetNext", "SaveV2"} & set(where):
                assert where[op].startswith("/job:worker/"), op
            assert {"OneShotIterator", "SaveV2"} & set(where)
    with script.session() as session:
        assert session.run(script.free) == 1, "an iterator of an earlier session harms no later one"
        session.run(script.train)


def test_fresh_live_and_replaced_ps(tmp_path: Path) -> None:
    cluster, told = LocalCluster(2), []
    scaffold = {"init_fn": lambda scaffold, session: told.append(scaffold)}
    script = Script(cluster, str(tmp_path), scaffold)
    assert script.prepare() == 0 and len(told) == 1
    script.step(save=True)
    script.step()
    assert script.prepare() == 2 and script.values() == [-1, -1], "live variables are kept"
    cluster.forget(1)
    with script.session() as session, pytest.raises(tf1.errors.UnavailableError, match="ps 1 is not prepared"):
        script.preparation.require(session)
    assert script.prepare() == 1 and script.values() == [0, 0], "all go back to the checkpoint"
    assert [event for event, _ in script.events] == ["initialised", "adopted", "restored"]
    assert len(told) == 1
    assert all(state.read()[0].bytes_held > 0 for state in cluster.states)


@pytest.mark.long
@pytest.mark.parametrize("source", ["checkpoint", "initial values"])
def test_a_paused_chief_changes_nothing(source: str, tmp_path: Path) -> None:
    """What its successor has prepared, and trained since, stays as it is."""
    cluster = LocalCluster(2)
    script = Script(cluster, str(tmp_path))
    script.prepare()
    if source == "checkpoint":
        script.step(save=True)
    for at in count(1):
        for ps in range(2):
            cluster.forget(ps)
        with script.session() as session:
            paused = Paused(session, at, partial(script.succeed, INCARNATION + 1))
            with suppress(ReplacedError):
                script.preparation.run(paused, Assignment(cluster.view, INCARNATION, prepare=True))
        if not paused.was:
            break
        assert script.values() == paused.found, f"run {at}"
    assert at > 5


def test_a_list_that_cannot_be_read_is_not_a_new_beginning(tmp_path: Path) -> None:
    script = Script(LocalCluster(2), str(tmp_path))
    script.prepare()
    script.step(save=True)
    script.end()
    (tmp_path / "checkpoint").write_text("model_checkpoint_path ???")
    later = Script(LocalCluster(2), str(tmp_path))
    with pytest.raises(CheckpointError, match=r"list of checkpoints .*/checkpoint cannot be read; .* checkpoint_dir"):
        later.prepare()
    assert not later.events
    remember_checkpoints(later.saver, str(tmp_path), later.log)
    assert [event for event, _ in later.events] == ["checkpoints_forgotten"]
    later.events.clear()
    later.folder = str(tmp_path / "elsewhere")
    assert Script(LocalCluster(2), later.folder).prepare() == 0, "a folder without a list is a new beginning"


@pytest.mark.long
def test_the_checkpoints_of_a_folder_that_was_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    script = Script(LocalCluster(2), str(before))
    script.prepare()
    script.step(save=True)
    assert str(before) in (before / "checkpoint").read_text(), "stock TensorFlow lists absolute paths"
    script.end()
    before.rename(after)
    later = Script(LocalCluster(2), str(after))
    assert later.prepare() == 1 and later.values() == [0, 0]
    remember_checkpoints(later.saver, str(after), later.log)
    assert later.saver.last_checkpoints == [f"{after}/model.ckpt-1"]


@pytest.mark.long
def test_a_folder_that_only_tensorflow_reaches() -> None:
    script = Script(LocalCluster(2), "ram://run/")
    script.prepare()
    script.step(save=True)
    later = Script(LocalCluster(2), "ram://run/")
    assert later.prepare() == 1 and later.values() == [0, 0]
    remember_checkpoints(later.saver, later.folder, later.log)
    assert later.saver.last_checkpoints == ["ram://run/model.ckpt-1"]
    with pytest.raises(CheckpointError, match=r"list of checkpoints nobody://run/checkpoint cannot be read: "):
        Script(LocalCluster(2), "nobody://run").prepare()


@pytest.mark.long
def test_a_checkpoint_of_the_oldest_format(tmp_path: Path) -> None:
    script = Script(LocalCluster(2), str(tmp_path), file_format=tf1.train.SaverDef.V1)
    script.prepare()
    script.step(save=True)
    script.end()
    assert (tmp_path / "model.ckpt-1").exists()
    later = Script(LocalCluster(2), str(tmp_path))
    assert later.prepare() == 1 and later.values() == [0, 0]


def test_a_preparation_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    def fail(scaffold: Any, session: Any) -> None:
        raise RuntimeError("cut off")

    cluster = LocalCluster(2)
    script = Script(cluster, str(tmp_path), {"init_fn": fail})
    with pytest.raises(UserCodeError, match=r"the scaffold's init_fn failed at .*: RuntimeError: cut off") as failed:
        script.prepare()
    assert "Traceback" in failed.value.detail and "\n" not in str(failed.value)
    assert Script(cluster, str(tmp_path)).prepare() == 0


def test_a_chief_whose_place_was_taken_writes_nothing(tmp_path: Path) -> None:
    script = Script(LocalCluster(2), str(tmp_path))
    with pytest.raises(ReplacedError):
        script.prepare(incarnation=INCARNATION + 1)
    with script.session() as session, pytest.raises(tf1.errors.FailedPreconditionError):
        session.run(script.w)


def test_other_variables_than_the_jobs(tmp_path: Path) -> None:
    cluster = LocalCluster(2)
    first = Script(cluster, str(tmp_path))
    first.prepare()
    first.step(save=True)
    other = Script(cluster, str(tmp_path), name="other")
    with pytest.raises(JobFailedError, match="ps 0 has the variables of another plan"):
        other.prepare()
    with other.session() as session, pytest.raises(ModelDiffersError, match="ps 0, 1 has other variables"):
        other.preparation.require(session)


def test_a_newer_delta_is_not_passed_over(tmp_path: Path) -> None:
    first = Script(LocalCluster(2), str(tmp_path))
    first.prepare()
    first.step(save=True)
    first.end()
    (whole,) = tmp_path.glob("*.index")
    whole.with_name(whole.name.replace(".index", ".delta-3.index")).touch()
    with pytest.raises(CheckpointError, match=r"ckpt-1.delta-3 is newer than .*ckpt-1, and a script's saver cannot"):
        Script(LocalCluster(2), str(tmp_path)).prepare()


def test_what_nobody_initialises_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="init_op leaves w, v, global_step without a value"):
        Script(LocalCluster(2), str(tmp_path), {"init_op": tf1.no_op}).prepare()


class Recorder(tf1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self._folder = folder

    def begin(self) -> None:
        self.calls.append("begin")
        self.writer = tf1.summary.FileWriterCache.get(str(self._folder))

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(f"created {session}")

    def before_run(self, run_context: Any) -> Any:
        self.calls.append("before")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append("after")
        raise tf1.errors.UnavailableError(None, None, "a ps is gone")

    def end(self, session: Any) -> None:
        self.calls.append(f"end {session}")


class Chiefs:
    """A control plane of which only this is asked."""

    chief = False

    def is_chief(self) -> bool:
        return self.chief


def test_a_hook_of_the_chief_acts_from_when_it_is_to_when_it_is_not(tmp_path: Path) -> None:
    recorder, control_plane, events = Recorder(tmp_path), Chiefs(), []
    hook = ChiefOnly(
        recorder, control_plane.is_chief, lambda: events.append("chief"), lambda event, **_: events.append(event)
    )  # type: ignore[arg-type]

    def run() -> list[str]:
        recorder.calls.clear()
        context = tf1.train.SessionRunContext(None, None)
        hook.before_run(context)
        hook.after_run(context, None)
        return recorder.calls[:]

    with tf1.Graph().as_default():
        hook.begin()
    hook.after_create_session("one", None)
    assert recorder.calls == ["begin"] and run() == []
    control_plane.chief = True
    assert run() == ["created one", "before", "after"], "a lost session after the step is only reported"
    assert run() == ["before", "after"]
    assert events == ["chief", "hook_failed", "hook_failed"]
    control_plane.chief = False
    hook.finish("one")
    hook.end("one")
    assert run() == []
    control_plane.chief = True
    recorder.calls.clear()
    hook.finish("two")
    hook.finish("two")
    hook.end("two")
    assert recorder.calls == ["created two", "end two"]
    assert not list(tmp_path.iterdir())
    with tf1.Graph().as_default():
        recorder.writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START))
    hook.end("two")
    written = [event for path in tmp_path.iterdir() for event in tf1.train.summary_iterator(str(path))]
    assert any(event.HasField("session_log") for event in written)
