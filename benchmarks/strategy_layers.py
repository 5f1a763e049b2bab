"""The peer of the async benchmark in TensorFlow 2: ParameterServerStrategy, as its own users write it.

    python -m benchmarks.strategy_layers --role chief|ps|worker --index N --chief HOST:PORT --ps HOST:PORT,...
        --workers HOST:PORT,... --batch-size B

The model is layer_stack's, written with eager variables and functions; data, batches and learning rate are the same.
A ps and a worker are servers; the chief schedules steps on all workers, so many ahead that none of them waits for work.
It tells the steps of all of them together as step_times.py does.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 does not know this strategy

import tensorflow as tf

from benchmarks import layer_stack
from benchmarks.step_times import EVERY_S
from psruntime import Context

LEARNING_RATE = 1e-3
WARM_UP_S = 5.0  # from the first step, until every worker has got its functions
AHEAD = 20  # steps that are scheduled and not done, for each worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("chief", "ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--chief", required=True)
    parser.add_argument("--ps", required=True)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    arguments = parser.parse_args()
    workers = arguments.workers.split(",")
    cluster = tf.train.ClusterSpec({"chief": [arguments.chief], "ps": arguments.ps.split(","), "worker": workers})
    if arguments.role != "chief":
        tf.distribute.Server(cluster, job_name=arguments.role, task_index=arguments.index, protocol="grpc").join()
    train(cluster, len(workers), arguments.batch_size)


def train(cluster: Any, workers: int, batch_size: int) -> None:
    """Until the benchmark ends this process."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        kernels, biases = variables()
        optimizer = tf.keras.optimizers.legacy.Adam(LEARNING_RATE)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(features: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = features
                for kernel, bias in zip(kernels, biases, strict=True):
                    hidden = tf.tanh(tf.nn.bias_add(tf.matmul(hidden, kernel), bias))
                loss = tf.reduce_mean(tf.square(hidden - labels))
            trained = [*kernels, *biases]
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
            return loss

        return strategy.run(replica_step, args=next(iterator))

    def dataset(context: Any) -> Any:
        seed = context.input_pipeline_id
        return layer_stack.input_fn(Context("train", seed, workers, batch_size, "", seed=seed)).repeat()

    @tf.function  # type: ignore[untyped-decorator]
    def per_worker_dataset() -> Any:
        return strategy.distribute_datasets_from_function(dataset)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset))
    ahead: deque[Any] = deque()
    done, told_s = 0, 0.0  # told_s: of the system's clock
    while True:  # the benchmark ends this process
        while len(ahead) < AHEAD * workers:
            ahead.append(coordinator.schedule(train_step, args=(iterator,)))
        ahead.popleft().get()  # waits until the step is done; its result stays where it is
        told_s = told_s or time.time() + WARM_UP_S
        done += 1
        now_s = time.time()
        if now_s - told_s >= EVERY_S:
            told_s = now_s
            print(f"steps {done} {now_s} -", flush=True)


def variables() -> tuple[list[Any], list[Any]]:
    """(kernels, biases) of layer_stack's layers, with its initial values."""
    layers, width = layer_stack.shape_here()
    initial = tf.keras.initializers.GlorotUniform()
    kernels = [tf.Variable(initial([width, width]), name=f"kernel_{layer}") for layer in range(layers)]
    return kernels, [tf.Variable(tf.zeros([width]), name=f"bias_{layer}") for layer in range(layers)]


if __name__ == "__main__":
    main()
