"""The peer of the benchmark that asks what the ps add to a step: one process of plain TensorFlow without any.

    python -m benchmarks.local_layers --model MODULE --batch-size B

The graph is that of stock_layers.py without its devices, its session one of the same kind; it tells its steps as
step_times.py does.
"""

from __future__ import annotations

import argparse

import tensorflow.compat.v1 as tf1

from benchmarks.stock_layers import training
from psruntime import Context


def main() -> None:
    tf1.disable_v2_behavior()
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    arguments = parser.parse_args()
    train_op, _, hooks = training(arguments.model, Context("train", 0, 1, arguments.batch_size, "", seed=0))
    with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
        while True:  # the benchmark ends this process
            session.run(train_op)


if __name__ == "__main__":
    main()
