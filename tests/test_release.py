"""tools/release.py: what it refuses, and a release."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import psruntime
from tests.support.docs import ROOT
from tools.constraints import listed
from tools.release import checked_version


def git(folder: Path, *words: str) -> None:
    settings = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *settings, *words], check=True, capture_output=True, timeout=120)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository whose version has an entry."""
    (tmp_path / "psruntime").mkdir()
    (tmp_path / "psruntime/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-11-28\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "Begin")
    return tmp_path


def test_a_tree_with_changes_is_no_release(clone: Path) -> None:
    assert checked_version(clone) == "1.2.3"
    (clone / "psruntime/new.py").touch()
    (clone / "CHANGELOG.md").write_text("")
    with pytest.raises(
        SystemExit, match=r"^release: CHANGELOG.md and 1 more not committed; a release is made of a comm"
    ):
        checked_version(clone)


@pytest.mark.parametrize("entry", ["", "## [1.2.30] - 2026-11-28", "## [1.2.3]", "## [1x2.3] - 2026-11-28"])
def test_a_version_without_an_entry_is_no_release(clone: Path, entry: str) -> None:
    (clone / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n{entry}\n")
    git(clone, "commit", "--all", "--message", "Change")
    said = r"^release: CHANGELOG.md has no line '## \[1.2.3\] - YYYY-MM-DD'; psruntime has this version$"
    with pytest.raises(SystemExit, match=said):
        checked_version(clone)


def test_each_file_and_folder_of_the_tree_is_listed_for_the_sdist() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    listed_there = set((ROOT / "MANIFEST.in").read_text().split())
    by_setuptools = {"LICENSE", "MANIFEST.in", "README.md", "psruntime", "pyproject.toml"}
    assert {path.partition("/")[0] for path in tracked} - listed_there - by_setuptools == {".gitignore"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_release_is_installed_and_trains_and_is_the_same_again(tmp_path: Path) -> None:
    """Of the last commit: in a clone, which has no changes."""
    git(tmp_path, "clone", "--quiet", str(ROOT), "clone")
    done = subprocess.run(
        [sys.executable, "tools/release.py"], cwd=tmp_path / "clone", env={**os.environ, "PYTHONPATH": ""},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2
    assert done.stdout.count("held out, at global step") == 2
    dist = tmp_path / "clone/dist"
    wheel, sdist = sorted(path for path in dist.iterdir() if path.suffix in (".whl", ".gz"))
    sbom = dist / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    check_sbom(json.loads(sbom.read_text()), wheel)
    assert (dist / "SHA256SUMS").read_text() == "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in (wheel, sdist, sbom)
    )
    names = (dist / "CONTENTS").read_text().splitlines()
    tracked = subprocess.run(["git", "ls-files"], cwd=dist.parent, capture_output=True, text=True, check=True)
    in_sdist = {name.partition("/")[2] for name in names if name.startswith(sdist.name.removesuffix(".tar.gz") + "/")}
    assert {"psruntime/py.typed", "psruntime/templates/my_model.csv"} <= set(names)
    assert set(tracked.stdout.splitlines()) - in_sdist == {".gitignore"}


def check_sbom(sbom: dict[str, Any], wheel: Path) -> None:
    """It is of the wheel.  Each component has a version and a hash of constraints.txt, and is needed by the wheel."""
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    root, components = sbom["metadata"]["component"], sbom["components"]
    assert root["purl"] == f"pkg:pypi/psruntime@{psruntime.__version__}"
    assert root["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    entries = listed((ROOT / "constraints.txt").read_text(), ["psruntime[examples]"])
    for each in components:
        (entry,) = re.findall(rf"^{each['name']}=={each['version']} .*\n(?:    .*\n)+", entries, re.MULTILINE)
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" == each["bom-ref"]
        assert [f"sha256:{found['content']}" in entry for found in each["hashes"]] == [True]
    needs = {each["ref"]: each.get("dependsOn", []) for each in sbom["dependencies"]}
    reached, new = set(), {root["bom-ref"]}
    while new:
        reached |= new
        new = {ref for each in new for ref in needs[each]} - reached
    assert reached == set(needs) == {each["bom-ref"] for each in [root, *components]}
    assert {"tensorflow", "numpy", "scikit-learn"} <= {each["name"] for each in components}
