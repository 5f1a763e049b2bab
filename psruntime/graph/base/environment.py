"""The process environment that TensorFlow needs, set before it is imported.

GRPC_FAIL_FAST: a dead ps is an error at once instead of a hang.  The channel options give up a try to connect after
2 s, and send no pings: the other side would end a connection that is silent for the length of a long step.  A peer
that is gone without closing is found by network/links.py.  TensorFlow reads the options when its first channel opens.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from psruntime.errors import UsageError
from psruntime.process.gpus import HIDDEN, VISIBLE

FORCED = {"GRPC_FAIL_FAST": "true"}
# TensorFlow's C++ side would write its own lines between ours; a user who wants them sets the variable.
# TF_USE_LEGACY_KERAS: tf.compat.v1.layers, and Keras models in a graph, are those of tf_keras; Keras 3 has neither.
# TF_FORCE_GPU_ALLOW_GROWTH: what uses the GPU first in a process decides how its memory is taken, and that need not be
# our server: tracing a function of tf.data makes TensorFlow's eager context, which takes all memory of every GPU.
DEFAULTS = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GRPC_VERBOSITY": "NONE",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
CHANNEL_OPTIONS = {"grpc.min_reconnect_backoff_ms": 2000, "grpc.enable_http_proxy": 0}


def prepare(hide_gpus: bool = False, warns: bool = True) -> dict[str, str]:
    """Sets the environment for this process and imports TensorFlow; returns the variables in force, for the log.

    hide_gpus: for all but a worker, since they compute on the CPU alone and take nothing of a GPU.
    warns: whether TensorFlow may write its notices of deprecation, which the user of a command cannot act on.

    Raises:
        UsageError: TensorFlow was imported before, under other settings.
    """
    if not warns:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ["TF_GRPC_DEFAULT_OPTIONS"] = ",".join(f"{key}={value}" for key, value in CHANNEL_OPTIONS.items())
    if "tensorflow" in sys.modules:
        late = [name for name in FORCED if os.environ.get(name) != FORCED[name]]
        if late:
            raise UsageError(f"tensorflow was imported before psruntime set {', '.join(late)}; start psruntime first")
        return _in_force()
    os.environ.update(FORCED)
    if hide_gpus:
        os.environ[VISIBLE] = HIDDEN
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    with stderr_closed():
        import tensorflow  # noqa: F401
    return _in_force()


def tensorflow_version() -> str:
    import tensorflow

    version: str = tensorflow.__version__
    return version


def _in_force() -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in (*FORCED, *DEFAULTS)}


@contextmanager
def stderr_closed() -> Iterator[None]:
    """Silences file descriptor 2 meanwhile: some lines of TensorFlow's C++ side ignore every log level.

    observe/log.py has a descriptor of its own, so our lines are not lost.
    """
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
