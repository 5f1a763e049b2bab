"""Counts what a reader of this project has to take in, now and at an earlier commit.

    python -m tools.house            the tree alone
    python -m tools.house COMMIT     before it, the same counts of the commit

Generated code (psruntime/v1) is not counted.  A number of flags is the number of options that `--help` prints.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ("Step", "Session", "Hook")  # words of which the name of a class is made
RIDDLES = ("somebody", "whoever", "nobody", "told", "said", "at rest", "held")
TENSOR_ROOM = "psruntime/graph/"  # its parameters should have a narrower type than Any


def counts_of(folder: Path) -> dict[str, int]:
    """What is counted -> the count, for a folder with the files of the project."""
    code, tests, pages = (_texts(folder, *globs) for globs in (("psruntime/**/*.py",), ("tests/**/*.py",), _PAGES))
    trees = {path: ast.parse(text) for path, text in code.items()}
    sizes = [_lines([text]) for text in code.values()]
    counts = {
        "modules in psruntime": len(code),
        "lines in psruntime": sum(sizes),
        "modules below 60 lines": sum(size < 60 for size in sizes),
        "modules above 300 lines": sum(size > 300 for size in sizes),
        "files in tests": len(tests),
        "lines in tests": _lines(tests.values()),
    }
    classes = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for family in FAMILIES:
        counts[f"classes with {family} in the name"] = sum(family in _WORDS.findall(name) for name in classes)
    room = [tree for path, tree in trees.items() if path.startswith(TENSOR_ROOM)]
    kinds = [
        ast.unparse(n.annotation) for tree in room for n in ast.walk(tree) if isinstance(n, ast.arg) and n.annotation
    ]
    counts |= {"parameters in graph": len(kinds), "of these annotated Any": kinds.count("Any")}
    lines = [line.lower() for text in [*code.values(), *pages.values()] for line in text.splitlines()]
    for riddle in RIDDLES:
        counts[f"lines with '{riddle}'"] = sum(bool(re.search(rf"\b{riddle}\b", line)) for line in lines)
    counts |= {"pages": len(pages), "words of pages": sum(len(text.split()) for text in pages.values())}
    return counts | {f"flags of {command}": _flags(folder, command) for command in _commands(folder)}


_PAGES = ("README.md", "docs/*.md")
_WORDS = re.compile(r"[A-Z][a-z0-9]*")


def _texts(folder: Path, *globs: str) -> dict[str, str]:
    """path from the folder -> text."""
    paths = [path for glob in globs for path in sorted(folder.glob(glob))]
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path.read_text() for name, path in named.items() if not name.startswith("psruntime/v1/")}


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


def _commands(folder: Path) -> list[str]:
    tree = ast.parse((folder / "psruntime/cli.py").read_text())
    values = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "COMMANDS"]
    return list(ast.literal_eval(values[0]))


def _flags(folder: Path, command: str) -> int:
    words = [sys.executable, "-m", "psruntime", command, "--help"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"psruntime {command} --help ends with code {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return len(set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", ended.stdout, re.MULTILINE)))


def _extract(commit: str, folder: Path) -> None:
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"'{commit}' is no commit of this repository: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.house", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", help="the commit that the tree is compared with")
    commit = parser.parse_args(argv).commit
    before: dict[str, int] = {}
    if commit:
        with tempfile.TemporaryDirectory() as folder:
            _extract(commit, Path(folder))
            before = counts_of(Path(folder))
    now = counts_of(ROOT)
    print(f"{'':<34}{commit[:10] if commit else '':>12}{'now':>10}")
    for what in {**before, **now}:
        print(f"{what:<34}{before.get(what, ''):>12}{now.get(what, ''):>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
