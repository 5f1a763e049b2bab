"""The command `psruntime`: which subcommand it runs, and what it says without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import psruntime
from psruntime import cli
from psruntime.launch.children import PYTHON
from tests.support.docs import ROOT
from tests.support.selection import long_but

HEAVY = ("tensorflow", "grpc", "google.protobuf", "numpy")


def python(code: str, folder: Path = ROOT) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr() == (f"psruntime {psruntime.__version__}\n", "")


def test_the_help_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, text in cli.COMMANDS.items():
        assert f"  {name:<10} {text}\n" in out
        assert (ROOT / cli.module_of(name).replace(".", "/")).with_suffix(".py").is_file()
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", out)


def test_help_is_that_of_all_commands_or_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help"]) == cli.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("usage: psruntime COMMAND") and out == 2 * out[: len(out) // 2]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["help", "init"])
    assert capsys.readouterr().out.startswith("usage: psruntime init NAME")
    assert cli.main(["help", "runn"]) == 2


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("runn", "unknown command 'runn'; did you mean run?"),
        ("stats", "unknown command 'stats'; did you mean status?"),
        ("trian", "unknown command 'trian'; did you mean run?"),
        ("exprot", "unknown command 'exprot'; did you mean export?"),
        ("--halp", "unknown argument '--halp'; did you mean --help?"),
        (
            "xyz",
            "unknown command 'xyz'; known are init, demo, run, compare, ps, worker, evaluator, evaluate, task, status, "
            "dashboard, control, replay, plan, export, trace, tables, completion",
        ),
        ("--verson", "unknown argument '--verson'; did you mean --version?"),
        ("--xyz", "unknown argument '--xyz'; known are --help, --version"),
    ],
)
def test_an_unknown_word_is_one_line(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    assert capsys.readouterr() == ("", f"psruntime: {said}\n")


@pytest.mark.parametrize(
    "argv",
    [["--version"], ["--help"], ["runn"], ["run", "--mode", "no"], ["init", "no-name"], ["demo", "--mode", "no"]],
)
def test_nothing_heavy_is_imported_for_an_answer_at_once(argv: list[str]) -> None:
    code = f"import sys; from psruntime import cli; cli.main({argv!r}); print(set({HEAVY!r}) & set(sys.modules))"
    assert python(code).endswith("set()\n")


def test_a_command_imports_tensorflow_only_once_its_environment_is_set() -> None:
    modules = [cli.module_of(name) for name in cli.COMMANDS]
    code = f"import sys, {', '.join(modules)}; print('tensorflow' in sys.modules)"
    assert python(code) == "False\n"


def test_the_demo_is_what_make_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("psruntime.run.main", lambda argv: given.append(argv) or 7)
    assert cli.main(["demo", "--workers=3"]) == 7
    assert given == [["--ps=2", "--workers=2", "--train-steps=2000", "--workers=3"]]
    assert "psruntime demo\n" in (ROOT / "Makefile").read_text()


FOREIGN = ("grpc", "numpy", "tensorflow", "rich", "google", "runpy", "json")  # modules that psruntime needs, and Python
RUNS = [  # words of a command
    ("-m", "psruntime", "status", "--coordinator", "127.0.0.1:9"),
    ("-m", "psruntime", "control", "--coordinator", "127.0.0.1:9", "--timeout", "1", "pause"),
    ("-m", "psruntime", "tables", "--checkpoint-dir", "none"),
    ("-m", "psruntime.worker", "--index", "0", "--model", "no_such_model", "--connect-timeout", "0.1"),
    ("-m", "psruntime", "run", "--model", "no_such_model"),
]


@pytest.mark.parametrize("words", long_but(RUNS[:1], RUNS), ids=lambda words: words[1])
def test_a_foreign_folder_replaces_no_module(words: tuple[str, ...], tmp_path: Path) -> None:
    """Somebody types a command in a folder of downloads."""
    for name in FOREIGN if sys.version_info >= (3, 11) else FOREIGN[:5]:
        (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    done = subprocess.run(
        [*PYTHON, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert not (tmp_path / "ran").exists(), done.stderr
    assert done.returncode in (1, 2), done.stderr


def test_without_the_flag_of_python_too(tmp_path: Path) -> None:
    """As one types `python -m psruntime`, and as Python 3.10 needs it: what Python itself loads before is not ours."""
    for name in ("grpc", "numpy", "rich"):
        (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    for words in (("psruntime", "status", "--coordinator", "127.0.0.1:9"), ("psruntime.worker", "--help")):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert not (tmp_path / "ran").exists(), done.stderr
        assert done.returncode in (0, 1), done.stderr


def test_a_model_of_the_current_folder_is_found_last(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("def input_fn(context): ...\ndef model_fn(features, labels, mode): ...\n")
    code = (
        "import sys; from psruntime.model import find_model, load_model; sys.path[0] = '/usr/bin';"
        "find_model('my_model'); print(load_model('my_model').name, sys.path[-1])"
    )
    assert python(code, tmp_path) == f"my_model {tmp_path}\n"


def test_python_m_psruntime_is_the_same() -> None:
    command = [sys.executable, "-m", "psruntime", "runn"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "psruntime: unknown command 'runn'; did you mean run?\n"
