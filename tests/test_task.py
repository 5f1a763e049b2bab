"""`psruntime task`: what it starts, for each task of a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from psruntime import cli, ps, task, worker
from psruntime.commands import evaluator
from psruntime.errors import FolderOwnedError, PassingError, PsRuntimeError, UsageError
from psruntime.process import process

NOT_LOCAL = (
    "coordinator 192.0.2.1:1 would serve other machines without TLS: give --tls-ca, --tls-cert and --tls-key, or "
    "--insecure if all that reach it may change the job (docs/security.md)"
)
CLUSTER = {"chief": ["a:1"], "ps": ["b:1", "c:1"], "worker": ["d:1"]}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that were started, as [role, words]."""
    lines: list[list[str]] = []
    for module in (ps, worker, evaluator):
        role = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "main", lambda words, role=role: lines.append([role, *words]) or 0)
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return lines


def run(monkeypatch: pytest.MonkeyPatch, kind: str, index: int, *words: str, cluster: Any = CLUSTER) -> int:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
    return task.main(words)


TLS = ("--tls-ca=ca.pem", "--tls-cert=cert.pem", "--tls-key=key.pem")


def test_ps_0_is_told_of_the_cluster_and_gets_the_settings_of_the_job(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--mode=sync", "--model=mine", "--insecure", *TLS, "--lifeline"]
    assert run(monkeypatch, "ps", 0, *words) == 0
    assert started == [[
        "ps", "--connect-timeout=7200.0", "--coordinator=b:1", *TLS, "--index=0", "--host=b", "--port=0",
        "--lifeline=end", "--insecure", "--ps=2", "--min-workers=2", "--mode=sync",
    ]]  # fmt: skip


def test_the_others_are_told_where_they_are_and_check_the_settings_that_stand_there(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--mode=sync", "--model=mine", "--log-format=json", "--connect-timeout=5", "--insecure"]
    for kind, index in (("ps", 1), ("chief", 0), ("worker", 0)):
        assert run(monkeypatch, kind, index, *words) == 0
    of_all = ["--connect-timeout=5.0", "--log-format=json", "--coordinator=b:1"]
    rest = ["--local-rank=0", "--model=mine", "--mode=sync"]
    assert started == [
        ["ps", *of_all, "--index=1", "--host=c", "--port=1", "--insecure", "--mode=sync"],
        ["worker", *of_all, "--index=0", "--host=a", "--port=1", "--insecure", *rest],
        ["worker", *of_all, "--index=1", "--host=d", "--port=1", "--insecure", *rest],
    ]


def test_the_evaluator_is_told_where_the_coordinator_is_and_what_to_measure(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_workers = ["--devices=gpu:0", "--record=r.jsonl", "--gpu-memory=0.4", "--slowdown=2"]
    assert run(monkeypatch, "evaluator", 0, "--mode=sync", "--model=mine", "--insecure", *of_workers) == 0
    words = ["--connect-timeout=7200.0", "--coordinator=b:1", "--insecure", "--model=mine", "--mode=sync"]
    assert started == [["evaluator", *words]]


@pytest.mark.parametrize("of_job", [True, False])
def test_the_patience_is_that_of_the_chief_if_it_measures_and_of_the_evaluator(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, of_job: bool
) -> None:
    words = ["--patience=3", *(["--keep-best=loss", "--checkpoint-dir=/c"] if of_job else [])]
    for kind in ("ps", "worker", "evaluator"):
        assert run(monkeypatch, kind, 0, "--insecure", *words) == 0
    assert [line.count("--patience=3") for line in started] == [int(of_job), int(of_job), 1]


def of_gpus(line: list[str]) -> list[str]:
    return [word for word in line if word.startswith(("--local-rank", "--devices", "--gpu-memory"))]


def test_a_worker_is_told_which_it_is_on_its_machine_unless_a_flag_says_so(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"chief": ["a:1"], "ps": ["a:2", "b:1"], "worker": ["b:2", "a:3"]}
    flags = ["--devices=gpu:auto", "--gpu-memory=0.4"]
    for kind, index in (("ps", 0), ("ps", 1), ("chief", 0), ("worker", 0), ("worker", 1)):
        assert run(monkeypatch, kind, index, "--insecure", *flags, cluster=cluster) == 0
    ranks = [of_gpus(line) for line in started]
    assert ranks == [[], [], *([f"--local-rank={rank}", *flags] for rank in (0, 0, 1))]
    assert run(monkeypatch, "worker", 1, "--insecure", "--local-rank=5", cluster=cluster) == 0
    assert of_gpus(started[-1]) == ["--local-rank=5"]


def test_a_worker_of_a_sparse_cluster_goes_by_its_index(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, "worker", 4, "--insecure", cluster={"ps": ["b:1"], "worker": {"4": "d:1"}}) == 0
    assert of_gpus(started[0]) == []


def test_each_source_says_which_worker_of_its_machine_this_is(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["--ps-hosts=a:1", "--worker-hosts=a:0,b:0,a:0,b:0", "--role=worker", "--index=3"]  # as launch/ssh.sh does
    assert task.main([*hosts, "--insecure"]) == 0
    for name, value in {"PROCID": "4", "STEP_NODELIST": "n[1-2]", "STEP_TASKS_PER_NODE": "3,2", "JOB_ID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert task.main(["--ps=2", "--insecure"]) == 0
    assert [of_gpus(line) for line in started] == [["--local-rank=1"], ["--local-rank=1"]]


def test_a_job_file_and_flags_go_over_what_the_cluster_says(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "job.toml"
    file.write_text("min_workers = 1\nps = 2\n")
    assert run(monkeypatch, "ps", 0, f"--job={file}", "--max-workers=8", "--insecure") == 0
    assert started[0][-3:] == ["--insecure", f"--job={file}", "--max-workers=8"]
    assert not any(word.startswith(("--min-workers", "--ps=")) for word in started[0])


def test_of_a_sparse_cluster_the_job_says_how_many_there_are(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = {"4": "d:1"}
    assert run(monkeypatch, "ps", 0, "--ps=3", "--insecure", cluster={"ps": {"0": "b:1"}, "worker": workers}) == 0
    assert started[0][-1] == "--ps=3" and not any(word.startswith("--min-workers") for word in started[0])
    assert run(monkeypatch, "ps", 0, "--insecure", cluster={"ps": ["b:1", "c:1"], "worker": workers}) == 0
    assert started[1][-1] == "--ps=2" and not any(word.startswith("--min-workers") for word in started[1])


class FakePs:
    """What stands for the ps beside a worker: it serves at once, and ends with this code."""

    code = 0
    signal = 0

    def __init__(self, words: list[str], say: Any, **_: Any) -> None:
        self.calls: list[Any] = [words]

    def start_up(self, serves_coordinator: bool) -> int:
        self.calls.append(("start_up", serves_coordinator))
        return self.code

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, *args, *kwargs.items()))


def test_with_colocated_ps_every_worker_starts_one(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakePs] = []
    monkeypatch.setattr(task, "ColocatedPs", lambda *args, **how: made.append(FakePs(*args)) or made[-1])
    cluster = {"worker": ["a:1", "d:1"]}
    words = ["--colocate-ps", "--model=mine", "--insecure", "--health-port=9", "--restart-code=143", "--lifeline"]
    for index in (0, 1):
        assert run(monkeypatch, "worker", index, *words, cluster=cluster) == 0
    of_ps = ["--connect-timeout=7200.0", "--coordinator=a:1"]
    first, second = made
    assert first.calls[0] == [
        *of_ps, "--index=0", "--host=a", "--port=0", "--insecure", "--ps=2", "--min-workers=2",
        "--min-ps-bytes=65536", "--mode=sync",
    ]  # fmt: skip
    assert second.calls[0] == [*of_ps, "--index=1", "--host=d", "--port=0", "--insecure"]
    end = ("end", ("over", True), ("within_s", 300.0))
    assert first.calls[1:] == [("pass_signals_on",), ("start_up", True), end]
    assert second.calls[1:] == [("pass_signals_on",), ("start_up", False), end]
    of_worker = [
        "--connect-timeout=7200.0", "--health-port=9", "--restart-code=143", "--coordinator=a:1", "--index=0",
        "--host=a", "--port=0", "--lifeline=end", "--insecure", "--local-rank=0", "--model=mine",
    ]  # fmt: skip
    assert started[0] == ["worker", *of_worker]


def test_a_colocated_ps_has_nothing_to_do_with_the_gpus_of_its_worker(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakePs] = []
    monkeypatch.setattr(task, "ColocatedPs", lambda *args, **how: made.append(FakePs(*args)) or made[-1])
    words = ["--colocate-ps", "--insecure", "--devices=gpu:auto", "--gpu-memory=20GiB"]
    assert run(monkeypatch, "worker", 1, *words, cluster={"worker": ["a:1", "a:2"]}) == 0
    assert of_gpus(started[0]) == ["--local-rank=1", "--devices=gpu:auto", "--gpu-memory=20GiB"]
    assert of_gpus(made[0].calls[0]) == []


def test_colocated_ps_train_by_a_schedule(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakePs] = []
    monkeypatch.setattr(task, "ColocatedPs", lambda *args, **how: made.append(FakePs(*args)) or made[-1])
    words = ["--colocate-ps", "--insecure", "--schedule=async:500, sync"]
    assert run(monkeypatch, "worker", 0, *words, cluster={"worker": ["a:1"]}) == 0
    assert "--schedule=async:500, sync" in made[0].calls[0] and "--mode=sync" not in made[0].calls[0]


def test_a_colocated_ps_0_that_does_not_start_ends_its_worker_before_it_begins(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakePs, "code", 2)
    monkeypatch.setattr(task, "ColocatedPs", FakePs)
    assert run(monkeypatch, "worker", 0, "--colocate-ps", "--insecure", cluster={"worker": ["a:1"]}) == 2
    assert not started


@pytest.mark.parametrize(
    ("error", "over"),
    [(FolderOwnedError("another job's"), True), (UsageError("wrong"), False), (PassingError(""), False)],
)
def test_a_ps_stays_for_latecomers_where_its_worker_says_that_the_job_has_failed(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, error: PsRuntimeError, over: bool
) -> None:
    made: list[FakePs] = []
    monkeypatch.setattr(task, "ColocatedPs", lambda *args, **how: made.append(FakePs(*args)) or made[-1])

    def work(_: Any) -> int:
        raise error

    monkeypatch.setattr(worker, "main", lambda _: process._exit_code(lambda *_, **__: None, work, None))
    monkeypatch.setattr(process, "_job_has_failed", False)
    code = run(monkeypatch, "worker", 0, "--colocate-ps", "--insecure", cluster={"worker": ["a:1"]})
    assert code == error.exit_code != 1 and made[0].calls[-1][:2] == ("end", ("over", over))


def test_a_signal_before_the_worker_begins_ends_it(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePs, "signal", 15)
    monkeypatch.setattr(task, "ColocatedPs", FakePs)
    assert run(monkeypatch, "worker", 0, "--colocate-ps", "--insecure", cluster={"worker": ["a:1"]}) == 143
    assert not started


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("worker", ["--ps=3"], "--ps is 3, and TF_CONFIG has 2 ps"),
        (
            "worker",
            ["--mode=bounded"],
            "mode bounded needs bound: how many steps may a worker start ahead of the slowest?",
        ),
        ("worker", [], NOT_LOCAL),
        ("boss", [], 'TF_CONFIG: task.type is the unknown role "boss"; expected one of chief, ps, worker, evaluator'),
        ("worker", ["--job=no.toml"], "job file no.toml cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_started(
    kind: str,
    words: list[str],
    said: str,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, kind, 0, *words, cluster={**CLUSTER, "ps": ["192.0.2.1:1", "c:1"]}) == 2
    assert capsys.readouterr() == ("", f"psruntime task: {said}\n")
    assert not started


def test_without_a_source_it_says_what_there_is(started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["task"]) == 2
    assert capsys.readouterr().err.startswith("psruntime task: unknown which task this is: set TF_CONFIG, ")
    assert not started
