"""Errors of TensorFlow as psruntime reports them, each in one line; those of devices from messages that TensorFlow 2.21
wrote on an H100 and an H200, with what helps.
"""

from __future__ import annotations

import os

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import EXIT_RESTART, DeviceError
from psruntime.faults import first_line
from psruntime.graph.base.errors import device_error, failed_operation, users_errors
from psruntime.process.machine import Gpu

HEAD = "Graph execution error:\n\n"
MADE = "Detected at node 'a' defined at (most recent call last):\n    File \"x.py\", line 8\nNode: 'a'\n"
END = "\n\t [[{{node a}}]]"
MESSAGES = {
    "Matrix size-incompatible": f"{HEAD}{MADE}Matrix size-incompatible{END}",
    "/x; No such file": f"{HEAD}{MADE}From /job:ps/replica:0/task:1:\n/x; No such file{END}",
    "the reason": f"{HEAD}{MADE}{MADE}=====\nNOT_FOUND: From /job:worker/replica:0/task:0:\nthe reason{END}\n=====",
    "a ps was lost": "a ps was lost",
    "UnavailableError": "",
}


@pytest.mark.parametrize("said", MESSAGES)
def test_the_reason_is_found(said: str) -> None:
    assert first_line(tf1.errors.UnavailableError(None, None, MESSAGES[said])) == said


@pytest.mark.parametrize(
    ("said", "named"),
    [("x [[{{node a}}]]", "a"), ("x [[{{node b}}]]", ""), ("x", ""), ("{{function_node f}}{{node a}} x", "")],
)
def test_the_operation_that_failed_is_found_by_its_node(said: str, named: str) -> None:
    """A call that was taken apart before raises errors without their operation."""
    with tf1.Graph().as_default() as graph:
        tf1.constant(1, name="a")
    found = failed_operation(tf1.errors.InvalidArgumentError(None, None, said), graph)
    assert (found.name if found else "") == named


HINT = (
    "Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to "
    "RunOptions for current allocation info. This isn't available when running in Eager mode.\n"
)
OOM = (
    "RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[1048576,131072] and type float on "
    "/job:worker/replica:0/task:0/device:{device} by allocator {allocator}\n\t "
    "[[{{{{node random_normal/RandomStandardNormal}}}}]]\n" + HINT
)
FULL = (
    f"Graph execution error:\n\n{MADE}{MADE}From /job:worker/replica:0/task:0:\n2 root error(s) found.\n  (0) {OOM}"
    f"\n\t [[user_op_G1]]\n{HINT}\n  (1) {OOM}\n0 successful operations.\n0 derived errors ignored.\n"
)
ON_GPU = FULL.format(device="GPU:0", allocator="GPU_0_bfc")
ON_HOST = FULL.format(device="CPU:0", allocator="cpu")
NO_BLAS = (
    "Graph execution error:\n\n=====================\nFrom /job:worker/replica:0/task:1:\n"
    "No blas support for stream\n\t [[{{node MatMul}}]]\n====================="
)
NO_BLAS_FOR_CONVOLUTIONS = (
    "From /job:worker/replica:0/task:0:\n2 root error(s) found.\n  (0) INTERNAL: No BLAS for stream.\n\t "
    "[[{{node mobilenetv2_1.00_96/Conv1/Conv2D}}]]\n\t [[All_107_G36]]\n  (1) INTERNAL: No BLAS for stream.\n\t "
    "[[{{node mobilenetv2_1.00_96/Conv1/Conv2D}}]]\n0 successful operations.\n0 derived errors ignored."
)
NO_COPY = (
    "Graph execution error:\n\nSameWorkerRecvDone unable to allocate output tensor. Key: /job:localhost/replica:0/"
    "task:0/device:CPU:0;0000000000000001;/job:localhost/replica:0/task:0/device:GPU:0;edge_430_IteratorGetNext;0:0"
    "\n\t [[{{node IteratorGetNext/_2145}}]]\n" + HINT
)
NO_DNN = "Graph execution error:\n\ncould not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n\t [[{{node conv}}]]"
LOST = (
    "Graph execution error:\n\nFrom /job:worker/replica:0/task:0:\nfailed to synchronize stream: "
    "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\n\t [[{{node Adam}}]]"
)
GIB = 1 << 30


def one_gpu() -> list[Gpu]:
    return [Gpu(0, "GPU-1", "NVIDIA H100", 80 * GIB, 79 * GIB, {os.getpid(): 50 * GIB, 17: 29 * GIB})]


def exhausted(message: str) -> tf1.errors.OpError:
    return tf1.errors.ResourceExhaustedError(None, None, message)


def internal(message: str) -> tf1.errors.OpError:
    return tf1.errors.InternalError(None, None, message)


def said(error: tf1.errors.OpError) -> str:
    found = device_error(error, one_gpu)
    assert isinstance(found, DeviceError)
    assert found.exit_code == EXIT_RESTART
    assert "\n" not in str(found)
    return str(found)


def test_a_full_gpu_says_what_was_wanted_who_holds_the_rest_and_what_helps() -> None:
    assert said(exhausted(ON_GPU)) == (
        "out of memory on GPU:0: operation random_normal/RandomStandardNormal wanted 512.0 GiB more, for "
        "float[1048576,131072]; GPU 0 (NVIDIA H100) has 80.0 GiB, of which this process holds 50.0 GiB, process 17 29.0"
        " GiB; what helps is a smaller --batch-size, fewer workers on this GPU, or a --gpu-memory for each of them"
    )


def test_host_memory_is_no_gpus() -> None:
    text = said(exhausted(ON_HOST))
    assert text.startswith("out of memory on CPU:0: ")
    assert "H100" not in text


@pytest.mark.parametrize(
    "message", [NO_BLAS, NO_BLAS_FOR_CONVOLUTIONS, NO_DNN], ids=["blas", "blas of convolutions", "cudnn"]
)
def test_no_memory_is_left_for_the_libraries(message: str) -> None:
    text = said(internal(message))
    assert text.startswith("CUDA's libraries cannot begin on a GPU (")
    assert "process 17 29.0 GiB" in text
    assert "=" not in text


@pytest.mark.parametrize("error", [exhausted(NO_COPY), internal("Dst tensor is not initialized.")], ids=["run", "feed"])
def test_a_copy_finds_no_room(error: tf1.errors.OpError) -> None:
    text = said(error)
    assert text.startswith("out of memory on a GPU: ")
    assert "process 17 29.0 GiB" in text


def test_a_gpu_that_failed_is_named_so() -> None:
    text = said(internal(LOST))
    assert text.startswith("a GPU of this worker failed: failed to synchronize stream: CUDA_ERROR_ILLEGAL_ADDRESS")


@pytest.mark.parametrize(
    "error",
    [
        tf1.errors.InvalidArgumentError(None, None, "Matrix size-incompatible"),
        tf1.errors.UnavailableError(None, None, "Socket closed"),
        internal("a defect"),
        exhausted("Received message larger than max"),
    ],
    ids=["model", "ps", "internal", "message"],
)
def test_another_error_is_no_devices(error: tf1.errors.OpError) -> None:
    assert device_error(error, one_gpu) is None


def test_a_run_that_fails_so_ends_with_a_device_error() -> None:
    with tf1.Graph().as_default() as graph, pytest.raises(DeviceError), users_errors(graph):
        raise exhausted(ON_GPU)


def test_the_first_line_of_several_root_errors_is_a_reason() -> None:
    assert first_line(exhausted(ON_GPU)).startswith("OOM when allocating tensor with shape[1048576,131072]")
    assert first_line(internal(NO_BLAS)) == "No blas support for stream"
    assert first_line(internal(NO_BLAS_FOR_CONVOLUTIONS)) == "No BLAS for stream."
