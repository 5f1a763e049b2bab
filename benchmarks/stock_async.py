"""The peer of the benchmarks: stock TensorFlow, between-graph async training, as its own users write it.

    python -m benchmarks.stock_async --role ps|worker --index N --ps HOST:PORT,... --workers HOST:PORT,...

A worker prints `prepared T` (the chief, once its session has initialised the variables) and `first_step T`,
T in seconds of the system's clock.
"""

from __future__ import annotations

import argparse
import time

import tensorflow.compat.v1 as tf1


def main() -> None:
    tf1.disable_v2_behavior()
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--ps", required=True)
    parser.add_argument("--workers", required=True)
    arguments = parser.parse_args()
    cluster = tf1.train.ClusterSpec({"ps": arguments.ps.split(","), "worker": arguments.workers.split(",")})
    server = tf1.train.Server(cluster, job_name=arguments.role, task_index=arguments.index)
    if arguments.role == "ps":
        server.join()
    with tf1.device(
        tf1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{arguments.index}")
    ):
        kernel = tf1.get_variable("kernel", [64, 10])
        loss = tf1.reduce_mean(tf1.square(tf1.matmul(tf1.random.uniform([32, 64]), kernel)))
        step = tf1.train.get_or_create_global_step()
        update = tf1.train.AdamOptimizer().minimize(loss, global_step=step)
    chief = arguments.index == 0
    with tf1.train.MonitoredTrainingSession(master=server.target, is_chief=chief) as session:
        if chief:
            print(f"prepared {time.time()}", flush=True)
        session.run(update)
        print(f"first_step {time.time()}", flush=True)
        while True:  # the benchmark ends this process
            session.run(update)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
