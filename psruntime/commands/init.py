"""Writes a small model module into the current folder, to start from: with data of its own, or for a CSV file.

psruntime init NAME [--from FILE [FILE ...] [--label COLUMN]]
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from psruntime.errors import EXIT_DONE, UsageError
from psruntime.own_data.columns import LEFT_OUT, guess
from psruntime.own_data.model_text import model_text
from psruntime.own_data.table import read_table
from psruntime.process import flags
from psruntime.process.job_file import local_file
from psruntime.process.process import usage_error

PROG = "psruntime init"
MOST_SHOWN = 10  # of the columns and values that are left out
TEMPLATE = "my_model"  # of psruntime/templates, and the name in its text
SUFFIXES = (".py", ".csv")  # the module and its data


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files; returns the exit code."""
    parser = flags.Parser(
        PROG, "Writes NAME.py, a small model to start from, and NAME.csv, its data, into the current folder; or, with "
        "--from, a model of your own data.",
        usage=f"{PROG} NAME [--from FILE [FILE ...] [--label COLUMN]]",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", help="name of the module, for example my_model")
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--from", dest="files", nargs="+", type=local_file, metavar="FILE", help="CSV files with the same columns, of "
        "which the model predicts one",
    )  # fmt: skip
    most_used.add_argument(
        "--label", default="", metavar="COLUMN", help="name of the column to predict, or its number from 1 (default: "
        "one with a usual name, or else the last that can be predicted)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    try:
        if arguments.label and not arguments.files:
            raise UsageError("--label is of the files of --from, which is missing")
        check_name(arguments.name)
        if arguments.files:
            wrote = write_model_of(arguments.name, Path(), [Path(file) for file in arguments.files], arguments.label)
        else:
            write_model(arguments.name, Path())
            wrote = f"wrote {arguments.name}.py and {arguments.name}.csv"
    except UsageError as error:
        return usage_error(PROG, error)
    sys.stdout.write(f"{wrote}\ntrain it:  psruntime run --ps 1 --workers 2 --model {arguments.name}\n")
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
    templates = files("psruntime") / "templates"
    texts = {f"{name}{suffix}": (templates / f"{TEMPLATE}{suffix}").read_text() for suffix in SUFFIXES}
    _write({file: text.replace(TEMPLATE, name) for file, text in texts.items()}, folder)


def write_model_of(name: str, folder: Path, data: Sequence[Path], label: str) -> str:
    """Writes NAME.py for the table in the files `data`; returns what it does, for people.

    Raises:
        UsageError: as `write_model`, or the files have no table from which the label can be predicted.
    """
    table = read_table(data)
    found = guess(table, label)
    _write({f"{name}.py": model_text(name, table, found, folder)}, folder)
    left_out = [f"{column.name} ({column.why})" for column in found.of(LEFT_OUT)]
    column, header = found.label.column, "" if table.header else ", without a header"
    return "\n".join([
        f"read {table.rows:,} rows of {len(table.names)} columns{header}",
        f"wrote {name}.py, which predicts {column.name}: {found.label.about}; a mere guess has {found.label.trivial}",
        *([f"left out: rows where {column.name} is {_some(column.empty)}"] if column.empty else []),
        *([f"left out: {_some(left_out)}"] if left_out else []),
    ])  # fmt: skip


def _some(texts: Sequence[str]) -> str:
    shown = [text or "empty" for text in texts[:MOST_SHOWN]]
    return ", ".join(shown) + (f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else "")


def _write(texts: Mapping[str, str], folder: Path) -> None:
    """Writes files of these names, all new."""
    if there := [path for file in texts if (path := folder / file).exists()]:
        raise UsageError(f"{there[0]} is there already, and nothing is written over; choose another name")
    for file, text in texts.items():
        try:
            (folder / file).write_text(text, encoding="utf-8")
        except OSError as error:
            for begun in texts:
                (folder / begun).unlink(missing_ok=True)  # a full disk leaves an empty one
            raise UsageError(f"{file} cannot be written: {error.strerror}") from error
