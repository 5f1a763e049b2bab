"""The documents as the tests read them: blocks of code, commands, tables, flags.

A comment `<!-- check: KIND ... -->` before a block or a table says how it is checked:

    model          a module with input_fn and model_fn; it is trained and evaluated
    script         it is run, by the test that names it
    compile, WHY   it is only compiled
    diff of FILE   the lines that it takes away are in that block; the result is run
    kustomization  what kustomize makes of it, with the job file of the block job, is checked by
                   tests/launch/test_kubernetes.py
    install        it is looked at; not run
    output         what the block before it prints, in tests/cluster/test_tutorial.py
    refusals, optimizers, exit codes, mistakes, guarantees, threats, glossary, faults, metrics,
    alerts, summaries    tables, each with a test of its own
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_MARK = re.compile(r"<!-- check: (.+?) -->")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_COMMANDS = ("psruntime", "python", "make", "launch/local.sh", "launch/ssh.sh")


@dataclass(frozen=True)
class Block:
    """A block of code.  check: what its mark says.  kind: the language after the fence; empty if it is indented."""

    document: Path
    line: int
    kind: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"

    @property
    def file(self) -> str:
        """The name in its first line, `# NAME.py`; empty if there is none."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found else ""

    @property
    def commands(self) -> list[list[str]]:
        """Of a block of sh all its lines, of an indented one those that begin as a command does; as words."""
        lines = [shlex.split(line, comments=True) for line in self._lines() if self._is_command(line)]
        return [words for words in lines if words]

    def _lines(self) -> list[str]:
        return self.text.replace("\\\n", " ").splitlines() if self.kind in ("", "sh") else []

    def _is_command(self, line: str) -> bool:
        return self.kind == "sh" or line.startswith(tuple(f"{command} " for command in _COMMANDS))


def blocks(document: Path) -> list[Block]:
    """All of a document, in order."""
    found, mark = [], ""
    for token in MarkdownIt("commonmark").parse(document.read_text()):
        if token.type == "html_block":
            mark = _mark(token.content)
        elif token.type in ("fence", "code_block"):
            assert token.map
            found.append(Block(document, token.map[0] + 1, token.info.strip(), mark, token.content))
        if token.type != "html_block":
            mark = ""
    return found


def made_in(found: list[Block]) -> set[str]:
    """The models that commands of these blocks write: `psruntime init NAME`."""
    commands = [words for block in found for words in block.commands]
    return {words[2] for words in commands if words[:2] == ["psruntime", "init"] and len(words) > 2}


def block(document: str, file: str) -> Block:
    """The one that begins with `# FILE`."""
    (found,) = [b for b in blocks(ROOT / document) if b.file == file]
    return found


def table(document: str, check: str) -> list[list[str]]:
    """The cells of the table with this mark, row by row, without the head."""
    rows: list[list[str]] = []
    mark, inside, body = "", False, False
    for token in MarkdownIt("commonmark").enable("table").parse((ROOT / document).read_text()):
        if token.type == "html_block":
            mark = _mark(token.content)
        elif token.type == "table_open":
            inside, mark = mark == check, ""
        elif token.type in ("tbody_open", "tbody_close"):
            body = token.type == "tbody_open"
        elif inside and body and token.type == "tr_open":
            rows.append([])
        elif inside and body and token.type == "inline":
            rows[-1].append(token.content)
        elif token.type == "table_close":
            inside = False
    assert rows, f"{document} has no table with the mark '{check}'"
    return rows


def moved(text: str, diff: str) -> str:
    """The text after a diff without line numbers: each run of removed lines is replaced by the added ones after it."""
    for removed, added in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        before, after = (re.sub("^.", "", lines, flags=re.MULTILINE) for lines in (removed, added))
        assert text.count(before) == 1, f"not exactly once in the text: {before}"
        text = text.replace(before, after)
        diff = diff.replace(removed + added, "", 1)
    assert not diff.strip(), f"neither removed nor replaced: {diff}"
    return text


def flags_in(text: str) -> set[str]:
    """All words of a text that look like a flag."""
    return set(_FLAG.findall(text))


def flags_of_script(text: str) -> set[str]:
    """Those that a script defines with tf.flags."""
    return {f"--{name}" for name in re.findall(r'DEFINE_\w+\("(\w+)"', text)}


def links(document: Path) -> list[str]:
    """The relative ones, with what is after '#'."""
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text())
        if not target.startswith(("http:", "https:"))
    ]


def anchors(document: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _mark(html: str) -> str:
    found = _MARK.search(html)
    return found[1] if found else ""
