"""When a metric has got no better for long enough."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.config.process import EvaluatorConfig
from psruntime.config.values import Metric
from psruntime.errors import UsageError
from psruntime.observe import evaluations
from psruntime.observe.evaluations import EarlyStopping, StoredStopping

LOSS, ACCURACY = Metric("loss", False), Metric("accuracy", True)


def first_reason(metric: Metric, patience: int | None, values: list[float]) -> tuple[int, str]:
    """(how many values it took, why); (-1, "") if the job goes on."""
    stopping = EarlyStopping(metric, patience)
    for number, value in enumerate(values, start=1):
        stopping.add(number * 100, {metric.name: value, "other": 0.0})
        if stopping.reason:
            return number, stopping.reason
    return -1, ""


@given(values=st.lists(st.floats(-9, 9), min_size=1, max_size=20), patience=st.integers(1, 5), greatest=st.booleans())
def test_it_ends_after_so_many_in_a_row_that_are_no_better(values: list[float], patience: int, greatest: bool) -> None:
    best, since, expected = values[0], 0, -1
    for number, value in enumerate(values[1:], start=2):
        better = value > best if greatest else value < best
        best, since = (value, 0) if better else (best, since + 1)
        if since == patience:
            expected = number
            break
    assert first_reason(Metric("m", greatest), patience, values)[0] == expected


def test_what_is_said() -> None:
    said = first_reason(ACCURACY, 2, [0.5, 0.75, 0.75, 0.7])
    assert said == (4, "accuracy got no better in 2 checkpoints: best was 0.7500 at global step 200")
    assert first_reason(LOSS, 2, [math.nan, math.inf]) == (
        2, "loss got no better in 2 checkpoints: no value was finite",
    )  # fmt: skip
    assert first_reason(LOSS, None, [1.0] * 50) == (-1, "")


def stopping_after(*values: float, patience: int = 2, before: evaluations.History | None = None) -> EarlyStopping:
    """After these losses, at global steps 100, 200, ..."""
    stopping = EarlyStopping(LOSS, patience, before)
    for number, value in enumerate(values, start=1):
        stopping.add(number * 100, {"loss": value})
    return stopping


def test_a_value_that_is_not_finite_is_no_better_and_one_after_it_may_be() -> None:
    assert not stopping_after(math.nan, 2.0, math.nan).reason
    assert stopping_after(math.nan, 2.0, math.nan, math.inf).reason
    assert not stopping_after(math.nan, 2.0, math.nan, 1.0, 2.0).reason


def written(path: Path, *losses: tuple[int, float]) -> str:
    for step, loss in losses:
        evaluations.append(str(path), step, 1.5, {"loss": loss})
    return str(path)


def test_another_process_goes_on_where_the_one_before_was(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    assert evaluations.read(str(path)) == evaluations.History()
    written(path, (100, 1.0), (200, 0.5), (300, 0.7))
    with open(path, "ab") as file:
        file.write(b'\xff{"global_step": 400, "metr')  # of a process that was killed
    stopping = EarlyStopping(LOSS, 2, evaluations.read(str(path)))
    stopping.add(300, {"loss": 0.7})  # the newest is measured again
    assert not stopping.reason
    stopping.add(400, {"loss": 0.6})
    assert stopping.reason == "loss got no better in 2 checkpoints: best was 0.5000 at global step 200"
    written(path, (400, math.nan))
    found = evaluations.read(str(path)).evaluations
    assert list(found) == [100, 200, 300, 400] and math.isnan(found[400]["loss"]), "nothing is lost behind a torn line"
    assert "NaN" not in path.read_text(errors="replace")


def test_a_job_that_went_back_is_judged_by_what_it_did_then(tmp_path: Path) -> None:
    path = written(tmp_path / "x", (100, 1.0), (200, 0.1), (300, 0.2), (100, 0.9), (200, 0.8))
    assert evaluations.read(path).evaluations == {100: {"loss": 0.9}, 200: {"loss": 0.8}}


@pytest.mark.parametrize("steps", [(300, 400, 500), (250, 350, 450)], ids=["after it", "from before it"])
def test_a_job_that_goes_on_after_its_early_stop_has_all_its_patience_again(
    steps: tuple[int, ...], tmp_path: Path
) -> None:
    path = written(tmp_path / "x", (100, 1.0), (200, 2.0), (300, 2.0))
    evaluations.append_stop(path, 300, 1.5, "loss got no better")
    stopping = EarlyStopping(LOSS, 2, evaluations.read(path))
    for step in steps:
        assert not stopping.reason, step
        stopping.add(step, {"loss": 1.5})
    assert stopping.reason == "loss got no better in 2 checkpoints: best was 1.0000 at global step 100"


def test_another_job_in_the_same_folder_has_a_history_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "x", (200, 1.0), (300, 2.0))
    evaluations.append_stop(path, 300, 1.5, "loss got no better")
    written(tmp_path / "x", (100, 3.0))
    assert evaluations.read(path) == evaluations.History({100: {"loss": 3.0}}, stopped_at=100)


def test_values_of_another_metric_are_passed_over() -> None:
    before = evaluations.History({100: {"accuracy": 0.9}, 200: {"accuracy": 0.9}})
    stopping = EarlyStopping(LOSS, 1, before)
    assert not stopping.reason
    stopping.add(300, {"loss": 1.0})
    assert not stopping.reason


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"metric": "best:loss"}, "metric must be NAME, min:NAME or max:NAME, got 'best:loss'"),
        ({"metric": "max:"}, "metric must be NAME, min:NAME or max:NAME, got 'max:'"),
    ],
)
def test_what_cannot_be(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        EvaluatorConfig(**settings)  # type: ignore[arg-type]
    assert str(refused.value) == said


def test_the_metric_is_that_of_the_job_unless_another_is_named() -> None:
    assert EvaluatorConfig().metric_of("") == LOSS and not EvaluatorConfig().compares
    assert EvaluatorConfig(patience=3).metric_of("accuracy") == ACCURACY
    assert EvaluatorConfig(metric="min:error").metric_of("accuracy") == Metric("error", False)


def test_another_process_continues_with_what_one_has_measured(tmp_path: Path) -> None:
    path = str(tmp_path / "evaluations.jsonl")
    for step, value in ((10, 0.5), (20, 0.7)):
        stopping = StoredStopping(path, LOSS, 2)
        assert not stopping.add(step, {"loss": value, "other": 1.0})
        stopping.ended(step)
    why = StoredStopping(path, LOSS, 2).add(30, {"loss": 0.6})
    assert why == "loss got no better in 2 checkpoints: best was 0.5000 at global step 10"
    StoredStopping(path, LOSS, 2).ended(31)
    again = StoredStopping(path, LOSS, 2)
    assert not again.add(40, {"loss": 0.6}), "a job that continues has all of its patience again"
    assert again.add(50, {"loss": 0.6})


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    stopping = StoredStopping(str(tmp_path), LOSS, 1)
    assert not stopping.add(10, {"loss": 0.5}) and not stopping.add(20, {"loss": 0.6})
    stopping.ended(20)
