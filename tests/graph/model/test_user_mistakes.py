"""Mistakes in a model module: one line that says what and where."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf1
import tf_keras

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model, ModelSpec, load_model

CONTEXT = Context("train", 0, 1, 4, "", 0)


def batches(context: Context) -> Any:
    return tf1.data.Dataset.from_tensor_slices((np.ones([8, 3], np.float32), np.zeros([8]))).batch(context.batch_size)


def spec(**changes: Any) -> ModelSpec:
    weight = tf1.get_variable("weight", [3])
    return ModelSpec(**{"loss": tf1.reduce_sum(weight), "optimizer": tf1.train.AdamOptimizer, **changes})


def broken(*_: Any) -> ModelSpec:
    raise RuntimeError("first line\nsecond line")


def keras_layer(features: Any, *_: Any) -> ModelSpec:
    return spec(loss=tf1.reduce_sum(keras.layers.Dense(2, name="named")(features)))


def keras_model(features: Any, *_: Any) -> ModelSpec:
    return spec(loss=tf1.reduce_sum(keras.Sequential([keras.layers.BatchNormalization()])(features)))


def keras_metric(name: str, package: Any = tf_keras) -> ModelSpec:
    return spec(metrics={"m": getattr(package.metrics, name)()})


MODELS = {
    r"the loss must be a scalar float tensor, got shape \(3,\), dtype float32; reduce it": lambda *_: spec(
        loss=tf1.get_variable("w", [3]) * 2.0
    ),
    r"the loss must be a scalar float tensor, got float": lambda *_: spec(loss=1.0),
    r"the loss has no gradient with respect to any trainable variable \(weight\)": lambda *_: spec(
        loss=tf1.constant(1.0)
    ),
    r"optimizer must be a class or function that makes one, got None": lambda *_: spec(optimizer=None),
    r"learning_rate is a tensor \(Const.*\); give a number or a Python function": lambda *_: spec(
        learning_rate=tf1.constant(0.1)
    ),
    r"clip_norm must be a number greater than 0, got 0$": lambda *_: spec(clip_norm=0),
    r"clip_norm must be a number greater than 0, got 'a lot'$": lambda *_: spec(clip_norm="a lot"),
    r"clip_value must be a number greater than 0, got nan$": lambda *_: spec(clip_value=float("nan")),
    r"clip_value must be a number greater than 0, got -1.5$": lambda *_: spec(clip_value=-1.5),
    r"clip_norm and clip_value are both given; give one of them$": lambda *_: spec(clip_norm=1.0, clip_value=2),
    r"examples must be a scalar numeric tensor, the weight of the batch, got int$": lambda *_: spec(examples=8),
    r"examples must be .*, got shape \(3,\), dtype float32$": lambda features, *_: spec(examples=features[0]),
    r"examples must be .*, got shape \(\), dtype bool$": lambda *_: spec(examples=tf1.constant(True)),
    r"makes no trainable variable": lambda features, *_: ModelSpec(tf1.reduce_sum(features), tf1.train.AdamOptimizer),
    r"uses Dense of Keras 3 at .*:\d+, which does not .*use tf_keras.layers or tf.layers, as .*Dense$": keras_layer,
    r"uses Sequential of Keras 3 at .*:\d+, which": keras_model,
    r"uses metric AUC of Keras at .*:\d+; use tf.metrics.auc$": lambda *_: keras_metric("AUC"),
    r"uses metric BinaryAccuracy of Keras at .*:\d+; use tf.metrics.accuracy$": lambda *_: keras_metric(
        "BinaryAccuracy"
    ),
    r"uses metric TopKCategoricalAccuracy of Keras at .*; use one of tf.metrics$": lambda *_: keras_metric(
        "TopKCategoricalAccuracy", keras
    ),
    r"returned dict; it must return a psruntime.ModelSpec": lambda *_: {},
    r"failed at .*test_user_mistakes.py:\d+: RuntimeError: first line$": broken,
}


@pytest.mark.parametrize("complaint", MODELS)
def test_model_fn(complaint: str) -> None:
    model = Model("my.model", batches, MODELS[complaint])
    inputs = InputStream(model, CONTEXT)
    with pytest.raises(UsageError, match=complaint) as caught:
        record_specs(model, inputs, "train")
    assert "my.model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layers_and_models_of_tf_keras_are_taken() -> None:
    def model_fn(features: Any, *_: Any) -> ModelSpec:
        hidden = tf_keras.layers.BatchNormalization()(tf1.layers.dense(features, 2, name="hidden"))
        network = tf_keras.Sequential([tf_keras.layers.Dense(1, name="last")])
        return ModelSpec(tf1.reduce_sum(network(hidden)), tf1.train.AdamOptimizer)

    model = Model("m", batches, model_fn)
    specs = record_specs(model, InputStream(model, CONTEXT), "train")
    assert sum(each.name.endswith("kernel") for each in specs) == 2 and len(specs) == 8


@pytest.mark.parametrize("make", ["get_global_step", "get_or_create_global_step", "create_global_step"])
def test_the_global_step_is_there_and_may_be_made(make: str) -> None:
    """As an Estimator's model_fn finds it; the attribute of TensorFlow is as it was afterwards."""
    before, seen = tf1.train.get_global_step, []

    def model_fn(*_: Any) -> ModelSpec:
        step = getattr(tf1.train, make)()
        seen.append((step.op.name, step.dtype.base_dtype, tf1.train.get_global_step() is step))
        return spec(loss=tf1.reduce_sum(tf1.get_variable("w", [3])) * tf1.cast(step, tf1.float32))

    model = Model("m", batches, model_fn)
    specs = record_specs(model, InputStream(model, CONTEXT), "train")
    assert "global_step" not in {each.name for each in specs}
    assert seen == [("global_step", tf1.int64, True)]
    assert tf1.train.get_global_step is before


INPUTS = {
    "returned list; it must return a tf.data.Dataset": lambda _: [1, 2],
    "yields NoneType; batches must consist of tensors": lambda _: tf1.data.Dataset.from_tensors((1.0, None)),
    r"failed at .*test_user_mistakes.py:\d+: RuntimeError: first line": broken,
    "gave a dataset without a single batch": lambda context: batches(context).take(0),
}


@pytest.mark.parametrize("complaint", INPUTS)
def test_input_fn(complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        InputStream(Model("my.model", INPUTS[complaint], spec), CONTEXT).draw_endlessly()


def test_evaluation_data_without_an_end_are_refused() -> None:
    endless = Model("my.model", lambda context: batches(context).repeat().prefetch(1), spec)
    InputStream(endless, CONTEXT)
    with pytest.raises(UsageError, match=r"mode eval\) gives data without an end; .* leave out repeat\(\)"):
        InputStream(endless, replace(CONTEXT, mode="eval"))


def test_an_evaluation_takes_the_batches_that_are_wanted() -> None:
    endless = Model("my.model", lambda context: batches(context).repeat(), spec)
    some = InputStream(endless, replace(CONTEXT, mode="eval", eval_batches=3))
    assert [some.draw() is None for _ in range(4)] == [False, False, False, True]
    training = InputStream(endless, replace(CONTEXT, eval_batches=3))
    assert all(training.draw_endlessly() for _ in range(5))


def test_an_error_in_the_data_names_the_function() -> None:
    def input_fn(context: Context) -> Any:
        return batches(context).map(lambda x, y: (tf1.debugging.check_numerics(x / 0.0, "bad pixel"), y))

    with pytest.raises(UserCodeError, match=r"input_fn of my.model \(mode train\) failed.*bad pixel"):
        InputStream(Model("my.model", input_fn, spec), CONTEXT).draw()


def test_training_data_begin_again_and_evaluation_data_end() -> None:
    training = InputStream(Model("m", batches, spec), CONTEXT)
    assert [len(training.draw_endlessly()[0]) for _ in range(5)] == [4] * 5
    held_out = InputStream(Model("m", batches, spec), replace(CONTEXT, mode="eval"))
    drawn = [held_out.draw() for _ in range(3)]
    assert [batch is None for batch in drawn] == [False, False, True]


def test_no_such_module_and_no_such_function(tmp_path: Any, monkeypatch: Any) -> None:
    with pytest.raises(UsageError, match=r"model module 'no\.such' cannot be imported: No module named 'no'"):
        load_model("no.such")
    (tmp_path / "half_model.py").write_text("def input_fn(context): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"model module 'half_model' \(.*half_model.py\) has no function model_fn"):
        load_model("half_model")
    sys.modules.pop("half_model")


def test_a_module_that_fails_while_it_is_imported(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "bad_model.py").write_text("x = 1\nraise ValueError('bad constant')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"model module 'bad_model' failed .*bad_model.py:2: ValueError: bad constant"):
        load_model("bad_model")
