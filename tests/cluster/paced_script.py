"""A script of the fault tests: its steps take a while, its Scaffold, input and configuration are its own."""

import time

import numpy as np
from psruntime import MonitoredTrainingSession, tf1 as tf

tf.disable_v2_behavior()
tf.flags.DEFINE_integer("task_index", 0, "")
tf.flags.DEFINE_string("ps_hosts", "", "")
tf.flags.DEFINE_string("checkpoint_dir", "", "")
tf.flags.DEFINE_integer("last_step", 0, "")
tf.flags.DEFINE_float("step_s", 0.005, "what a step takes beside the ps")
tf.flags.DEFINE_float("max_wait", 7200, "")
tf.flags.DEFINE_float("rate", 0.01, "")
tf.flags.DEFINE_bool("momentum", False, "whether the optimizer is another one")
tf.flags.DEFINE_integer("size", 10, "of the variable")
tf.flags.DEFINE_integer("fail_after", 0, "steps after which it fails; 0: never")
FLAGS = tf.flags.FLAGS


class Told(tf.train.SessionRunHook):
    """A hook for the chief alone, which tells when it acts."""

    def begin(self):
        self._answer = tf.constant(42)  # so that every worker has it in its graph

    def after_create_session(self, session, coord):
        print(f"chief hook: created {session.run(self._answer)}", flush=True)

    def end(self, session):
        print(f"chief hook: ended at {session.run(tf.train.get_global_step())}", flush=True)


def main(_):
    index = FLAGS.task_index
    cluster = tf.train.ClusterSpec({"ps": [FLAGS.ps_hosts], "worker": ["127.0.0.1:0"] * 3})
    tf.train.Server(cluster, job_name="worker", task_index=index)
    numbers = tf.data.make_one_shot_iterator(tf.data.Dataset.range(1 << 20).repeat()).get_next()  # on no device
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        slow = tf.numpy_function(lambda n: (time.sleep(FLAGS.step_s), np.float32(n % 7))[1], [numbers], tf.float32)
        weights = tf.get_variable("weights", [FLAGS.size], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(tf.square(weights - tf.reshape(slow, [])))
        given = tf.placeholder(tf.float32, [FLAGS.size])
        set_weights = weights.assign(given)
        step = tf.train.get_or_create_global_step()
        optimizer = (
            tf.train.MomentumOptimizer(FLAGS.rate, 0.9) if FLAGS.momentum else tf.train.AdamOptimizer(FLAGS.rate)
        )
        train_op = optimizer.minimize(loss, global_step=step)

    def init_fn(scaffold, session):
        session.run(set_weights, {given: np.full(FLAGS.size, 3.0)})
        print("init_fn ran", flush=True)

    with MonitoredTrainingSession(
        coordinator=FLAGS.ps_hosts,
        index=index,
        checkpoint_dir=FLAGS.checkpoint_dir,
        scaffold=tf.train.Scaffold(init_fn=init_fn, saver=tf.train.Saver(max_to_keep=3)),
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.last_step)],
        chief_only_hooks=[Told()],
        save_checkpoint_steps=50,
        max_wait_secs=FLAGS.max_wait,
        config=tf.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps", f"/job:worker/task:{index}"]),
    ) as session:
        steps = 0
        while not session.should_stop():
            session.run(train_op)
            steps += 1
            if steps == FLAGS.fail_after:
                raise ValueError("no such file")
            if steps % 50 == 25 and not session.should_stop():
                session.run(weights)  # no step
    print(f"left the block after {steps} steps", flush=True)


if __name__ == "__main__":
    tf.app.run(main)
