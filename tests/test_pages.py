"""README, glossary, architecture and navigation name what is there; nothing here needs TensorFlow."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import docs
from tests.support.docs import ROOT

README_LINES = 200
ARCHITECTURE = ROOT / "docs/architecture.md"
PLACE = re.compile(r"`([\w./-]+\.(?:py|proto|sh|toml|yml))(?:: ([\w.]+))?`")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < README_LINES


@pytest.mark.parametrize(("page", "table"), [("concepts", "guarantees"), ("security", "threats")])
def test_every_guarantee_names_tests_that_exist(page: str, table: str) -> None:
    for guarantee, *_, tests in docs.table(f"docs/{page}.md", table):
        named = re.findall(r"`(\w+\.py)::(\w+)`", tests)
        assert named and len(named) == tests.count("`") // 2, guarantee
        for file, test in named:
            found = [path for path in (ROOT / "tests").rglob(file) if test in _names(path)]
            assert len(found) == 1, f"{len(found)} files {file} have {test}"


def test_the_glossary_is_alphabetical_and_its_words_are_those_of_the_code() -> None:
    words = [word for word, _ in docs.table("docs/concepts.md", "glossary")]
    assert words == sorted(set(words), key=str.lower)
    code = "\n".join(path.read_text() for path in (ROOT / "psruntime").rglob("*.py")).lower().replace("_", " ")
    unused = [word for word in words if not re.search(rf"\b{word.lower()}", code)]
    assert not unused, "words of the glossary that the code does not use"


@pytest.mark.parametrize("place", sorted(set(PLACE.findall(ARCHITECTURE.read_text()))), ids=": ".join)
def test_the_architecture_names_what_exists(place: tuple[str, str]) -> None:
    file, name = place
    path = ROOT / file if (ROOT / file).exists() else ROOT / "psruntime" / file
    assert path.is_file(), f"{file} is not there"
    if path.suffix == ".proto":
        assert re.search(rf"\b(message|rpc|service|enum) {name}\b", path.read_text()) if name else True
    elif name:
        assert name in _names(path), f"{file} has no {name}"


def test_the_architecture_names_enough_to_be_of_use() -> None:
    assert len(set(PLACE.findall(ARCHITECTURE.read_text()))) > 50


def test_the_architecture_shows_every_room() -> None:
    text = ARCHITECTURE.read_text()
    rooms = {path.parent for package in ("core", "rpc", "graph") for path in ROOT.glob(f"psruntime/{package}/*/*.py")}
    assert rooms
    assert not [room.name for room in rooms if f"`{room.parent.name}/{room.name}`" not in text]


def test_the_navigation_of_the_site_has_every_page() -> None:
    pages = set(_leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    made = {"index.md", *(page for page in pages if page.startswith("reference/"))}
    assert pages - made == {path.name for path in (ROOT / "docs").glob("*.md")}


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for entry in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(entry)]


@cache
def _names(path: Path) -> frozenset[str]:
    """Functions, classes, constants, and what classes have: `Class.method`."""
    return frozenset(_names_in(ast.parse(path.read_text()), ""))


def _names_in(node: ast.AST, prefix: str) -> list[str]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found += [prefix + child.name]
            if isinstance(child, ast.ClassDef):
                found += _names_in(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign):
            found += [prefix + target.id for target in child.targets if isinstance(target, ast.Name)]
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            found += [prefix + child.target.id]
    return found
