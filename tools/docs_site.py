"""Makes the pages of the site that are no files of docs/: a hook of MkDocs, see mkdocs.yml.

index.md is README.md.  reference/ has the public names of Python, which mkdocstrings reads from the source, the help
of every command, and the coordinator's protocol.  source/ has the files of the repository to which pages link, as
they are; the links lead there.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mkdocs.structure.files import File
from pymdownx.slugs import slugify

from psruntime.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
PUBLIC = (
    "model.ModelSpec",
    "model.Context",
    "classic.training_session.MonitoredTrainingSession",
    "launch.python_job.train",
    "launch.python_job.Result",
    "launch.tf_config.cluster_task",
    "optimizers.LazyAdam",
    "optimizers.RowwiseAdagrad",
    "optimizers.GroupFtrl",
)
PROTO = ROOT / "protos/psruntime/v1/coordination.proto"
log = logging.getLogger("mkdocs.plugins.site")  # what it warns of counts as a warning of the build


def on_config(config: Any) -> Any:
    """Anchors are those of GitHub, so that links work there and here."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    made = {
        "index.md": (ROOT / "README.md").read_text(),
        "reference/python.md": _python(),
        "reference/commands.md": _commands(),
        "reference/protocol.md": _listing("Protocol", PROTO, "protobuf"),
    }
    for path in sorted(_linked_sources()):
        language = {".py": "python", ".sh": "bash", ".md": "markdown"}.get(path.suffix, "text")
        made[_page_of(path)] = _listing(str(path.relative_to(ROOT)), path, language)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links out of docs/ to the pages of source/."""
    name = page.file.src_uri
    if name.startswith(("source/", "reference/")):
        return markdown
    folder = ROOT if name == "index.md" else DOCS

    def moved(link: re.Match[str]) -> str:
        target, anchor = (folder / link[1]).resolve(), link[2] or ""
        if target.is_relative_to(DOCS):
            return f"]({target.relative_to(DOCS)}{anchor})"
        return f"]({'index.md' + anchor if target == ROOT / 'README.md' else _page_of(target)})"

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Warns of a page that MkDocs reads in another way than GitHub, which is a list without an empty line before it."""
    if page.file.src_uri.startswith("reference/"):
        return
    tokens = MarkdownIt("commonmark").enable("table").parse(page.markdown)
    for kind, tag in (("list_item_open", "<li"), ("table_open", "<table>"), ("fence", '<div class="highlight')):
        meant = sum(token.type in (kind, "code_block" if kind == "fence" else kind) for token in tokens)
        shown = html.count(tag)
        if meant != shown:
            log.warning("%s has %d x %s on GitHub, and %d here", page.file.src_uri, meant, kind, shown)


def _linked_sources() -> Iterator[Path]:
    for document in (ROOT / "README.md", *DOCS.glob("*.md")):
        for link in LINK.finditer(document.read_text()):
            target = (document.parent / link[1]).resolve()
            if target.is_file() and not target.is_relative_to(DOCS) and target != ROOT / "README.md":
                yield target


def _page_of(path: Path) -> str:
    return f"source/{path.relative_to(ROOT)}.md"


def _listing(title: str, path: Path, language: str) -> str:
    return f"# {title}\n\n~~~~{language}\n{path.read_text()}~~~~\n"


def _python() -> str:
    head = "# Python\n\nWhat `psruntime` and `psruntime.optimizers` export. `tf1` is `tensorflow.compat.v1`.\n"
    return head + "".join(f"\n::: psruntime.{name}\n" for name in PUBLIC)


def _commands() -> str:
    page = "# Commands\n\nThe same commands start as `python -m psruntime NAME`.\n"
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    for name in COMMANDS:
        command = [sys.executable, "-m", "psruntime", name, "--help-all"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        page += f"\n## psruntime {name}\n\n```text\n{said}```\n"
    return page
