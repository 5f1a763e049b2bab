"""The functions of `__main__`, a program or the cells of a notebook, as a module that the workers import.

cloudpickle takes the functions by value, and with them all of `__main__` that they use; modules go by their names.
"""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from psruntime.errors import UsageError

NAME = "psruntime_main"
FUNCTIONS = ("input_fn", "model_fn", "serving_input_fn")
MODULE = """\
import linecache, pathlib, pickle

lines, functions = pickle.loads(pathlib.Path(__file__).with_suffix(".pickle").read_bytes())
linecache.cache.update(lines)
globals().update(functions)
"""


def write_module(main: ModuleType, folder: Path) -> str:
    """Writes the module into a folder; returns its name.  It has the lines of cells, too, for AutoGraph and tracebacks.

    Raises:
        UsageError: cloudpickle is not installed; `__main__` lacks a function; or it uses what cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError(
            "the functions of __main__ need cloudpickle: pip install 'psruntime[notebook]'; or give a module"
        ) from error
    functions = {name: getattr(main, name) for name in FUNCTIONS if callable(getattr(main, name, None))}
    for name in FUNCTIONS[:2]:
        if name not in functions:
            raise UsageError(f"__main__ has no function {name}")
    try:
        content = cloudpickle.dumps((_lines_of_cells(), functions))
    except Exception as error:
        raise UsageError(_unpicklable(cloudpickle, functions) or f"__main__ cannot be pickled: {error}") from error
    (folder / f"{NAME}.pickle").write_bytes(content)
    (folder / f"{NAME}.py").write_text(MODULE)
    return NAME


def _lines_of_cells() -> dict[str, Any]:
    """The entries of linecache for sources that are no files."""
    entries = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and not os.path.exists(name)}
    return {name: (entry[0], None, entry[2], entry[3]) for name, entry in entries.items()}


def _unpicklable(cloudpickle: ModuleType, functions: dict[str, Any]) -> str:
    """What of `__main__` the functions use and cannot take along; empty if that is not known."""
    for name, function in functions.items():
        code, values = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        for used in getattr(code, "co_names", ()):
            try:
                cloudpickle.dumps(values.get(used))
            except Exception as error:  # noqa: BLE001 - whatever an object of the user raises
                return f"{name} of __main__ uses {used}, which workers cannot be given: {error}; make it in {name}"
    return ""
