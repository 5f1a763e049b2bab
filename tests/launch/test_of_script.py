"""Where a script stands: by its arguments, or by TF_CONFIG."""

from __future__ import annotations

import json

import pytest

import psruntime
from psruntime.errors import UsageError
from psruntime.launch.tf_config import ScriptPlace, place_of_script

CLUSTER = {"chief": ["a:1"], "ps": ["b:2222"], "worker": ["c:1"]}


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


def be(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": 0}}))


def test_arguments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert psruntime.cluster_task() is None
    assert place_of_script("", 3, "") == ScriptPlace("127.0.0.1:2222", 3, "")
    assert place_of_script("d:1", 3, "e") == ScriptPlace("d:1", 3, "e")
    monkeypatch.setenv("TF_CONFIG", " {} ")  # as a single process is started
    assert place_of_script("", 3, "") == ScriptPlace("127.0.0.1:2222", 3, "")
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(UsageError, match=r"^index is missing: give the worker's index and the coordinator, or set TF"):
        place_of_script("d:1", None, "")


def test_what_is_left_open_is_read_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, "worker")
    task = psruntime.cluster_task()
    assert place_of_script("", None, "") == ScriptPlace("b:2222", 1, "c", task)
    assert place_of_script("proxy:1", None, "e") == ScriptPlace("proxy:1", 1, "e", task)
    assert place_of_script("proxy:1", 5, "") == ScriptPlace("proxy:1", 5, ""), "all of it is given"
    assert task and (task.role, task.index, len(task.ps), len(task.workers)) == ("worker", 1, 1, 2)


def test_a_cluster_of_workers_alone_has_a_ps_beside_each(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    task = psruntime.cluster_task(colocate_ps=True)
    assert task and task.colocated and len(task.ps) == 2
    assert place_of_script("", None, "", colocate_ps=True) == ScriptPlace("a:1", 1, "b", task)
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(UsageError, match=r"^colocate_ps is for a script whose TF_CONFIG has the other workers"):
        place_of_script("a:1", 1, "", colocate_ps=True)


@pytest.mark.parametrize(
    ("kind", "index", "said"),
    [
        ("chief", 1, "index is 1, and TF_CONFIG has worker 0 (the chief is worker 0, the others move up by one)"),
        ("ps", None, "TF_CONFIG: this task is ps 0, and a script is a worker; start this task with `psruntime task`"),
        ("boss", None, 'TF_CONFIG: task.type is the unknown role "boss"; expected one of chief, ps, worker, evaluator'),
    ],
)
def test_what_contradicts_is_one_line(kind: str, index: int | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, kind)
    with pytest.raises(UsageError) as error:
        place_of_script("", index, "")
    assert str(error.value) == said


def test_a_script_that_asks_itself_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(SystemExit) as ended:
        psruntime.cluster_task()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("psruntime.cluster_task: TF_CONFIG is not JSON (") and err.count("\n") == 1
