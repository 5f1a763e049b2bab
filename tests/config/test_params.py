"""--set, and [set] of a job file: each kind of value reaches every reader as what it is.

The table is KINDS x flag, file, flag over file x READERS.  A reader is a command, as far as the parameters of its
model; that of `psruntime.train` is in tests/launch/test_python_job.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime import run, task, worker
from psruntime.commands import compare, evaluate, evaluator, export, plan, replay
from psruntime.config.settings import Params, Value, as_flags, param_of, value_of, value_text
from psruntime.launch.cluster_task import ClusterTask
from psruntime.model import Context, load_model
from psruntime.process import flags
from psruntime.process.job_file import read_job_file

KINDS: dict[str, tuple[str, str, Value]] = {  # kind -> word of --set, TOML, value
    "a whole number": ("6", "6", 6),
    "a negative number": ("-6", "-6", -6),
    "a number": ("0.1", "0.1", 0.1),
    "a number with an exponent": ("1e-4", "1e-4", 1e-4),
    "an infinite number": ("-inf", "-inf", -float("inf")),
    "true": ("true", "true", True),
    "False, as Python writes it": ("False", "false", False),
    "text": ("relu", '"relu"', "relu"),
    "text with = and ,": ("a=b,c d", '"a=b,c d"', "a=b,c d"),
    "no text": ("", '""', ""),
    "text like a number": ('"6"', '"6"', "6"),
    "text like true": ('"true"', '"true"', "true"),
    "text in quotes": ('""a""', "'\"a\"'", '"a"'),
}


def of_worker(words: list[str]) -> Params:
    return flags.worker_config(worker._parser().parse_args(["--index=0", *words])).set


def of_run(words: list[str]) -> Params:
    local, _ = run.local_job(run.parser().parse_args(words))
    return of_worker(list(local.others("a:1")[0].arguments[5:]))


def of_task(role: str, words: list[str]) -> list[str]:
    arguments = task._parser().parse_args(["--insecure", *words])
    where = ClusterTask("a test", role, 0, {0: "a:1"}, {0: "b:1"})
    return [word for word in task.command_line(where, arguments, {}) if word.startswith("--set")]


def of_parser(parser: argparse.ArgumentParser, words: list[str]) -> Params:
    return flags.worker_config(parser.parse_args(words)).set


def of_plan(words: list[str]) -> Params:
    with pytest.MonkeyPatch.context() as patched:
        found: list[Params] = []
        patched.setattr(plan, "_show", lambda arguments: found.append(flags.worker_config(arguments).set) or 0)
        assert plan.main(words) == 0
        return found[0]


def of_compare(words: list[str]) -> Params:
    """A comma is between values there, unless they are in quotes."""
    words = [f"{word.partition('=')[0]}={quoted(word.partition('=')[2])}" for word in words]
    (params,) = compare.grid_of([word.removeprefix("--set=") for word in words])
    arguments = compare._parser().parse_args([])
    local, _, _ = compare._job(arguments, {"ps": 1}, {}, Path("."), params)
    return of_worker(list(local.others("a:1")[0].arguments[5:]))


def quoted(word: str) -> str:
    name, _, text = word.partition("=")
    return f'{name}="{text}"' if "," in text else word


READERS: dict[str, Callable[[list[str]], Params]] = {
    "worker": of_worker,
    "run": of_run,
    "task, a worker": lambda words: of_worker(of_task("worker", words)),
    "task, an evaluator": lambda words: of_parser(evaluator._parser(), of_task("evaluator", words)),
    "evaluator": lambda words: of_parser(evaluator._parser(), words),
    "evaluate": lambda words: of_parser(evaluate._parser(), words),
    "export": lambda words: of_parser(export._parser(), ["--out=o", *words]),
    "plan": of_plan,
    "replay": lambda words: of_parser(replay._parser(), ["log", *words]),
    "compare": of_compare,
}


EXPECTED = [(f"p{number}", type(value), value) for number, (_, _, value) in enumerate(KINDS.values())]
WORDS = [f"--set=p{number}={word}" for number, (word, _, _) in enumerate(KINDS.values())]


def as_it_is(found: Params) -> list[tuple[str, type, Value]]:
    return [(name, type(value), value) for name, value in found]


@pytest.mark.parametrize("reader", READERS)
def test_flags_reach_every_reader_as_what_they_are(reader: str) -> None:
    assert as_it_is(READERS[reader](WORDS)) == EXPECTED


@pytest.mark.parametrize("given_in", ["file", "flag over file"])
@pytest.mark.parametrize("reader", [name for name in READERS if name.startswith(("run", "task"))])
def test_a_job_file_reaches_them_and_flags_go_over_it(reader: str, given_in: str, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    values = [toml if given_in == "file" else "99" for _, toml, _ in KINDS.values()]
    job.write_text("\n".join(["[set]", *(f"p{number} = {value}" for number, value in enumerate(values))]))
    words = [f"--job={job}", *(WORDS if given_in != "file" else [])]
    assert as_it_is(READERS[reader](words)) == EXPECTED


def test_a_ps_leaves_them_to_the_workers(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("ps = 2\n[set]\nlr = 0.1\n")
    assert read_job_file(str(tmp_path / "job.toml")) == {"ps": 2}


@given(st.one_of(st.booleans(), st.integers(), st.floats(), st.text()))
def test_a_value_is_the_same_after_a_command_line(value: Value) -> None:
    (word,) = as_flags({"set": (("p", value),)})
    name, found = param_of(word.removeprefix("--set="))
    assert name == "p" and type(found) is type(value) and (found == value or value != value)
    assert value_of(value_text(found)) == found or value != value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "lr"], "argument --set: must be NAME=VALUE, as lr=0.1, got 'lr'; --help lists the flags"),
        (["--set", "=1"], "argument --set: must be NAME=VALUE, as lr=0.1, got '=1'; --help lists the flags"),
        (["--set", "a b=1"], "argument --set: must be NAME=VALUE, as lr=0.1, got 'a b=1'; --help lists the flags"),
        (["--set"], "argument --set: expected one argument; --help lists the flags"),
        (["--set=lr=1", "--set=lr=2"], "argument --set: 'lr' is given twice; --help lists the flags"),
    ],
)
def test_a_wrong_flag_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"psruntime run: {said}\n")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("set = 3", "set must have names with values, got 3"),
        ("[set]\nlayers = [1, 2]", "set must have names with a number, true, false or text each, got 'layers': [1, 2]"),
        ('[set]\n"a b" = 1', "set must have names with a number, true, false or text each, got 'a b': 1"),
    ],
)
def test_a_wrong_table_is_one_line(toml: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(toml)
    assert run.main([f"--job={job}"]) == 2
    assert capsys.readouterr() == ("", f"psruntime run: job file {job}: {said}\n")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module `fake_model`, whose functions return what they are given."""
    module = SimpleNamespace(__file__="fake_model.py", input_fn=lambda context: context)
    module.model_fn = lambda features, labels, mode, params: params
    monkeypatch.setitem(sys.modules, "fake_model", module)
    return module


def test_both_functions_get_a_mapping_that_cannot_be_changed(model: SimpleNamespace) -> None:
    loaded = load_model("fake_model", (("lr", 0.1), ("hidden", 6)))
    context = loaded.input_fn(Context("train", 1, 2, 8, "", 3))
    assert (context.worker_index, context.seed) == (1, 3)
    for params in (context.params, loaded.model_fn(None, None, "train")):
        assert isinstance(params, Mapping) and dict(params) == {"lr": 0.1, "hidden": 6}
        assert params.get("depth", 2) == 2 and "depth" not in params
        with pytest.raises(TypeError):
            params["lr"] = 1
        with pytest.raises(KeyError, match="depth; it is given with --set depth=VALUE"):
            params["depth"]
    assert loaded.params == (("lr", 0.1), ("hidden", 6))


def test_without_any_there_is_an_empty_one_and_a_model_fn_need_not_take_it(model: SimpleNamespace) -> None:
    assert dict(load_model("fake_model").input_fn(Context("train", 0, 1, 8, "", 0)).params) == {}
    assert dict(load_model("fake_model").model_fn(None, None, "eval")) == {}
    model.model_fn = lambda features, labels, mode: mode
    assert load_model("fake_model", (("lr", 0.1),)).model_fn(None, None, "eval") == "eval"
