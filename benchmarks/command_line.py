"""What the command lines of all benchmarks share: --quick, --json, --save, and how a result is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.processes import LateError

Progress = Callable[[str], None]


def parser_of(description: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with the shared options; `quick` says what --quick does."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the progress on stderr")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write that object into a file, for plots.py")
    return parser


def numbers(text: str) -> list[int]:
    """The type of an option that takes several: 1,2."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers with commas between them are needed, got '{text}'") from None


def words(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes several of these: async,sync."""

    def of(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [word for word in given if word not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return given

    return of


def print_result(
    arguments: argparse.Namespace,
    measure: Callable[[Progress], dict[str, Any]],
    text_of: Callable[[dict[str, Any]], str],
) -> None:
    """Measures, telling the progress, and prints the result; ends with one line if it cannot be measured."""
    if arguments.save and not arguments.save.parent.is_dir():  # known before hours of measuring
        raise SystemExit(f"{arguments.save} cannot be written: there is no folder {arguments.save.parent}")
    out = sys.stderr if arguments.json else sys.stdout
    try:
        result = measure(lambda text: print(text, file=out, flush=True))
    except (LateError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if arguments.quick:
        result = {**result, "quick": True}
    print(json.dumps(result) if arguments.json else text_of(result))
    if arguments.save:
        try:
            arguments.save.write_text(json.dumps(result) + "\n")
        except OSError as error:
            raise SystemExit(f"{arguments.save} cannot be written: {error.strerror}") from None
