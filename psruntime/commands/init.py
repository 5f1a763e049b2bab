"""Writes a small model module with its data into the current folder, to start from.

psruntime init NAME
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from psruntime.errors import EXIT_DONE, UsageError
from psruntime.process import flags
from psruntime.process.process import usage_error

PROG = "psruntime init"
TEMPLATE = "my_model"  # of psruntime/templates, and the name in its text
SUFFIXES = (".py", ".csv")  # the module and its data


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files; returns the exit code."""
    parser = flags.Parser(
        PROG, "Writes NAME.py, a small model to start from, and NAME.csv, its data, into the current folder.",
        usage=f"{PROG} NAME",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", help="name of the module, for example my_model")
    name = parser.parse_args(argv).name
    try:
        check_name(name)
        write_model(name, Path())
    except UsageError as error:
        return usage_error(PROG, error)
    sys.stdout.write(f"wrote {name}.py and {name}.csv\ntrain it:  psruntime run --ps 1 --workers 2 --model {name}\n")
    return EXIT_DONE


def check_name(name: str) -> None:
    """Raises UsageError if a module cannot have this name."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"'{name}' is no name of a Python module: letters, digits and '_', not beginning with a digit")
    if name in sys.stdlib_module_names or name in ("psruntime", "tensorflow", "numpy"):
        raise UsageError(f"'{name}' is the name of another module, which this one would hide; choose another one")


def write_model(name: str, folder: Path) -> None:
    """Writes NAME.py and NAME.csv; existing files are not overwritten.

    Raises:
        UsageError: one of them is there, or cannot be written.
    """
    there = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists()]
    if there:
        raise UsageError(f"{there[0]} is there already, and nothing is written over; choose another name")
    for suffix in SUFFIXES:
        text = (files("psruntime") / "templates" / f"{TEMPLATE}{suffix}").read_text()
        try:
            (folder / f"{name}{suffix}").write_text(text.replace(TEMPLATE, name))
        except OSError as error:
            raise UsageError(f"{name}{suffix} cannot be written: {error.strerror}") from error
