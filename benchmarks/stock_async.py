"""The peer of the benchmarks: stock TensorFlow, between-graph async training, as its own users write it.

    python -m benchmarks.stock_async --role ps|worker --index N --ps HOST:PORT,... --workers HOST:PORT,...
        [--checkpoint-dir DIR]

A ps prints `serving T`.  A worker prints `prepared T` (the chief, once its session has initialised the variables) and
`first_step T` for the first step of each of its sessions.  T is in seconds of the system's clock.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import tensorflow.compat.v1 as tf1

STEP_S = 0.1  # between two steps: what is measured is how the processes find each other, not how fast they compute


class FirstSteps(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Tells when a new session has made its first step."""

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._is_first = True

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if self._is_first:
            self._is_first = False
            print(f"first_step {time.time()}", flush=True)


def main() -> None:
    tf1.disable_v2_behavior()
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--ps", required=True)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--checkpoint-dir")
    arguments = parser.parse_args()
    cluster = tf1.train.ClusterSpec({"ps": arguments.ps.split(","), "worker": arguments.workers.split(",")})
    server = tf1.train.Server(cluster, job_name=arguments.role, task_index=arguments.index)
    if arguments.role == "ps":
        print(f"serving {time.time()}", flush=True)
        server.join()
    with tf1.device(
        tf1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{arguments.index}")
    ):
        kernel = tf1.get_variable("kernel", [64, 10])
        loss = tf1.reduce_mean(tf1.square(tf1.matmul(tf1.random.uniform([32, 64]), kernel)))
        step = tf1.train.get_or_create_global_step()
        update = tf1.train.AdamOptimizer().minimize(loss, global_step=step)
    chief = arguments.index == 0
    filters = ["/job:ps", f"/job:worker/task:{arguments.index}"]  # as Estimator has it: workers need not see each other
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=chief,
        checkpoint_dir=arguments.checkpoint_dir,
        save_checkpoint_steps=100,
        config=tf1.ConfigProto(device_filters=filters),
        hooks=[FirstSteps()],
    ) as session:
        if chief:
            print(f"prepared {time.time()}", flush=True)
        while True:  # the benchmark ends this process
            session.run(update)
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
