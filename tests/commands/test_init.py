"""psruntime init: what it writes trains, and it writes over nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.commands import init


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_a_module_and_its_data_and_says_how_to_train(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main(["rents"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rents.csv", "rents.py"]
    module = (folder / "rents.py").read_text()
    assert 'DATA = "rents.csv"' in module and "my_model" not in module
    said = "wrote rents.py and rents.csv\ntrain it:  psruntime run --ps 1 --workers 2 --model rents\n"
    assert capsys.readouterr() == (said, "")
    assert said.splitlines()[1].removeprefix("train it:  ") in module


@pytest.mark.parametrize("there", ["rents.py", "rents.csv"])
def test_nothing_is_written_over(folder: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / there).write_text("mine")
    assert init.main(["rents"]) == 2
    assert [path.name for path in folder.iterdir()] == [there] and (folder / there).read_text() == "mine"
    said = f"psruntime init: {there} is there already, and nothing is written over; choose another name\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-model", "'my-model' is no name of a Python module: letters, digits and '_', not beginning with a digit"),
        ("my_model.py", "'my_model.py' is no name of a Python module: letters, digits"),
        ("2nd", "'2nd' is no name of a Python module"),
        ("class", "'class' is no name of a Python module"),
        ("", "'' is no name of a Python module"),
        ("../model", "'../model' is no name of a Python module"),
        ("random", "'random' is the name of another module, which this one would hide; choose another one"),
        ("psruntime", "'psruntime' is the name of another module"),
    ],
)
def test_a_bad_name_is_one_line(folder: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main([name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"psruntime init: {said}") and err.count("\n") == 1
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert init.main(["rents"]) == 2
    assert capsys.readouterr() == ("", "psruntime init: rents.py cannot be written: Permission denied\n")


def test_a_full_disk_leaves_nothing_that_is_in_the_way_of_the_next_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text

    def fill(path: Path, text: str, **how: str) -> None:
        write(path, text if path.suffix == ".py" else "", **how)
        if path.suffix == ".csv":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    assert init.main(["rents"]) == 2
    assert capsys.readouterr().err == "psruntime init: rents.csv cannot be written: No space left on device\n"
    assert not list(folder.iterdir())
