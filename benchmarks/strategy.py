"""The peer of the async benchmarks in TensorFlow 2: ParameterServerStrategy, as its own users write it.

    python -m benchmarks.strategy --role chief|ps|worker --index N --chief HOST:PORT --ps HOST:PORT,...
        --workers HOST:PORT,... --batch-size B --model MODULE

A model module has `input_fn(context)`, which gives a dataset; `partitioner(num_ps)`, of its variables, or None; and
`model()`, which gives (variables that are trained, loss, optimizer): the loss is a function of features and labels, the
optimizer one of Keras.

A ps and a worker are servers; the chief schedules steps on all workers, so many ahead that none of them waits for work.
It tells the steps of all of them together as step_times.py does.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from importlib import import_module
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 does not know this strategy

import tensorflow as tf

from benchmarks.step_lines import EVERY_S
from psruntime import Context

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
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    ps, workers = arguments.ps.split(","), arguments.workers.split(",")
    cluster = tf.train.ClusterSpec({"chief": [arguments.chief], "ps": ps, "worker": workers})
    if arguments.role != "chief":
        tf.distribute.Server(cluster, job_name=arguments.role, task_index=arguments.index, protocol="grpc").join()
    train(cluster, import_module(arguments.model), arguments.batch_size)


def train(cluster: Any, module: Any, batch_size: int) -> None:
    """Until the benchmark ends this process."""
    num_ps, workers = cluster.num_tasks("ps"), cluster.num_tasks("worker")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=module.partitioner(num_ps))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        trained, loss_of, optimizer = module.model()

    train_step = step_of(strategy, trained, loss_of, optimizer)

    def dataset(context: Any) -> Any:
        index = context.input_pipeline_id
        return module.input_fn(Context("train", index, workers, batch_size, "", seed=index)).repeat()

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


def step_of(strategy: Any, trained: list[Any], loss_of: Any, optimizer: Any, replicas: int = 1) -> Any:
    """A step with the next batch of an iterator.  replicas: whose gradients the strategy sums in an update."""

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(features: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(features, labels) / replicas
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
            return loss

        return strategy.run(replica_step, args=next(iterator))

    return train_step


if __name__ == "__main__":
    main()
