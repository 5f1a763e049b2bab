"""A model whose every entry tells after how many rounds it was saved.

Mode sync: the gradient of each entry is 1, whatever the batches are.  Momentum never decays, so after t rounds every
slot is t and every entry -RATE t (t + 1) / 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from tests.chaos.rounds_in import NAMES, RATE, SLOT
from tests.support.gated import StopAtGate

ENTRIES = 1 << 18  # of each variable: a save takes long enough to be struck


def input_fn(context: Context) -> Any:
    return tf1.data.Dataset.from_tensors((tf1.ones([8, 1]), tf1.ones([8])))


def make(gates: str) -> Any:
    """A model_fn."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        variables = [tf1.get_variable(name, [ENTRIES], initializer=tf1.zeros_initializer()) for name in NAMES]
        loss = tf1.reduce_mean(features) + tf1.add_n([tf1.reduce_sum(variable) for variable in variables])
        optimizer = partial(tf1.train.MomentumOptimizer, momentum=1.0)
        assert optimizer.func(0.0, **optimizer.keywords).get_name() == SLOT
        return ModelSpec(loss, optimizer, RATE, hooks=[StopAtGate(gates)] if mode == "train" else ())

    return model_fn
