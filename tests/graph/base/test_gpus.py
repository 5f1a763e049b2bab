"""The server's configuration for GPUs, and why TensorFlow sees none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.process import GpuLimit
from psruntime.errors import DeviceError, UsageError
from psruntime.graph.base import server
from psruntime.graph.base.server import server_config, start_server
from psruntime.graph.buckets.gradient import row_sums

GIB = 1 << 30


def test_the_memory_of_a_worker_grows_and_is_pinned_on_the_host() -> None:
    options = server_config(1, [], gpus=2).gpu_options
    assert options.allow_growth
    assert options.force_gpu_compatible
    assert options.per_process_gpu_memory_fraction == 0
    assert not options.experimental.virtual_devices


def test_an_amount_is_a_limit_of_each_gpu() -> None:
    options = server_config(1, [20 * GIB], gpus=2).gpu_options
    assert options.allow_growth
    assert [list(each.memory_limit_mb) for each in options.experimental.virtual_devices] == [[20480], [20480]]
    assert options.per_process_gpu_memory_fraction == 0  # TensorFlow refuses both


def test_amounts_make_virtual_gpus() -> None:
    options = server_config(1, [20 * GIB, GIB // 2], gpus=1).gpu_options
    assert [list(each.memory_limit_mb) for each in options.experimental.virtual_devices] == [[20480, 512]]


def test_a_process_without_gpus_has_none() -> None:
    config = server_config(3, [20 * GIB], gpus=0)
    assert dict(config.device_count) == {"CPU": 3, "GPU": 0}
    assert not config.gpu_options.allow_growth


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_server_takes_this_configuration(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    server = tf1.train.Server

    def recorded(*args: Any, config: Any, **kwargs: Any) -> Any:
        taken.append(config)
        return server(*args, config=tf1.ConfigProto(), **kwargs)

    monkeypatch.setattr(tf1.train, "Server", recorded)
    monkeypatch.setattr("psruntime.graph.base.server.gpu_count", lambda: 1)
    start_server(role, 0, "127.0.0.1", 0, "lo", gpu_limits=[GIB])
    assert taken[0].gpu_options.allow_growth == (role == "worker")
    assert (taken[0].device_count.get("GPU") == 0) == (role == "ps")


def test_the_limits_hold_for_all_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: dict[str, list[int]] = {}

    def configure(gpu: str, devices: list[Any]) -> None:
        configured[gpu] = [device.memory_limit for device in devices]

    monkeypatch.setattr(server.tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(server.tf.config, "set_logical_device_configuration", configure)
    server.limit_gpus([])
    assert configured == {}
    server.limit_gpus(GpuLimit.of("20GiB, 512MiB").limits(None))
    assert configured == {"a": [20480, 512], "b": [20480, 512]}


def test_limits_come_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def configure(gpu: str, devices: list[Any]) -> None:
        raise RuntimeError("Virtual devices cannot be modified after being initialized")

    monkeypatch.setattr(server.tf.config, "list_physical_devices", lambda kind: ["a"])
    monkeypatch.setattr(server.tf.config, "set_logical_device_configuration", configure)
    with pytest.raises(UsageError, match="before TensorFlow uses a GPU: Virtual devices"):
        server.limit_gpus([GIB])


@pytest.mark.long
def test_memory_grows_whatever_uses_the_gpu_first() -> None:
    program = (
        "from psruntime.graph.base import environment; environment.prepare(); import os; "
        "print(os.environ['TF_FORCE_GPU_ALLOW_GROWTH'])"
    )
    without = {name: value for name, value in os.environ.items() if name != "TF_FORCE_GPU_ALLOW_GROWTH"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=without, check=True)
    assert ran.stdout.split() == ["true"]


def test_a_gpu_that_the_server_cannot_use_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        said = "CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory"
        raise tf1.errors.InternalError(None, None, said)

    monkeypatch.setattr(tf1.train, "Server", failing)
    with pytest.raises(DeviceError, match=r"^out of memory on a GPU"):
        start_server("worker", 0, "127.0.0.1", 0, "lo")


class Machine:
    """What `why_no_gpu` looks at: the build, the environment, and which libraries are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = {server.DRIVER, *server.LIBRARIES}
        self.cuda = True
        monkeypatch.setattr(server, "_is_there", lambda library: library in self.there)
        monkeypatch.setattr(server.tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": self.cuda})
        monkeypatch.delenv(server.VISIBLE, raising=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_wheel_without_cuda(machine: Machine) -> None:
    machine.cuda = False
    assert "was built without CUDA" in server.why_no_gpu()


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_hidden_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv(server.VISIBLE, hidden)
    assert server.why_no_gpu() == f"CUDA_VISIBLE_DEVICES='{hidden}' hides all GPUs"


def test_a_missing_driver(machine: Machine) -> None:
    machine.there.remove(server.DRIVER)
    assert server.why_no_gpu().startswith("NVIDIA's driver is missing (libcuda.so.1)")


def test_missing_libraries_are_named(machine: Machine) -> None:
    machine.there -= {"libcudnn.so.9", "libcufft.so.11"}
    assert server.why_no_gpu() == (
        "libraries of CUDA are missing: libcufft.so.11, libcudnn.so.9; pip install 'psruntime[gpu]' installs them"
    )


def test_a_driver_without_gpus(machine: Machine) -> None:
    assert server.why_no_gpu() == "the driver reports none; nvidia-smi shows what it has"


def test_a_library_is_found_in_a_package_of_nvidia(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    assert not server._is_there("libcudnn.so.9.none")
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert server._is_there("libcudnn.so.9")


def test_only_a_worker_with_a_gpu_adds_rows_up_without_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def types_of(count: int, device: str) -> set[str]:
        monkeypatch.setattr(server, "gpu_count", lambda: count)
        with tf1.Graph().as_default() as graph, tf1.device(device):
            row_sums(tf1.zeros([4, 8]), tf1.zeros([4], tf1.int32), 3)
            return {op.type for op in graph.get_operations()}

    assert "SparseTensorDenseMatMul" in types_of(0, "/job:worker/task:0")
    assert "SparseTensorDenseMatMul" in types_of(1, "/job:ps/task:0/device:CPU:0")
    assert "SparseTensorDenseMatMul" in types_of(1, "/job:worker/task:0/device:CPU:1")
    assert "UnsortedSegmentSum" in types_of(1, "/job:worker/task:0")
