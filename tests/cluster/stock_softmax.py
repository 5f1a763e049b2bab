"""Softmax regression, 784 -> 10, as scripts of TF1 train it: a graph, hooks and a loop of their own.

Without --data_dir the images are made up; with it they are those of Fashion-MNIST, whose four files are there.

    python -m psruntime.ps --index 0 --coordinator 127.0.0.1:2222
    python -m psruntime.examples.softmax --ps_hosts 127.0.0.1:2222 --worker_hosts 127.0.0.1:0,127.0.0.1:0 --task_index 0
    python -m psruntime.examples.softmax --ps_hosts 127.0.0.1:2222 --worker_hosts 127.0.0.1:0,127.0.0.1:0 --task_index 1
"""

import gzip
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.flags.DEFINE_string("job_name", "worker", "ps or worker")
tf.flags.DEFINE_integer("task_index", 0, "index of this task in its job")
tf.flags.DEFINE_string("ps_hosts", "127.0.0.1:2222", "host:port of each ps, with commas")
tf.flags.DEFINE_string("worker_hosts", "127.0.0.1:2223", "host:port of each worker, with commas")
tf.flags.DEFINE_string("data_dir", "", "folder of the Fashion-MNIST files")
tf.flags.DEFINE_string("checkpoint_dir", os.path.expanduser("~/softmax"), "folder of the checkpoints and summaries")
tf.flags.DEFINE_integer("save_steps", 500, "global steps between checkpoints")
tf.flags.DEFINE_integer("last_step", 1000, "global step at which the training ends")
FLAGS = tf.flags.FLAGS


class PrintLoss(tf.train.SessionRunHook):
    """Prints the loss every 100 steps of this worker."""

    def __init__(self, loss, task_index):
        self._loss, self._index = loss, task_index
        self._steps = 0

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self._steps += 1
        if self._steps % 100 == 0:
            print(f"worker {self._index}: {self._steps} steps, loss {run_values.results:.4f}", flush=True)

    def end(self, session):
        print(f"worker {self._index}: stopped after {self._steps} steps", flush=True)


def images(split):
    """(pixels [n, 784] from 0 to 1, labels [n]) of "train" or "t10k"."""
    if not FLAGS.data_dir:
        random = np.random.RandomState(0 if split == "train" else 1)
        labels = random.randint(10, size=2000)
        prototypes = np.random.RandomState(2).rand(10, 784)
        return np.clip(prototypes[labels] + random.normal(0, 0.5, [2000, 784]), 0, 1), labels
    with gzip.open(os.path.join(FLAGS.data_dir, f"{split}-images-idx3-ubyte.gz")) as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784) / 255
    with gzip.open(os.path.join(FLAGS.data_dir, f"{split}-labels-idx1-ubyte.gz")) as file:
        return pixels, np.frombuffer(file.read(), np.uint8, offset=8)


def main(_):
    ps_hosts, worker_hosts = FLAGS.ps_hosts.split(","), FLAGS.worker_hosts.split(",")
    job_name, task_index = FLAGS.job_name, FLAGS.task_index
    if os.environ.get("TF_CONFIG"):
        config = json.loads(os.environ["TF_CONFIG"])
        chief, task = config["cluster"].get("chief", []), config["task"]
        ps_hosts, worker_hosts = config["cluster"]["ps"], chief + config["cluster"].get("worker", [])
        job_name, task_index = "ps" if task["type"] == "ps" else "worker", task["index"]
        task_index += len(chief) if task["type"] == "worker" else 0
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=job_name, task_index=task_index)
    if job_name == "ps":
        server.join()

    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{task_index}", cluster=cluster)):
        x = tf.placeholder(tf.float32, [None, 784])
        labels = tf.placeholder(tf.int64, [None])
        W = tf.Variable(tf.zeros([784, 10]), name="W")
        b = tf.Variable(tf.zeros([10]), name="b")
        logits = tf.matmul(x, W) + b
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        tf.summary.scalar("loss", loss)
        global_step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=global_step)

    pixels, kinds = images("train")
    random = np.random.RandomState(task_index)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step), PrintLoss(loss, task_index)]
    saving = {"checkpoint_dir": FLAGS.checkpoint_dir, "save_checkpoint_steps": FLAGS.save_steps}
    with tf.train.MonitoredTrainingSession(server.target, is_chief=(task_index == 0), hooks=hooks, **saving) as sess:
        while not sess.should_stop():
            batch = random.randint(len(kinds), size=64)
            sess.run(train_op, feed_dict={x: pixels[batch], labels: kinds[batch]})

    if task_index == 0:
        checkpoint = tf.train.load_checkpoint(FLAGS.checkpoint_dir)
        pixels, kinds = images("t10k")
        guesses = np.argmax(pixels @ checkpoint.get_tensor("W") + checkpoint.get_tensor("b"), axis=1)
        step = checkpoint.get_tensor("global_step")
        print(f"held out, at global step {step}: accuracy {np.mean(guesses == kinds):.4f}", flush=True)


if __name__ == "__main__":
    tf.app.run(main)
