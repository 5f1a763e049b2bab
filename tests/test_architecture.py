"""The layout, enforced: which part of psruntime imports what, and how long a file may be.

    entry points -> rpc, graph, observe -> core -> config, errors

All imports count: those within functions, under TYPE_CHECKING, and by importlib with a literal name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = "psruntime/v1"
MAX_LINES = 300

# What a part may import besides itself and the standard library.
MAY_IMPORT: dict[str, set[str]] = {
    "psruntime/core": {"psruntime.errors", "psruntime.config"},
    "psruntime/errors.py": set(),
    "psruntime/config.py": {"psruntime.errors"},
    "psruntime/usercode.py": {"psruntime.errors"},
    "psruntime/model.py": {"psruntime.errors", "psruntime.usercode"},
    "psruntime/observe": {"psruntime.core", "psruntime.errors", "psruntime.config", "rich"},
}

# The core decides: it reads no clock, makes no random numbers, starts and reaches nothing.
FORBIDDEN_IN_CORE = {
    "time", "datetime", "threading", "asyncio", "socket", "os", "random", "secrets", "logging", "subprocess",
}  # fmt: skip

# What only these parts may import.
ONLY_IMPORTED_BY = {
    ("grpc", "grpc_health", "google.protobuf", "psruntime.v1"): ("psruntime/rpc", "psruntime/v1"),
    ("tensorflow", "tf_keras", "keras"): ("psruntime/graph", "psruntime/examples", "psruntime/classic"),
}

# What these parts never import.
NEVER_IMPORTED_BY = {
    "psruntime/rpc": ("psruntime.graph", "psruntime.classic"),
    "psruntime/graph": ("psruntime.rpc", "psruntime.classic"),
}
ENTRY_POINTS = ("psruntime.ps", "psruntime.worker", "psruntime.status")


def sources(*parts: str) -> Iterator[tuple[str, str]]:
    """Path relative to the root, and text, of each Python file of these parts; a part is a file or a folder."""
    for part in parts:
        path = ROOT / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            yield file.relative_to(ROOT).as_posix(), file.read_text()


def imports(text: str) -> Iterator[str]:
    """Dotted names of all that a source imports: `from a import b` counts as `a.b`, a relative import as `.`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from ("." if level else f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def is_in(name: str, packages: Collection[str]) -> bool:
    """Whether a dotted name is one of these packages, or in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def lies_in(path: str, parts: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(part + "/") for part in parts)


def strangers(part: str, text: str) -> list[str]:
    """What a source of a part of `MAY_IMPORT` imports although it may not."""
    own = part.removesuffix(".py").replace("/", ".")
    allowed = MAY_IMPORT[part] | {own} | sys.stdlib_module_names
    forbidden = FORBIDDEN_IN_CORE if part == "psruntime/core" else set[str]()
    return [name for name in imports(text) if not is_in(name, allowed) or is_in(name, forbidden)]


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    bad = [f"{path} imports {name}" for path, text in sources(part) for name in strangers(part, text)]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("packages", ONLY_IMPORTED_BY, ids="-".join)
def test_some_packages_are_for_some_parts_only(packages: tuple[str, ...]) -> None:
    parts = ONLY_IMPORTED_BY[packages]
    bad = [
        f"{path} imports {name}, which is for {' and '.join(parts)}"
        for path, text in sources("psruntime")
        if not lies_in(path, parts)
        for name in imports(text)
        if is_in(name, packages)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("part", NEVER_IMPORTED_BY)
def test_rpc_and_graph_do_not_know_each_other(part: str) -> None:
    bad = [
        f"{path} imports {name}"
        for path, text in sources(part)
        for name in imports(text)
        if is_in(name, NEVER_IMPORTED_BY[part])
    ]
    assert not bad, "\n".join(bad)


def test_nothing_imports_an_entry_point() -> None:
    bad = [
        f"{path} imports {name}"
        for path, text in sources("psruntime")
        for name in imports(text)
        if is_in(name, ENTRY_POINTS)
    ]
    assert not bad, "\n".join(bad)


def test_imports_are_absolute() -> None:
    bad = [path for path, text in sources("psruntime") if not lies_in(path, (GENERATED,)) and "." in set(imports(text))]
    assert not bad, "\n".join(bad)


def test_every_file_can_be_read_at_one_sitting() -> None:
    lengths = {path: len(text.splitlines()) for path, text in sources("psruntime") if not lies_in(path, (GENERATED,))}
    assert "psruntime/core/coordinator/coordinator.py" in lengths
    long = [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > MAX_LINES]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import time", "time"),
        ("import psruntime.core.members.view as v, grpc", "grpc"),
        ("from os import path", "os.path"),
        ("from psruntime import rpc", "psruntime.rpc"),
        (
            "from psruntime.rpc.client.coordinator_client import Client",
            "psruntime.rpc.client.coordinator_client.Client",
        ),
        ("from . import clocks", "."),
        ("def f():\n    if True:\n        import tensorflow.compat.v1 as tf1", "tensorflow.compat.v1"),
        ("class A:\n    import grpc", "grpc"),
        ("if TYPE_CHECKING:\n    from numpy import ndarray", "numpy.ndarray"),
        ("import importlib\ntf = importlib.import_module('tensorflow')", "tensorflow"),
        ("tf = __import__('tensorflow')", "tensorflow"),
    ],
)
def test_an_import_is_found_wherever_it_hides(text: str, name: str) -> None:
    assert name in list(imports(text))
    assert name in strangers("psruntime/core", text)


def test_what_a_part_may_import_is_not_reported() -> None:
    text = "from dataclasses import field\nfrom psruntime.core.plan import plan\nimport psruntime.errors\nimport timeit"
    assert strangers("psruntime/core", text) == []
    assert strangers("psruntime/observe", text + "\nfrom rich.table import Table\nimport time") == []
    assert strangers("psruntime/observe", "import richer") == ["richer"]
