"""Which GPU a worker takes, what the driver says of the GPUs, and what --devices and --gpu-memory accept."""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from psruntime.config.process import GpuLimit, device_names
from psruntime.core.members.messages import GpuMemory
from psruntime.errors import UsageError
from psruntime.process import machine
from psruntime.process.machine import GIB, VISIBLE, Gpu, OwnMemory, choose_gpu, memory_text
from tests.support.polling import poll_until

MIG = "MIG-8f6e4bd0-0f3a-5a0e-9bb2-0c6d8e3a2f11"
UUID = "GPU-4a5b1c9e-2d4f-4e59-8f60-6c1b0f7f3d20"


def gpu(index: int, held_bytes: dict[int, int] | None = None) -> Gpu:
    held_bytes = held_bytes or {}
    return Gpu(index, f"GPU-{index}", "H100", 80 * GIB, sum(held_bytes.values()), held_bytes)


def not_asked() -> list[Gpu]:
    raise AssertionError("the driver was asked")


def test_workers_of_a_machine_take_its_gpus_in_order_and_share_them_if_there_are_fewer() -> None:
    """By their names, which mean the same GPU in whatever order CUDA numbers them."""
    chosen = []
    for local_rank in range(5):
        environment: dict[str, str] = {}
        chosen.append(choose_gpu(local_rank, environment, lambda: [gpu(0), gpu(1)]))
        assert environment == {VISIBLE: chosen[-1]}
    assert chosen == ["GPU-0", "GPU-1", "GPU-0", "GPU-1", "GPU-0"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ("3", ["3", "3", "3"]),
        ("2,0", ["2", "0", "2"]),
        (" 1, 4,", ["1", "4", "1"]),
        (f"{UUID},{MIG}", [UUID, MIG, UUID]),
    ],
)
def test_what_is_visible_already_is_what_there_is_to_choose_from(visible: str, chosen: list[str]) -> None:
    for local_rank, name in enumerate(chosen):
        environment = {VISIBLE: visible, "OTHER": "kept"}
        assert choose_gpu(local_rank, environment, not_asked) == name
        assert environment == {VISIBLE: name, "OTHER": "kept"}


@pytest.mark.parametrize("visible", ["", " , ", "-1", "-1,0"])
def test_where_all_gpus_are_hidden_none_is_chosen(visible: str) -> None:
    environment = {VISIBLE: visible}
    with pytest.raises(UsageError, match=f"^--devices gpu:auto: {VISIBLE}='{visible}' hides all GPUs$"):
        choose_gpu(0, environment, lambda: [gpu(0)])
    assert environment == {VISIBLE: visible}


def test_where_no_gpu_is_known_the_complaint_says_what_is_needed() -> None:
    environment: dict[str, str] = {}
    with pytest.raises(UsageError, match=r"NVIDIA's driver, and nvidia-ml-py \(pip install 'psruntime\[gpu\]'\)"):
        choose_gpu(0, environment, list)
    assert environment == {}


class FakeNvml(ModuleType):
    """Two GPUs, as the module pynvml reports them; counts how often NVML is opened and not closed."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails: bool = False) -> None:
        super().__init__("pynvml")
        self.fails, self.open = fails, 0

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * GIB, used=3 * GIB * handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        held = [(7, 2 * GIB), (8, None)] if handle else []  # None: in a container, or where the driver does not tell
        return [SimpleNamespace(pid=pid, usedGpuMemory=count) for pid, count in held]

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"


def test_the_driver_says_which_gpus_there_are_and_which_process_holds_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    name = "NVIDIA H100 80GB HBM3"
    assert machine.gpus() == [
        Gpu(0, "GPU-0", name, 80 * GIB, 0, {}),
        Gpu(1, "GPU-1", name, 80 * GIB, 3 * GIB, {7: 2 * GIB, 8: 0}),
    ]
    assert str(machine.gpus()[1]) == f"GPU 1 ({name})"
    assert nvml.open == 0
    environment: dict[str, str] = {}
    assert choose_gpu(1, environment) == "GPU-1"


def test_without_nvidias_package_or_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert machine.gpus() == []
    nvml = FakeNvml(fails=True)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert machine.gpus() == []
    assert nvml.open == 0


def test_a_gpu_that_does_not_answer_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()

    def refuse(handle: int) -> Any:
        raise nvml.NVMLError

    def lost(index: int) -> int:
        return index if index else refuse(index)

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", lost)
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", refuse)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [(gpu.uuid, gpu.held_bytes) for gpu in machine.gpus()] == [("GPU-1", {})]


def test_nvml_is_closed_also_where_it_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: 1 // 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(ZeroDivisionError):
        machine.gpus()
    assert nvml.open == 0


def test_the_real_package_has_all_that_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    asked = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert len(asked) == 9 and [name for name in asked if not hasattr(pynvml, name)] == []


def test_a_process_reports_the_gpus_on_which_it_holds_memory() -> None:
    held = [{1: GIB}, {7: GIB, 8: 5}, {7: 3 * GIB}]
    own = OwnMemory(lambda: [gpu(index, each) for index, each in enumerate(held)], pid=7)
    assert own() == ()
    own.look()
    assert own() == (GpuMemory(1, "H100", GIB, 80 * GIB), GpuMemory(2, "H100", 3 * GIB, 80 * GIB))
    held[1].clear()
    own.look()
    assert own() == (GpuMemory(2, "H100", 3 * GIB, 80 * GIB),)


def test_a_thread_looks_for_it() -> None:
    own = OwnMemory(lambda: [gpu(0, {7: GIB})], pid=7)
    own.start()
    try:
        poll_until(lambda: own() == (GpuMemory(0, "H100", GIB, 80 * GIB),), 10.0, "the first look")
    finally:
        own.close()
    poll_until(lambda: "gpu-memory" not in {each.name for each in threading.enumerate()}, 10.0, "the thread's end")


def test_a_container_with_process_ids_of_its_own_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FIRST_NAMESPACE", 1)
    assert machine.own_pid() is None
    own = OwnMemory(lambda: [gpu(0, {os.getpid(): GIB})])
    own.look()
    assert own() == ()


@pytest.mark.parametrize(
    ("visible", "smallest"),
    [
        (None, 4 * GIB),
        ("1", 80 * GIB),
        ("GPU-1", 80 * GIB),
        ("0,1", 4 * GIB),
        ("1,-1,0", 80 * GIB),
        ("", None),
        ("7", None),
    ],
)
def test_the_memory_that_counts_is_that_of_visible_gpus(visible: str | None, smallest: int | None) -> None:
    found = [Gpu(0, "GPU-0", "display", 4 * GIB, 0, {}), Gpu(1, "GPU-1", "H100", 80 * GIB, 0, {})]
    assert machine.smallest_memory(found, {} if visible is None else {VISIBLE: visible}) == smallest


def test_the_memory_of_a_gpu_is_said_with_all_its_holders() -> None:
    found = [gpu(0, {1: GIB}), gpu(1, {7: 3 * GIB // 2, 8: 512 << 20, 9: 2 * GIB}), gpu(2, {8: GIB})]
    assert memory_text(found, 8) == (
        "GPU 1 (H100) has 80.0 GiB, of which this process holds 512 MiB, process 7 1.5 GiB, process 9 2.0 GiB; "
        "GPU 2 (H100) has 80.0 GiB, of which this process holds 1.0 GiB"
    )
    assert memory_text(found, 10) == ""


def test_gpu_auto_stands_alone() -> None:
    assert device_names("gpu:auto") == device_names("GPU:auto") == ("gpu:auto",)
    for wrong in ("gpu:auto,gpu:0", "cpu:0,gpu:auto", "gpu:auto,gpu:auto", "cpu:auto"):
        with pytest.raises(UsageError, match=r"gpu:all or gpu:auto; got '(gpu|cpu):auto'$"):
            device_names(wrong)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", ()),
        ("0.4", (32 * GIB,)),
        ("1", (80 * GIB,)),
        ("20GiB", (20 * GIB,)),
        ("1.5GB", (1_500_000_000,)),
        ("1MiB", (1 << 20,)),
        ("20GiB, 500MB", (20 * GIB, 500_000_000)),
    ],
)
def test_the_memory_of_a_gpu_is_a_share_or_amounts(text: str, limits: tuple[int, ...]) -> None:
    assert GpuLimit.of(text).limits(80 * GIB) == limits


def test_a_share_needs_to_know_the_memory() -> None:
    assert GpuLimit.of("20GiB").limits(None) == (20 * GIB,)
    with pytest.raises(UsageError, match=r"^--gpu-memory 0\.4: the memory of the GPU is not known"):
        GpuLimit.of("0.4").limits(None)
    with pytest.raises(UsageError, match=r"^--gpu-memory 1e-05 is less than 1 MiB"):
        GpuLimit.of("0.00001").limits(80 * GIB)


@pytest.mark.parametrize("text", ["0", "1.01", "-1", "nan", "20", "20gib", "20 GiB", "1MB", "20GiB,", "20GiB,0.4", "x"])
def test_another_text_is_no_memory_of_a_gpu(text: str) -> None:
    """1 MB is less than the least, 1 MiB: TensorFlow counts in these."""
    with pytest.raises(UsageError, match=rf"^gpu_memory must be an amount as 20GiB .*, got '{text}'$"):
        GpuLimit.of(text)
