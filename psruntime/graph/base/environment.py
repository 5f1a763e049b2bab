"""The process environment of TensorFlow: the C library's allocator, and the variables that it reads.

GRPC_FAIL_FAST: a dead ps is an error at once instead of a hang.  The channel options give up a try to connect after
2 s, and send no pings: the other side would end a connection that is silent for the length of a long step.  A peer
that is gone without closing is found by network/connections.py.  TensorFlow reads the options when its first channel
opens.

The settings of the allocator apply to glibc only.  The threads of a process share arenas: each has one of its own in
glibc, up to 8 for each core, and an arena keeps what it once had, so what gRPC receives would take its memory several
times over.  A ps keeps the memory that gRPC has freed for the next step's tensors: otherwise glibc gives it back to the
system after each of them, and the next tensors are written into pages that the system has to find and clear first.  A
worker gives back, once it trains, what it needed only to build its graph.  Once is enough: what gRPC frees is taken
again by the next step.  Tensors from 256 kB on are not malloc's; from malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1), with a
low threshold that gives them back, a step took 915 ms instead of 500.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psruntime.process.machine import HIDDEN, VISIBLE

# Of mallopt (malloc.h): what glibc itself raises them to, at most, once memory of 32 MB was freed.
THRESHOLDS = {"MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}
ARENA_MAX, M_ARENA_MAX = "MALLOC_ARENA_MAX", -8


def keep_freed_memory() -> None:
    """Keeps freed memory for the next tensors, unless the environment sets it otherwise."""
    if not THRESHOLDS.keys() & os.environ.keys():
        for parameter, value in THRESHOLDS.values():
            _set(parameter, value)


def share_arenas() -> None:
    """Uses one arena for each core, unless the environment sets another number.

    To be called before threads start: once there are more than eight arenas glibc keeps the limit that it has.
    """
    if ARENA_MAX not in os.environ:
        _set(M_ARENA_MAX, os.cpu_count() or 1)


def give_back() -> None:
    """Gives free memory back to the system, also from the middle of the arenas; it takes some tens of ms."""
    _call("malloc_trim", 0)


def _set(parameter: int, value: int) -> None:
    if "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", ""):
        _call("mallopt", parameter, value)


def _call(function: str, *arguments: int) -> None:
    """Calls one of glibc's own; where it is missing, as in musl, nothing is done."""
    if sys.platform != "linux":
        return
    try:
        called: Any = getattr(ctypes.CDLL(None), function)
    except (OSError, AttributeError):  # a program without shared libraries; musl
        return
    called(*arguments)


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
    """Sets the environment for this process and imports TensorFlow; returns the variables that are set, for the log.

    A program may have imported TensorFlow before: GRPC_FAIL_FAST is read at each call.  Its Keras is that which it has
    without psruntime, but `tf.keras` and `tf.layers` are those of tf_keras if they are first used afterwards.

    hide_gpus: for all but a worker, since they compute on the CPU alone and take nothing of a GPU.
    warns: whether TensorFlow may write its notices of deprecation, which the user of a command cannot act on.
    """
    if not warns:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ["TF_GRPC_DEFAULT_OPTIONS"] = ",".join(f"{key}={value}" for key, value in CHANNEL_OPTIONS.items())
    os.environ.update(FORCED)
    if hide_gpus and "tensorflow" not in sys.modules:  # else what imported it may use the GPUs
        os.environ[VISIBLE] = HIDDEN
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    with stderr_closed():
        import tensorflow

        tensorflow.get_logger()  # makes its handler, which observe/log.py may replace
    return {name: os.environ.get(name, "") for name in (*FORCED, *DEFAULTS)}


def tensorflow_version() -> str:
    import tensorflow

    version: str = tensorflow.__version__
    return version


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
