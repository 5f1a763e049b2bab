"""The server's configuration for GPUs, and why TensorFlow sees none."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.devices import UNLIMITED, GpuLimit
from psruntime.graph.base import gpus
from psruntime.graph.base.server import server_config, start_server
from psruntime.graph.ops.row_sums import row_sums

GIB = 1 << 30


def test_the_memory_of_a_worker_grows_and_is_pinned_on_the_host() -> None:
    options = server_config(1, UNLIMITED, gpus=2).gpu_options
    assert options.allow_growth
    assert options.force_gpu_compatible
    assert options.per_process_gpu_memory_fraction == 0
    assert not options.experimental.virtual_devices


def test_a_share_is_a_limit_that_memory_grows_to() -> None:
    options = server_config(1, GpuLimit.of("0.25"), gpus=1).gpu_options
    assert options.allow_growth
    assert options.per_process_gpu_memory_fraction == 0.25


def test_an_amount_is_a_limit_of_each_gpu() -> None:
    options = server_config(1, GpuLimit.of("20GiB"), gpus=2).gpu_options
    assert options.allow_growth
    assert [list(each.memory_limit_mb) for each in options.experimental.virtual_devices] == [[20480], [20480]]
    assert options.per_process_gpu_memory_fraction == 0  # TensorFlow refuses both


def test_amounts_make_virtual_gpus() -> None:
    options = server_config(1, GpuLimit.of("20GiB, 512MiB"), gpus=1).gpu_options
    assert [list(each.memory_limit_mb) for each in options.experimental.virtual_devices] == [[20480, 512]]


def test_a_process_without_gpus_has_none() -> None:
    config = server_config(3, GpuLimit.of("20GiB"), gpus=0)
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
    start_server(role, 0, "127.0.0.1", 0, gpu_limit=GpuLimit.of("0.5"))
    assert taken[0].gpu_options.allow_growth == (role == "worker")
    assert (taken[0].device_count.get("GPU") == 0) == (role == "ps")


class Machine:
    """What `why_no_gpu` looks at: the build, the environment, and which libraries are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = {gpus.DRIVER, *gpus.LIBRARIES}
        self.cuda = True
        monkeypatch.setattr(gpus, "_is_there", lambda library: library in self.there)
        monkeypatch.setattr(gpus.tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": self.cuda})
        monkeypatch.delenv(gpus.VISIBLE, raising=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_wheel_without_cuda(machine: Machine) -> None:
    machine.cuda = False
    assert "was built without CUDA" in gpus.why_no_gpu()


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_hidden_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv(gpus.VISIBLE, hidden)
    assert gpus.why_no_gpu() == f"CUDA_VISIBLE_DEVICES='{hidden}' hides all GPUs"


def test_a_missing_driver(machine: Machine) -> None:
    machine.there.remove(gpus.DRIVER)
    assert gpus.why_no_gpu().startswith("NVIDIA's driver is missing (libcuda.so.1)")


def test_missing_libraries_are_named(machine: Machine) -> None:
    machine.there -= {"libcudnn.so.9", "libcufft.so.11"}
    assert gpus.why_no_gpu() == (
        "libraries of CUDA are missing: libcufft.so.11, libcudnn.so.9; pip install 'psruntime[gpu]' installs them"
    )


def test_a_driver_without_gpus(machine: Machine) -> None:
    assert gpus.why_no_gpu() == "the driver reports none; nvidia-smi says what it has"


def test_a_library_is_found_in_a_package_of_nvidia(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    assert not gpus._is_there("libcudnn.so.9.none")
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert gpus._is_there("libcudnn.so.9")


def test_only_a_worker_with_a_gpu_adds_rows_up_without_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def types_of(count: int, device: str) -> set[str]:
        monkeypatch.setattr(gpus, "gpu_count", lambda: count)
        with tf1.Graph().as_default() as graph, tf1.device(device):
            row_sums(tf1.zeros([4, 8]), tf1.zeros([4], tf1.int32), 3)
            return {op.type for op in graph.get_operations()}

    assert "SparseTensorDenseMatMul" in types_of(0, "/job:worker/task:0")
    assert "SparseTensorDenseMatMul" in types_of(1, "/job:ps/task:0/device:CPU:0")
    assert "UnsortedSegmentSum" in types_of(1, "/job:worker/task:0")
