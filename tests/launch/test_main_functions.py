"""The functions of `__main__` in another process: with what they use, and the lines of their cells."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from psruntime.errors import UsageError
from psruntime.launch.main_functions import write_module
from tests.support.docs import ROOT

CELLS = '''
import linecache, sys
from pathlib import Path
from psruntime.launch.main_functions import write_module

def run_cell(number, cell):
    name = f"cell-{number}.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), globals())

run_cell(1, """
import functools, math
FACTOR, unused = 3, open("/dev/null")

def twice(function):
    @functools.wraps(function)
    def both(*arguments):
        return function(*arguments), function(*arguments)
    return both

class Scale:
    def __init__(self, by): self.by = by
    def of(self, x): return self.by * x

half = lambda x: x / 2
""")
run_cell(2, """
scale = Scale(FACTOR)

@twice
def input_fn(context):
    return scale.of(half(context)) + math.floor(0.5)

def model_fn(features, labels, mode):
    raise ValueError(mode)
""")
print(write_module(sys.modules["__main__"], Path(sys.argv[1])))
'''
WORKER = """
import inspect, traceback, psruntime_main as model
print(model.input_fn(4), hasattr(model, "serving_input_fn"))
print(inspect.getsource(model.model_fn).splitlines()[0])
try:
    model.model_fn(None, None, "eval")
except ValueError:
    frame = traceback.extract_tb(__import__("sys").exc_info()[2])[-1]
    print(frame.filename, frame.lineno, frame.line)
"""


def python(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_process_has_them_with_all_that_they_use(tmp_path: Path) -> None:
    assert python(CELLS, str(tmp_path)) == "psruntime_main\n"
    assert python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WORKER}").splitlines() == [
        "(6.0, 6.0) False", "def model_fn(features, labels, mode):", "cell-2.py 9 raise ValueError(mode)",
    ]  # fmt: skip


def test_what_cannot_be_taken_along_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    functions: dict[str, object] = {"LOCK": threading.Lock(), "__name__": "__main__"}
    exec("def input_fn(context):\n    return LOCK\ndef model_fn(features, labels, mode): pass", functions)
    for name in ("input_fn", "model_fn"):
        monkeypatch.setattr(main, name, functions[name], raising=False)
    with pytest.raises(UsageError, match=r"^input_fn of __main__ uses LOCK, .*cannot pickle.*; make it in input_fn$"):
        write_module(main, tmp_path)


def test_a_function_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="__main__ has no function input_fn"):
        write_module(sys.modules["__main__"], tmp_path)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match=r"need cloudpickle: pip install 'psruntime\[notebook\]'"):
        write_module(sys.modules["__main__"], tmp_path)
