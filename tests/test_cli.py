"""The command `psruntime`: which subcommand it runs, and what it says without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import psruntime
from psruntime import cli
from tests.support.docs import ROOT

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


def test_modules_of_the_current_folder_come_first(tmp_path: Path) -> None:
    """As with python -m; a console script begins with the folder of the script instead."""
    code = (
        "import sys; sys.path[0] = '/usr/bin'; from psruntime import cli, run;"
        "run.main = lambda argv: print(argv, sys.path[:2]) or 7; print(cli.main(['run', '--ps', '2']))"
    )
    assert python(code, tmp_path) == f"['--ps', '2'] {[str(tmp_path), '/usr/bin']}\n7\n"


def test_python_m_psruntime_is_the_same() -> None:
    command = [sys.executable, "-m", "psruntime", "runn"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "psruntime: unknown command 'runn'; did you mean run?\n"
