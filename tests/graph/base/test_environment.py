"""The variables of the environment have their effect also where a program imports TensorFlow first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from psruntime.graph.base.environment import DEFAULTS, FORCED

LATE = """if True:
    import sys, psruntime
    assert "tensorflow" not in sys.modules and psruntime.ModelSpec
    import tensorflow as tf
    import socket
    from psruntime import tf1
    tf1.disable_eager_execution()
    tf1.layers.dense(tf1.ones([1, 2]), 3)  # Keras 3 has no such layers
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = "127.0.0.1:%d" % probe.getsockname()[1]
        server = tf1.train.Server({"ps": [dead], "worker": ["127.0.0.1:0"]}, "worker")
        try:
            tf1.Session(server.target).run(tf1.no_op())  # else it waits until the ps is there
        except tf1.errors.UnavailableError:
            print("failed at once")
"""


@pytest.mark.long
def test_a_program_may_import_tensorflow_first() -> None:
    own = {name: value for name, value in os.environ.items() if name not in {*FORCED, *DEFAULTS}}
    ran = subprocess.run(
        [sys.executable, "-c", LATE], env=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "failed at once\n", ran.stderr[-500:]
