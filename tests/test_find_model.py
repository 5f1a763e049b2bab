"""What is wrong with the name of a model module, in one line, and before anything is started."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime import run
from psruntime.errors import UsageError
from psruntime.model import find_model, input_seed, load_model, unread_params

LACKS = (
    "model 'psruntime.examples.digits' needs scikit-learn, which is not installed: pip install 'psruntime[examples]', "
    "or give a model of your own with --model (psruntime init my_model writes one)"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rents.py").write_text("import no_such_package\n")
    yield tmp_path
    sys.modules.pop("rents", None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rentz", "model module 'rentz' cannot be imported: No module named 'rentz'; did you mean rents?"),
        ("zzz", "model module 'zzz' cannot be imported: No module named 'zzz'; --model takes a dotted name"),
        ("rents.py", "--model takes the name of a module, not of its file: --model rents instead of rents.py"),
        ("./rents.py", "--model takes the name of a module, not of its file: --model rents instead of ./rents.py"),
        ("a/b.py", "--model takes the name of a module, not of its file: --model a.b instead of a/b.py"),
        ("", "model module '' cannot be imported: this is no name of a module; --model takes a dotted name"),
        (".rents", "model module '.rents' cannot be imported: this is no name of a module"),
        ("a-b", "model module 'a-b' cannot be imported: this is no name of a module"),
    ],
)
def test_a_wrong_name_is_refused_by_both(name: str, said: str) -> None:
    for function in (find_model, load_model):
        with pytest.raises(UsageError) as refused:
            function(name)
        assert str(refused.value).startswith(said)


def test_a_module_is_found_without_importing_it(folder: Path) -> None:
    find_model("rents")
    assert "rents" not in sys.modules
    with pytest.raises(UsageError) as refused:
        load_model("rents")
    where = f"{folder}/rents.py:1"
    assert str(refused.value) == (
        f"model module 'rents' failed at {where}: ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_an_example_that_needs_more_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find_spec(name))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.delitem(sys.modules, "psruntime.examples.digits", raising=False)
    with pytest.raises(UsageError) as refused:
        load_model("psruntime.examples.digits")
    assert str(refused.value) == LACKS
    monkeypatch.setattr(run, "run_job", lambda *_: pytest.fail("nothing is started"))
    assert run.main([]) == 2
    assert capsys.readouterr() == ("", f"psruntime run: {LACKS}\n")


def test_each_worker_and_each_life_has_a_seed_of_its_own() -> None:
    seeds = {input_seed(0, worker, began_at) for worker in range(50) for began_at in range(0, 20_000, 200)}
    assert len(seeds) == 50 * 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [input_seed(7, worker, 0) for worker in range(3)] == [7, 8, 9]
    assert input_seed(7, 1, 300) == input_seed(7, 1, 300) != input_seed(8, 1, 300)


def test_parameters_that_no_function_reads_are_named(folder: Path) -> None:
    (folder / "rents.py").write_text("def input_fn(context): ...\ndef model_fn(features, labels, mode): ...")
    said = "--set lr, n has no effect: rents reads no parameters; "
    assert unread_params("rents", (("lr", 0.1), ("n", 2))).startswith(said)
    assert unread_params("rents", ()) == "" == unread_params("psruntime.templates.my_model", (("lr", 0.1),))
    assert unread_params("psruntime.examples.digits", (("lr", 0.1),)), "it is not imported, which needs scikit-learn"
    (folder / "rents.py").write_text("def input_fn(context): ...\ndef model_fn(features, labels, mode, params): ...")
    assert unread_params("rents", (("lr", 0.1),)) == "" == unread_params("time", (("lr", 0.1),))
    (folder / "rents.py").write_text("from others import input_fn, model_fn")
    assert unread_params("rents", (("lr", 0.1),)) == ""
