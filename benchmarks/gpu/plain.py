"""The peer of the GPU trials: a model module in one process of plain TensorFlow, without ps.

    python -m benchmarks.gpu.plain --model MODULE --batch-size B

It tells its steps as step_times.py does, until it is killed.  The updates of the model (moving averages) are run, too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # other trials wait on the same GPU

import tensorflow.compat.v1 as tf1

from psruntime import Context
from psruntime.graph.base.graphs import ancestors


def main() -> None:
    tf1.disable_v2_behavior()
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    arguments = parser.parse_args()
    context = Context("train", 0, 1, arguments.batch_size, "", seed=0)
    module = import_module(arguments.model)
    with tf1.device("/cpu:0"):
        batches = tf1.data.make_initializable_iterator(module.input_fn(context).repeat())
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, batches.initializer)
        features, labels = batches.get_next()
    spec = module.model_fn(features, labels, "train")
    minimized = spec.optimizer(spec.learning_rate).minimize(spec.loss, tf1.train.get_or_create_global_step())
    train_op = tf1.group(minimized, *_updates(spec.updates or ()))
    config = tf1.ConfigProto(allow_soft_placement=True)
    with tf1.train.MonitoredTrainingSession(config=config, hooks=list(spec.hooks)) as session:
        while True:
            session.run(train_op)


def _updates(updates: Sequence[tf1.Operation]) -> list[tf1.Operation]:
    """Those that need no other input: a Keras model that was called on tensors has some for its symbolic inputs."""
    return [update for update in updates if not any(op.type == "Placeholder" for op in ancestors([update]))]


if __name__ == "__main__":
    main()
