"""Draws what the benchmarks found: a PNG for each file that a benchmark wrote with --save, or printed with --json.

    python -m benchmarks.plots RESULT.json ... [--out docs/plots]

The plot of sync.json is sync.png.  Bars are the medians of ours and of the peer, the line on each goes from the lowest
run to the highest, and the number behind a pair is the ratio, in which larger is better for ours.  A result that was
skipped is not drawn, and a line says so.  A file that is no result of a benchmark ends it with one line and code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import draw
from benchmarks.panels import Figure, NotAResult, figure_of

WRONG = 2


def read(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        NotAResult: there is none.
    """
    try:
        result = json.loads(path.read_bytes())
    except OSError as error:
        raise NotAResult(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise NotAResult(f"is not JSON: {error}") from None
    if not isinstance(result, dict):
        raise NotAResult("is not one JSON object, as a benchmark writes")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--out", type=Path, default=Path("docs/plots"), help="folder of the plots (%(default)s)")
    given = parser.parse_args(argv)
    figures: dict[Path, Figure] = {}
    for path in given.results:
        try:
            result = read(path)
            if "skipped" in result:
                print(f"{path}: skipped: {result['skipped']}", file=sys.stderr)
                continue
            target = given.out / f"{path.stem}.png"
            if target in figures:
                raise NotAResult(f"would be drawn as {target}, like another of the files")
            figures[target] = figure_of(result)
        except NotAResult as error:
            print(f"{path}: {error}", file=sys.stderr)
            return WRONG
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        for target, figure in figures.items():
            draw(figure, target)
            print(target)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
