"""Which checkpoints of a folder an evaluator measures, and what becomes of one that it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UserCodeError
from psruntime.graph.checkpoint.measured import FOLDER, HISTORY, MeasuredCheckpoints
from psruntime.observe import evaluations


class Folder:
    """A folder of checkpoints with one number in each, and an evaluation that gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[tuple[int, dict[str, float]]] = []
        self.log: list[tuple[str, dict[str, object]]] = []
        self.fails: Exception | None = None
        with tf1.Graph().as_default(), tf1.Session() as session:
            tf1.get_variable("v", [], initializer=tf1.zeros_initializer())
            session.run(tf1.global_variables_initializer())
            self.saver = tf1.train.Saver(max_to_keep=3)
            self._graph, self._values = tf1.get_default_graph(), session.run(tf1.global_variables())

    def write(self, *steps: int) -> None:
        with self._graph.as_default(), tf1.Session() as session:
            for step in steps:
                session.run([v.assign(step) for v in tf1.global_variables()])
                self.saver.save(session, str(self.path / "model.ckpt"), step, write_meta_graph=False)

    def remove(self, step: int) -> None:
        for file in self.path.glob(f"model.ckpt-{step}.*"):
            file.unlink()

    def measure(self, path: str) -> dict[str, float]:
        if self.fails:
            raise self.fails
        return {"value": float(tf1.train.load_checkpoint(path).get_tensor("v"))}

    def evaluator(self) -> MeasuredCheckpoints:
        return MeasuredCheckpoints(
            self, str(self.path), str(self.path / FOLDER), lambda _, step, values: self.told.append((step, values)),
            lambda event, **facts: self.log.append((event, facts)),
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def all_of(checkpoints: MeasuredCheckpoints) -> None:
    while checkpoints.measure_next():
        pass


def test_it_begins_with_the_newest_and_measures_each_new_one_in_turn(folder: Folder) -> None:
    checkpoints = folder.evaluator()
    assert not checkpoints.measure_next(), "an empty folder has none"
    folder.write(1, 2)
    all_of(checkpoints)
    assert [step for step, _ in folder.told] == [2]
    folder.write(3, 4)
    all_of(checkpoints)
    assert folder.told == [(step, {"value": step}) for step in (2, 3, 4)]
    again = folder.evaluator()  # of a process that was started again
    all_of(again)
    assert folder.told[3:] == [(4, {"value": 4})]
    checkpoints.close()
    again.close()


def test_the_values_are_written_beside_the_checkpoints(folder: Folder) -> None:
    checkpoints = folder.evaluator()
    folder.write(7)
    all_of(checkpoints)
    checkpoints.close()
    assert evaluations.read(str(folder.path / FOLDER / HISTORY)).evaluations == {7: {"value": 7.0}}
    (events,) = (folder.path / FOLDER).glob("events*")
    found = [(e.step, v.tag, v.simple_value) for e in tf1.train.summary_iterator(str(events)) for v in e.summary.value]
    assert found == [(7, "value", 7.0)]


def test_one_that_is_removed_before_its_turn_is_passed_over(folder: Folder, monkeypatch: Any) -> None:
    checkpoints = folder.evaluator()
    folder.write(1)
    all_of(checkpoints)
    folder.write(2, 3)
    measure = folder.measure

    def removed_meanwhile(path: str) -> dict[str, float]:
        if path.endswith("-2"):
            folder.write(4, 5)  # three are kept
        return measure(path)

    monkeypatch.setattr(folder, "measure", removed_meanwhile)
    all_of(checkpoints)
    assert [step for step, _ in folder.told] == [1, 3, 4, 5]
    assert folder.log == [("passed_over", {"global_step": 2, "reason": "it was removed before it was measured"})]
    assert not checkpoints.failure
    checkpoints.close()


def test_a_damaged_one_is_told_and_the_next_one_measured(folder: Folder) -> None:
    checkpoints = folder.evaluator()
    folder.write(1)
    folder.remove(1)
    all_of(checkpoints)
    assert "checkpoint" in checkpoints.failure and [event for event, _ in folder.log] == ["evaluation_failed"]
    folder.write(2)
    all_of(checkpoints)
    assert not checkpoints.failure and [step for step, _ in folder.told] == [2]
    checkpoints.close()


def test_an_error_of_the_model_ends_it(folder: Folder) -> None:
    checkpoints = folder.evaluator()
    folder.write(1)
    folder.fails = UserCodeError("the model cannot")
    with pytest.raises(UserCodeError, match="the model cannot"):
        checkpoints.measure_next()
    checkpoints.close()


def test_a_step_that_is_saved_again_is_measured_again(folder: Folder) -> None:
    """The last checkpoint of a job may have the step, and the name, of one that was due by its steps."""
    checkpoints = folder.evaluator()
    folder.write(1000)
    all_of(checkpoints)
    folder.write(1000)
    all_of(checkpoints)
    assert [step for step, _ in folder.told] == [1000, 1000]
    checkpoints.close()


def test_a_list_that_cannot_be_read_for_a_moment_is_told_and_forgotten(folder: Folder) -> None:
    checkpoints = folder.evaluator()
    folder.write(1)
    all_of(checkpoints)
    listed = (folder.path / "checkpoint").read_text()
    (folder.path / "checkpoint").write_text("half a li")
    all_of(checkpoints)
    all_of(checkpoints)
    assert [event for event, _ in folder.log] == ["checkpoints_unreadable"] and not checkpoints.failure
    (folder.path / "checkpoint").write_text(listed)
    folder.write(2)
    all_of(checkpoints)
    assert [step for step, _ in folder.told] == [1, 2]
    checkpoints.close()
