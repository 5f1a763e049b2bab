"""The report of an export is true: metrics, differences, sizes, and what is left out with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psruntime.commands import export
from psruntime.errors import CheckpointError
from psruntime.graph.export import write
from tests.graph.export.small_served import SMALL, SPARSE, exported, lite_rt
from tests.support.served import Served


def test_metrics_that_cannot_be_of_what_was_written_are_left_out_with_the_reason(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    features, expected = served.trained(rows=40)
    folder, report = exported(served, "--report")
    rows = report["rows"]
    assert list(rows["SavedModel"]["metrics"]) == ["loss", "error"], "the loss is one of the predictions and the labels"
    assert report["left_out"] == {
        "labels": "it does not depend on the predictions",
        "mixed": "it depends on the model's variables other than through the predictions",
    }
    by_hand = np.mean(np.abs(expected["predictions"] - features["numbers"][:, 0]))
    for row in rows.values():
        assert row["metrics"]["error"] == pytest.approx(by_hand, rel=1e-5)
    assert set(rows["checkpoint"]["metrics"]) == {"loss", "error", "labels", "mixed"}
    assert rows["SavedModel"]["bytes"] == sum(
        file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != "report.json"
    )
    assert 0 < rows["SavedModel"]["one"]["median_ms"] <= rows["SavedModel"]["one"]["p90_ms"]
    assert "no labels: it does not depend on the predictions\n" in capsys.readouterr().out


@pytest.mark.long
def test_a_checkpoint_that_is_removed_during_the_conversion_keeps_its_size(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    served.trained(rows=40)
    files = list((served.folder / "saved").glob("model.ckpt-40.*"))
    size = sum(file.stat().st_size for file in files)

    def slowly(*args: Any) -> bytes:
        for file in files:
            file.unlink()
        return convert(*args)

    convert = write.convert
    monkeypatch.setattr(write, "convert", slowly)
    _, report = exported(served, "--tflite")
    assert report["rows"]["checkpoint"]["bytes"] == size > 0


def test_one_that_is_removed_before_it_is_measured_is_followed_by_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    served.trained(rows=40)
    saved, save = served.folder / "saved", write.write_saved_model

    def rotating(*args: Any) -> Any:
        pruned = save(*args)
        for file in saved.glob("model.ckpt-40.*"):
            file.rename(file.with_name(file.name.replace("-40", "-50")))
        listed = saved / "checkpoint"
        listed.write_text(listed.read_text().replace("-40", "-50"))
        return pruned

    monkeypatch.setattr(write, "write_saved_model", rotating)
    _, report = exported(served, "--report")
    assert report["rows"]["checkpoint"]["bytes"] > 0
    with pytest.raises(CheckpointError, match=r"model.ckpt-40 is gone"):
        write._size_of_checkpoint(str(saved / "model.ckpt-40"))
    (saved / "model.ckpt-40.index").symlink_to(saved / "nowhere")
    with pytest.raises(CheckpointError, match=r"model.ckpt-40"):
        write._size_of_checkpoint(str(saved / "model.ckpt-40"))


def test_another_output_of_the_operation_that_predicts_is_not_what_was_written(served: Served) -> None:
    served.write(
        SMALL.replace("PREDICTIONS", "first")
        .replace(
            "    loss = ", "    first, second = tf1.unstack(tf1.stack([score, 2 * score], axis=1), axis=1)\n    loss = "
        )
        .replace("tf1.metrics.mean_absolute_error(labels, score)", "tf1.metrics.mean_absolute_error(labels, first)")
        .replace("tf1.metrics.mean(labels)", "tf1.metrics.mean(second)")
    )
    served.trained(rows=40)
    _, report = exported(served, "--report")
    assert list(report["rows"]["SavedModel"]["metrics"]) == ["error"]
    other_than = "it depends on the model's variables other than through the predictions"
    assert report["left_out"]["labels"] == other_than


@pytest.mark.long
def test_what_a_server_is_given_and_the_data_have_not_is_not_measured(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(
        SMALL.replace("PREDICTIONS", "score")
        + """
def serving_input_fn():
    half = tf1.placeholder(tf1.float32, [None, 3], "half")
    kind = tf1.zeros([tf1.shape(half)[0]], tf1.int64)
    return {"numbers": tf1.concat([half, half], axis=1), "kind": kind}, {"half": half}
"""
    )
    served.trained()
    folder, report = exported(served, "--tflite")
    assert "differences" not in report["rows"]["model.tflite"]
    why = "the signature takes half, which input_fn of a_served_model does not give"
    assert report["left_out"] == {"measurement": why}
    assert lite_rt((folder / "model.tflite").read_bytes(), {"half": np.ones([4, 3], "f4")})["predictions"].shape == (4,)
    served.argv[1] = f"--out={served.folder / 'other'}"
    assert export.main([*served.argv, "--tflite", "--quantize=int8"]) == 2
    assert capsys.readouterr().err.endswith(f"measures ranges on the training data, but {why}\n")


def test_sparse_features_are_measured_in_a_saved_model(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("PREDICTIONS", "score")
    for old, new in SPARSE:
        text = text.replace(old, new)
    served.write(text)
    served.trained()
    _, report = exported(served, "--report")
    row = report["rows"]["SavedModel"]
    assert row["differences"]["predictions"] == {"largest": 0, "unequal": 0, "entries": 40}
    assert row["metrics"]["error"] == report["rows"]["checkpoint"]["metrics"]["error"] > 0
    assert row["one"] is None, "sparse examples are not cut"
    assert "ms a batch" in capsys.readouterr().out


def test_the_held_out_data_are_as_evaluate_reads_them(served: Served) -> None:
    """A batch that is not full counts by its examples, in the loss too."""
    served.write(SMALL.replace("PREDICTIONS", "score"))
    features, expected = served.trained(rows=40)
    _, report = exported(served, "--report", "--batch-size=7")
    by_hand = np.mean(np.square(expected["predictions"] - features["numbers"][:, 0]))
    for row in report["rows"].values():
        assert row["metrics"]["loss"] == pytest.approx(by_hand, rel=1e-5)
    assert report["batch"] == 7
