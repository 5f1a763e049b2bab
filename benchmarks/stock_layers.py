"""The peer of the benchmarks that train a model module: stock TensorFlow between graphs, as its own users write it.

    python -m benchmarks.stock_layers --mode async|sync --role ps|worker --index N --ps HOST:PORT,...
        --workers HOST:PORT,... --batch-size B [--model MODULE]

Worker 0 is the chief; it prints `prepared` once its session has initialised the variables.  Each worker tells its steps
as step_times.py does.

Mode async: each worker applies its own gradients.

Mode sync: SyncReplicasOptimizer aggregates all workers' gradients to one update.  Before a worker pushes, it prints
`push S T`: it computes and pushes for global step S, as the token says that it got at time T, in seconds of the
system's clock.  Its first push is made without a token and is not printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks import layer_stack
from psruntime import Context


def main(session_of: Callable[..., Any] = tf1.train.MonitoredTrainingSession) -> None:
    """session_of: makes the session of a worker."""
    tf1.disable_v2_behavior()
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("async", "sync"), required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--ps", required=True)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--model", default=layer_stack.__name__)
    arguments = parser.parse_args()
    workers = arguments.workers.split(",")
    cluster = tf1.train.ClusterSpec({"ps": arguments.ps.split(","), "worker": workers})
    server = tf1.train.Server(cluster, job_name=arguments.role, task_index=arguments.index)
    if arguments.role == "ps":
        server.join()
    device = f"/job:worker/task:{arguments.index}"

    def synchronous(optimizer: Any) -> Any:
        return tf1.train.SyncReplicasOptimizer(
            optimizer, replicas_to_aggregate=len(workers), total_num_replicas=len(workers)
        )

    with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=device)):
        context = Context("train", arguments.index, len(workers), arguments.batch_size, "", seed=arguments.index)
        wrapped = synchronous if arguments.mode == "sync" else as_it_is
        train_op, optimizer, hooks = training(arguments.model, context, wrapped)
    chief = arguments.index == 0
    if arguments.mode == "sync":
        hooks.append(optimizer.make_session_run_hook(chief))
    with session_of(
        master=server.target,
        is_chief=chief,
        hooks=hooks,
        config=tf1.ConfigProto(device_filters=["/job:ps", device]),  # the workers do not wait for each other
    ) as session:
        if chief:
            print("prepared", flush=True)
        while True:  # the benchmark ends this process
            token = session.run(train_op)
            if arguments.mode == "sync":
                print(f"push {token} {time.time()}", flush=True)


def as_it_is(optimizer: Any) -> Any:
    return optimizer


def training(model: str, context: Context, wrapped: Callable[[Any], Any] = as_it_is) -> tuple[Any, Any, list[Any]]:
    """(operation of a step, its optimizer, hooks) of a model module, on the current device.

    wrapped: what is made of the optimizer.
    """
    module = import_module(model)
    features, labels = tf1.data.make_one_shot_iterator(module.input_fn(context).repeat()).get_next()
    spec = module.model_fn(features, labels, "train")
    optimizer = wrapped(spec.optimizer(spec.learning_rate))
    train_op = optimizer.minimize(spec.loss, global_step=tf1.train.get_or_create_global_step())
    return train_op, optimizer, list(spec.hooks)


if __name__ == "__main__":
    main()
