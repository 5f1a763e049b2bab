"""Work beside the training steps: whoever waits for it says so, and a checkpoint that takes long is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from psruntime.config.values import Metric
from psruntime.graph.base import errors
from psruntime.graph.base.errors import await_end
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.checkpoint.folder import CheckpointFolder
from psruntime.graph.checkpoint.measured import BestCheckpoint
from psruntime.graph.session import save_hooks
from psruntime.graph.session.save_hooks import CheckpointHook
from tests.graph.checkpoint.test_folder import write
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, linear_model, train

GUARD_S = 60.0  # of a test that would hang otherwise


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "LOG_AFTER_S", 0.01)
    monkeypatch.setattr(save_hooks, "LATE_S", 0.0)


def test_a_wait_says_for_what_and_ends_with_the_thread() -> None:
    told, reasons = threading.Event(), []

    def log(event: str, **facts: Any) -> None:
        reasons.append((event, facts))
        told.set()

    thread = threading.Thread(target=told.wait, args=(GUARD_S,))
    thread.start()
    await_end(thread, "the thread", log)
    assert not thread.is_alive() and reasons == [("waiting", {"reason": "the thread"})]
    await_end(thread, "the thread", log)
    assert len(reasons) == 1, "there was nothing to wait for"


def test_a_wait_with_a_deadline_leaves_the_thread_behind() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(GUARD_S,))
    thread.start()
    try:
        await_end(thread, "the thread", lambda *_, **__: None, within_s=0.02)
        assert thread.is_alive()
    finally:
        release.set()
        thread.join()


def test_a_checkpoint_that_takes_long_is_told_of_when_the_next_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = threading.Event()
    write_it, note_it = Checkpoints.write, CheckpointHook._note_late

    def write_slowly(self: Checkpoints, session: Any, state: Any) -> Any:
        in_background = threading.current_thread().name == "checkpoint"
        assert not in_background or late.wait(GUARD_S)
        return write_it(self, session, state)

    def note(self: CheckpointHook, *writing: Any) -> None:
        note_it(self, *writing)
        late.set()

    monkeypatch.setattr("tests.support.local_cluster.await_writes", lambda: None)
    monkeypatch.setattr(Checkpoints, "write", write_slowly)
    monkeypatch.setattr(CheckpointHook, "_note_late", note)
    run = train(LocalCluster(1), linear_model(OPTIMIZERS["adam"]), 6, save_steps=2, checkpoint_dir=str(tmp_path))
    reasons = [facts["reason"] for facts in run.named("checkpoint_late")]
    assert reasons[0] == "checkpoint 2 is still being written, and the next one is due"
    assert len(reasons) == len(set(reasons)), "once for each"


def test_the_best_checkpoint_says_that_it_waits_for_the_one_before(tmp_path: Path) -> None:
    told, log = threading.Event(), []

    class Slow:
        def measure(self, path: str) -> dict[str, float]:
            assert told.wait(GUARD_S)
            return {"loss": 1.0}

    def note(event: str, **facts: Any) -> None:
        log.append((event, facts))
        told.set()

    best = BestCheckpoint(Slow(), str(tmp_path), Metric("loss", False), note)
    best.offer(write(CheckpointFolder(str(tmp_path), keep=1), 1, "1"), 1)
    best.wait()
    assert log[0] == ("waiting", {"reason": "the checkpoint before to be measured"})
    assert [event for event, _ in log] == ["waiting", "measured"]
