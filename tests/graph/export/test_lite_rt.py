"""psruntime export --tflite, --quantize, --prune: what is written runs in LiteRT as in its checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from ai_edge_litert.interpreter import Interpreter

from psruntime.commands import export
from psruntime.errors import UsageError
from psruntime.examples import digits
from psruntime.graph.export.runtimes import LiteRtRuntime
from psruntime.graph.export.saved_model import without_smallest
from psruntime.graph.export.tflite import compact
from tests.graph.export.small_served import SMALL, SPARSE, exported, lite_rt
from tests.support.selection import long_but
from tests.support.served import MODEL, Served

DIGITS = "psruntime.examples.digits"


@pytest.mark.parametrize("model", long_but([DIGITS], [DIGITS, "psruntime.examples.wide_deep"]))
def test_an_example_in_lite_rt_gives_what_its_checkpoint_gives(model: str, served: Served, capfd: Any) -> None:
    served.argv += [f"--model={model}", "--batch-size=1000"]
    features, expected = served.trained(model)
    folder, report = exported(served, "--tflite")
    found = lite_rt((folder / "model.tflite").read_bytes(), features)["predictions"]
    np.testing.assert_allclose(found, expected["predictions"], rtol=1e-6, atol=1e-6)
    for name in ("SavedModel", "model.tflite"):
        difference = report["rows"][name]["differences"]["predictions"]
        assert difference["unequal"] == 0 if difference["largest"] is None else difference["largest"] < 1e-6
    out, err = capfd.readouterr()
    assert "model.tflite" in out and "INFO" not in err, "what TensorFlow's C++ side says is for its developers"


@pytest.mark.long
def test_digits_in_int8_are_three_and_a_half_times_smaller_and_as_good(served: Served) -> None:
    served.train(DIGITS, 600)
    folder, report = exported(served, f"--model={DIGITS}", "--tflite", "--quantize=int8")
    rows, content = report["rows"], (folder / "model.int8.tflite").read_bytes()
    assert rows["model.tflite"]["bytes"] >= 3.5 * rows["model.int8.tflite"]["bytes"] == 3.5 * len(content)
    assert rows["checkpoint"]["metrics"]["accuracy"] > 0.95
    assert rows["checkpoint"]["metrics"]["accuracy"] - rows["model.int8.tflite"]["metrics"]["accuracy"] < 0.01
    assert report["calibration_batches"] == 16
    types = [detail["dtype"] for detail in Interpreter(model_content=content).get_tensor_details()]
    assert types.count(np.int8) >= 5, "weights and activations"
    signature = Interpreter(model_content=content).get_signature_runner("serving_default")
    assert signature.get_input_details()["features"]["dtype"] is np.float32, "the same signature serves"


@pytest.mark.long
def test_what_the_report_says_of_lite_rt_is_what_lite_rt_gives(served: Served) -> None:
    served.train(DIGITS, 50)
    folder, report = exported(served, f"--model={DIGITS}", "--tflite", "--quantize=int8", "--prune=0.9")
    pixels, labels = digits._data()
    pixels, labels = pixels[-digits.HELD_OUT :], labels[-digits.HELD_OUT :]
    found = lite_rt((folder / "model.int8.tflite").read_bytes(), {"features": pixels})["predictions"]
    row = report["rows"]["model.int8.tflite"]
    assert row["metrics"] == {"accuracy": pytest.approx(np.mean(found == labels), abs=1e-6)}
    assert row["metrics"]["accuracy"] < report["rows"]["checkpoint"]["metrics"]["accuracy"]
    assert row["differences"]["predictions"]["unequal"] > 0
    assert report["left_out"] == {"loss": "it does not depend on the predictions"}


OTHER_TRAINING = """
    if context.mode == "train":
        features = FEATURES
"""


CALIBRATIONS = [
    ('{"a_noise": 1e4 * numbers, "numbers": numbers, "kind": np.arange(40) % 5}', ""),
    ('{"numbers": numbers}', "the signature takes kind, which input_fn of a_served_model (mode train) does not"),
    (
        '{"numbers": numbers.astype("f8"), "kind": np.arange(40) % 5}',
        "takes numbers as float32, which input_fn of a_served_model (mode train) gives as float64",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("features", "said"), CALIBRATIONS)
def test_int8_is_calibrated_on_features_of_the_training_data_by_their_names(
    features: str, said: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training data have another layout than the held-out data."""
    other, text = OTHER_TRAINING.replace("FEATURES", features), SMALL.replace("PREDICTIONS", "score")
    served.write(text.replace("    return tf1.data.", f"{other}    return tf1.data."))
    served.trained(rows=40)
    if said:
        assert export.main([*served.argv, "--tflite", "--quantize=int8"]) == 2
        assert said in capsys.readouterr().err
        return
    _, report = exported(served, "--tflite", "--quantize=int8")
    assert report["rows"]["model.int8.tflite"]["differences"]["predictions"]["largest"] < 0.5


@pytest.mark.long
def test_float16_takes_half(served: Served) -> None:
    served.train(DIGITS, 50)
    folder, report = exported(served, f"--model={DIGITS}", "--tflite", "--quantize=float16")
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.tflite")}
    assert 1.8 < sizes["model.tflite"] / sizes["model.float16.tflite"] < 2
    accuracies = [row["metrics"]["accuracy"] for row in report["rows"].values()]
    assert max(accuracies) - min(accuracies) < 0.01


@pytest.mark.long
def test_half_of_each_kernel_is_pruned_and_nothing_else(served: Served) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    served.trained()
    folder, report = exported(served, "--prune=0.5", "--tflite")
    assert report["pruned"] == [{"name": "kernel", "entries": 24, "zeros": 12}]
    before = tf1.train.load_checkpoint(str(served.folder / "saved" / "model.ckpt-40"))
    after = tf1.train.load_checkpoint(str(folder / "variables" / "variables"))
    kernels = before.get_tensor("kernel"), after.get_tensor("kernel")
    kept = kernels[1] != 0
    np.testing.assert_array_equal(kernels[0][kept], kernels[1][kept])
    assert np.abs(kernels[0][~kept]).max() <= np.abs(kernels[0][kept]).min()
    for name in ("table", "bias"):
        np.testing.assert_array_equal(before.get_tensor(name), after.get_tensor(name))
    rows = report["rows"]
    assert rows["SavedModel"]["differences"]["predictions"]["largest"] > 0.01
    assert rows["SavedModel"]["metrics"]["error"] == pytest.approx(rows["model.tflite"]["metrics"]["error"], rel=1e-5)


def test_what_lite_rt_cannot_run_is_one_line(served: Served) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    served.trained(rows=40)
    folder, _ = exported(served, "--tflite")
    runtime = LiteRtRuntime((folder / "model.tflite").read_bytes())
    with pytest.raises(UsageError, match="--tflite: LiteRT cannot run the model: ") as refused:
        runtime({"numbers": [np.ones([4, 3], "f4")], "kind": [np.zeros([4], "i8")]})
    assert "\n" not in str(refused.value)


def of_small(old: str, new: str) -> Callable[[], str]:
    def text() -> str:
        assert old in SMALL
        return SMALL.replace(old, new).replace("PREDICTIONS", "score")

    return text


DYNAMIC = (
    'tf1.nn.embedding_lookup(table, features["kind"])',
    '__import__("psruntime").embedding(features["kind"], "rows", 4, capacity=64)',
)


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (lambda: MODEL.replace("PREDICTIONS", "score"), ["--tflite"], "feature word is a string, for which LiteRT has"),
        (of_small(*DYNAMIC), ["--tflite"], "rows has rows of any ids (psruntime.embedding), which LiteRT cannot"),
        (
            of_small("features[\"kind\"])", "tf1.strings.to_hash_bucket_fast(tf1.as_string(features['kind']), 5))"),
            ["--tflite"],
            "LiteRT has no AsString, StringToHashBucketFast, or not for these types",
        ),
        (
            lambda: of_small(*SPARSE[0])().replace(*SPARSE[1]),
            ["--tflite"],
            "feature numbers is sparse, and a LiteRT model takes dense tensors only",
        ),
        (of_small("tf1.matmul(features[\"numbers\"], kernel)", "features['numbers'][:, :4]"), ["--prune=0.5"],
         "the predictions depend on no kernel"),
        (of_small("", ""), ["--quantize=int8"], "--quantize int8 is for --tflite; give that too"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_one_line_and_writes_nothing(
    text: Callable[[], str], flags: list[str], said: str, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    served.write(text())
    served.trained()
    capfd.readouterr()
    assert export.main([*served.argv, *flags]) == 2
    out, err = capfd.readouterr()
    assert said in err and err.count("\n") == 1 and out == ""
    assert not (served.folder / "out").exists() or list((served.folder / "out").iterdir()) == []


@pytest.mark.parametrize("flag", ["--prune=0", "--prune=1", "--prune=nan", "--prune=half", "--quantize=int4"])
def test_a_flag_that_is_out_of_range_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        export.main(["--checkpoint-dir=saved", "--out=out", flag])
    assert ended.value.code == 2
    assert f"argument {flag.partition('=')[0]}: " in capsys.readouterr().err


def test_without_lite_rt_nothing_is_begun(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(SMALL.replace("PREDICTIONS", "score"))
    served.trained()
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    assert export.main([*served.argv, "--tflite"]) == 2
    assert "pip install 'psruntime[tflite]'" in capsys.readouterr().err
    assert export.main([*served.argv, "--report"]) == 0, "a SavedModel needs TensorFlow only"


def test_the_smallest_entries_become_zero_and_no_more() -> None:
    values = np.array([[3.0, -1.0], [0.5, -4.0], [2.0, 0.0]], np.float32)
    assert without_smallest(values, 0.5).tolist() == [[3, 0], [0, -4], [2, 0]]
    assert without_smallest(values, 0.49).tolist() == [[3, -1], [0, -4], [2, 0]], "rounded down"
    assert without_smallest(values, 0.1).tolist() == values.tolist() and values[0, 1] == -1
    assert np.count_nonzero(without_smallest(np.ones(10), 0.3)) == 7, "of equal ones any"


def test_a_compact_model_is_the_same_with_its_weights_aligned() -> None:
    random = np.random.RandomState(0)
    weights = [tf.constant(random.normal(size=shape).astype("f4")) for shape in ([3, 3, 3, 33], [33, 5])]

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3], tf.float32, "image")])
    def network(image: Any) -> Any:
        hidden = tf.nn.relu(tf.nn.conv2d(image, weights[0], 2, "SAME"))
        return {"out": tf.matmul(tf.reduce_mean(hidden, [1, 2]), weights[1])}

    module = tf.Module()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()], module)
    images = random.normal(size=[4, 8, 8, 3]).astype("f4")
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: iter([[images]])
    content = converter.convert()
    smaller = compact(content)
    assert len(smaller) < len(content) - 33 * 8, "the zero points of 33 channels are there once"
    outputs = [lite_rt(each, {"image": images}) for each in (content, smaller)]
    assert outputs[0].keys() == outputs[1].keys()
    for name, values in outputs[0].items():
        np.testing.assert_array_equal(values, outputs[1][name])
    interpreter = Interpreter(model_content=smaller)
    (index,) = [d["index"] for d in interpreter.get_tensor_details() if list(d["shape"]) == [33, 3, 3, 3]]
    stored = interpreter.get_tensor(index).tobytes()
    assert smaller.find(stored) % 16 == 0 and smaller.count(stored) == 1


LOGITS = """
from dataclasses import replace
from psruntime.examples import mobilenet_v2

def input_fn(context):
    return mobilenet_v2.input_fn(context).take(1)

def model_fn(features, labels, mode):
    spec = mobilenet_v2.model_fn(features, labels, mode)
    return replace(spec, predictions={"classes": spec.predictions, "logits": spec.predictions.op.inputs[0]})
"""


@pytest.mark.long
@pytest.mark.parametrize("quantize", ["int8", "float16"])
def test_mobilenet_in_lite_rt(quantize: str, served: Served) -> None:
    served.write(LOGITS)
    features, expected = served.trained()
    folder, report = exported(served, "--tflite", f"--quantize={quantize}", "--batch-size=16")
    found = lite_rt((folder / "model.tflite").read_bytes(), features)
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-6, atol=1e-6)
    rows = report["rows"]
    assert rows["model.tflite"]["differences"]["logits"]["largest"] < 1e-6
    ratio = rows["model.tflite"]["bytes"] / rows[f"model.{quantize}.tflite"]["bytes"]
    assert ratio > (3.5 if quantize == "int8" else 1.9)
