"""psruntime export: a SavedModel gives the predictions of its checkpoint, to whoever loads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.commands import export
from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.graph.export import serving_graph
from tests.support.selection import long_but
from tests.support.served import ALL, MODEL, Served


def loaded(served: Served, *more: str) -> Any:
    """The SavedModel as TensorFlow 2 loads it."""
    assert export.main([*served.argv, *more]) == 0
    return tf.saved_model.load(str(served.folder / "out" / "1"))


def call(signature: Any, features: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in signature(**features).items()}


def examples_of(features: dict[str, Any]) -> Any:
    def feature(value: Any) -> tf1.train.Feature:
        flat = np.ravel(value)
        if flat.dtype.kind == "f":
            return tf1.train.Feature(float_list=tf1.train.FloatList(value=flat))
        if flat.dtype.kind in "iu":
            return tf1.train.Feature(int64_list=tf1.train.Int64List(value=flat))
        return tf1.train.Feature(bytes_list=tf1.train.BytesList(value=flat))

    count = len(next(iter(features.values())))
    rows = [{name: feature(values[row]) for name, values in features.items()} for row in range(count)]
    return tf.constant([
        tf1.train.Example(features=tf1.train.Features(feature=row)).SerializeToString() for row in rows
    ])  # fmt: skip


@pytest.mark.parametrize("example", long_but(["digits"], ["digits", "wide_deep"]))
def test_an_example_gives_what_its_checkpoint_gives(example: str, served: Served) -> None:
    model = f"psruntime.examples.{example}"
    served.argv += [f"--model={model}"]
    features, expected = served.trained(model)
    signatures = loaded(served).signatures
    assert set(signatures) == {"serving_default", "tf_example"}
    given = {name: tf.constant(values) for name, values in features.items()}
    for found in (
        call(signatures["serving_default"], given),
        call(signatures["tf_example"], {"examples": examples_of(features)}),
    ):
        assert set(found) == {"predictions"}
        np.testing.assert_allclose(found["predictions"], expected["predictions"], rtol=1e-6, atol=1e-6)


def test_features_of_many_kinds_and_predictions_by_name(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.write(MODEL.replace("PREDICTIONS", ALL))
    features, expected = served.trained()
    signatures = loaded(served, "--json").signatures
    said = json.loads(capsys.readouterr().out)
    assert said["global_step"] == 40 and said["checkpoint"].endswith("model.ckpt-40") and said["bytes"] > 0
    assert said["signatures"]["serving_default"] == {
        "inputs": {"kind": "int64 (None,)", "numbers": "float32 (None, 2)", "word": "string (None,)"},
        "outputs": {"hidden": "float32 (None, 3)", "score": "float32 (None,)"},
    }, "what no prediction depends on is not asked for"
    del features["unused"]
    given = {name: tf.constant(values) for name, values in features.items()}
    for found in (
        call(signatures["serving_default"], given),
        call(signatures["tf_example"], {"examples": examples_of(features)}),
    ):
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6)
    one = {name: values[:1] for name, values in given.items()}
    assert call(signatures["serving_default"], one)["hidden"].shape == (1, 3), "a batch of any size"


def test_what_a_server_is_given_may_be_said_by_the_model(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.write(
        MODEL.replace("PREDICTIONS", "score")
        + """
def serving_input_fn():
    kind = tf1.placeholder(tf1.int32, [None], name="kind_only")
    words = tf1.fill(tf1.shape(kind), "b")
    numbers = tf1.ones(tf1.stack([tf1.shape(kind)[0], 2]))
    return {"numbers": numbers, "kind": kind, "word": words, "unused": numbers}, {"kind": kind}
"""
    )
    served.trained()
    signatures = loaded(served).signatures
    out = capsys.readouterr().out
    assert "signature serving_default: kind int32 (None,) -> predictions float32 (None,)\n" in out
    assert "no signature for tf.Examples: serving_input_fn defines the inputs\n" in out
    assert list(signatures) == ["serving_default"]
    assert call(signatures["serving_default"], {"kind": tf.constant([1, 4])})["predictions"].shape == (2,)


def predicting(what: str) -> Callable[[str], str]:
    return lambda text: text.replace("PREDICTIONS", what)


def serving(body: str) -> Callable[[str], str]:
    return lambda text: text.replace("PREDICTIONS", "score") + f"def serving_input_fn():\n    {body}\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (predicting("None"), "returns no predictions, which are what a served model is asked for"),
        (predicting("score - labels"), "the predictions depend on the labels, which a server has not"),
        (predicting('{"a": score, "error": loss}'), "the predictions depend on the labels"),
        (predicting("weights * 2"), "the predictions depend on no feature, so there is nothing to ask"),
        (predicting('{"a": score, "b": None}'), "b must be a dense or sparse tensor, got NoneType"),
        (predicting('{"a": {"b": score}, "a_b": score}'), "two tensors would both be called a_b"),
        (
            predicting('score * tf1.placeholder(tf1.float32, [], "extra")'),
            "depend on placeholder extra, which is not given",
        ),
        (
            lambda text: text.replace("return ModelSpec", "return 3; ModelSpec"),
            "returned int; it must return a psruntime.ModelSpec",
        ),
        (serving("return 3"), "must return (features, tensors that are given, by name), got 3"),
        (serving('return {}, {"n": 3}'), "n must be a placeholder, got int"),
        (
            serving(
                'ids = tf1.placeholder(tf1.int64, [None]); lost = tf1.placeholder(tf1.float32, [None, 2], "lost"); '
                'return {"numbers": lost, "kind": ids, "word": tf1.fill(tf1.shape(ids), "a")}, {"kind": ids}'
            ),
            "depend on placeholder lost, which is not given",
        ),
    ],
)
def test_a_model_that_cannot_be_served_is_one_line(
    change: Callable[[str], str], said: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(MODEL.replace("PREDICTIONS", "score"))
    served.trained()
    served.write(change(MODEL))
    assert export.main(served.argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1
    assert not (served.folder / "out").exists()


def test_a_checkpoint_of_another_model_writes_nothing(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.write(MODEL.replace("PREDICTIONS", "score"))
    served.trained()
    served.write(MODEL.replace("PREDICTIONS", "score").replace("[5, 3]", "[7, 3]"))
    assert export.main(served.argv) == 2
    err = capsys.readouterr().err
    assert "model.ckpt-40 is of another model: variable table is float32[5, 3], and float32[7, 3] in the" in err
    served.write(MODEL.replace("PREDICTIONS", "score").replace('"weights"', '"w"'))
    assert export.main(served.argv) == 2
    assert "variable w is not there, and float32[2, 3] in the model" in capsys.readouterr().err
    (served.folder / "saved" / f"model.ckpt-40{SUFFIX}").write_text(SavedState(40).text())  # as psruntime wrote it
    smaller = MODEL.replace('tf1.nn.embedding_lookup(table, features["kind"]) + ', "").replace("    table = ", "    # ")
    served.write(smaller.replace("PREDICTIONS", "score"))
    assert export.main(served.argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "variable table is float32[5, 3], and the model has none of this name; give the --model that" in err
    assert list((served.folder / "out").iterdir()) == []


def test_a_folder_that_is_there_is_kept(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.write(MODEL.replace("PREDICTIONS", "score"))
    assert export.main(served.argv) == 2
    assert capsys.readouterr().err.endswith("saved has no checkpoint\n")
    served.trained()
    kept = served.folder / "out" / "1" / "mine"
    kept.parent.mkdir(parents=True)
    kept.write_text("x")
    assert export.main(served.argv) == 2
    assert f"--out {kept.parent} is there already; give one that is new or empty" in capsys.readouterr().err
    assert kept.read_text() == "x"
    served.argv[1] = "--out=gs://bucket/served/1"
    assert export.main(served.argv) == 2
    assert "--out gs://bucket/served/1 is no folder of this machine" in capsys.readouterr().err
    served.argv[1] = f"--out={kept}/1"
    assert export.main(served.argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_vocabulary_and_local_variables_go_with_it(served: Served) -> None:
    vocabulary = served.folder / "words.txt"
    vocabulary.write_text("a\nc\nb\n")
    served.write(
        MODEL.replace("PREDICTIONS", "score + scale")
        .replace('tf1.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), -1.0)', "AS_FILE, -1)")
        .replace("words.lookup", "0.5 * tf1.to_float(words.lookup")
        .replace('features["word"])\n', 'features["word"]))\n')
        .replace("    loss = ", "    scale = tf1.get_local_variable('scale', initializer=3.0)\n    loss = ")
        .replace(
            "AS_FILE",
            f"tf1.lookup.TextFileInitializer({str(vocabulary)!r}, tf1.string, tf1.lookup.TextFileIndex.WHOLE_LINE, "
            "tf1.int64, tf1.lookup.TextFileIndex.LINE_NUMBER)",
        )
    )
    features, expected = served.trained()
    assert export.main(served.argv) == 0
    vocabulary.unlink()
    del features["unused"]
    signature = tf.saved_model.load(str(served.folder / "out" / "1")).signatures["tf_example"]
    found = call(signature, {"examples": examples_of(features)})["predictions"]
    np.testing.assert_allclose(found, expected["predictions"], rtol=1e-6, atol=1e-6)


def test_features_without_a_batch_axis_or_of_no_known_shape_are_given_as_they_are(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(
        MODEL.replace("PREDICTIONS", "tf1.cond(features['flag'] > 0, lambda: score, lambda: -score)")
        .replace(
            ".batch(context.batch_size)",
            ".batch(12).map(lambda f, l: ({**f, 'flag': 1, 'numbers': "
            "tf1.py_func(lambda n: n, [f['numbers']], tf1.float32)}, l))",
        )
        .replace('matmul(features["numbers"]', 'matmul(tf1.reshape(features["numbers"], [-1, 2])')
    )
    features, expected = served.trained()
    signatures = loaded(served).signatures
    out = capsys.readouterr().out
    assert "flag int32 ()" in out and "numbers float32 <unknown>" in out
    assert "no signature for tf.Examples: feature " in out and list(signatures) == ["serving_default"]
    del features["unused"]
    found = call(signatures["serving_default"], {name: tf.constant(value) for name, value in features.items()})
    np.testing.assert_allclose(found["predictions"], expected["predictions"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("asked", "code"), [("", 0), ("+ tf1.to_float(features['many'].row_lengths())", 2)])
def test_a_ragged_feature_is_refused_where_it_is_needed(
    asked: str, code: int, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write(
        MODEL.replace("PREDICTIONS", f"score {asked}").replace(
            ".batch(context.batch_size)",
            ".batch(12).map(lambda f, l: ({**f, 'many': tf1.ragged.constant([[1]] * 12)}, l))",
        )
    )
    served.trained()
    assert export.main(served.argv) == code
    assert (
        "feature many is ragged, which no signature has; write a serving_input_fn" in capsys.readouterr().err
    ) == bool(code)


def test_a_checkpoint_that_is_removed_meanwhile_is_followed_by_the_next(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.write(MODEL.replace("PREDICTIONS", "score"))
    served.trained()
    saved = served.folder / "saved"
    build = serving_graph.build_serving_graph

    def slowly(*args: Any) -> Any:
        for file in saved.glob("model.ckpt-40.*"):
            file.rename(file.with_name(file.name.replace("-40", "-50")))
        listed = (saved / "checkpoint").read_text()
        after_look.append(listed)
        return build(*args)

    after_look: list[str] = []
    monkeypatch.setattr(serving_graph, "build_serving_graph", slowly)
    assert export.main(served.argv) == 1
    assert "model.ckpt-40 is missing but listed" in capsys.readouterr().err
    (saved / "checkpoint").write_text(after_look[0].replace("-40", "-50"))
    assert export.main([*served.argv, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["global_step"] == 50 and said["left_out"] == ""
    (served.folder / "out2").mkdir()
    for file in saved.glob("model.ckpt-50.*"):
        (saved / file.name.replace("ckpt-50", "ckpt-50.delta-55")).write_bytes(file.read_bytes())
    served.argv[1] = f"--out={served.folder / 'out2'}"
    assert export.main(served.argv) == 0
    assert "the rows of the newer" in capsys.readouterr().err
