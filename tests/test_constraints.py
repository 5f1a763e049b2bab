"""constraints.txt and what installs with it: it is complete and current, and pip refuses what it does not have."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.docs import ROOT
from tools.constraints import ENTRY, listed, problem, requirements

TEXT = (ROOT / "constraints.txt").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
NEEDED = requirements(PROJECT)


def pins(part: str) -> dict[str, str]:
    """The version of each package that pip installs here for a part."""
    lines = [line.removesuffix(" \\") for line in listed(TEXT, [part]).splitlines() if not line.startswith(" ")]
    here = [pin for pin in map(Requirement, lines) if not pin.marker or pin.marker.evaluate()]
    assert len({pin.name for pin in here}) == len(here), "two versions of a package for one Python"
    return {pin.name: next(iter(pin.specifier)).version for pin in here}


def needed_here(lines: Iterable[str], extras: Iterable[str] = ()) -> list[Requirement]:
    found = map(Requirement, lines)
    return [each for each in found if not each.marker or any(each.marker.evaluate({"extra": e}) for e in ("", *extras))]


def test_it_is_written_from_this_pyproject_and_each_version_has_hashes() -> None:
    assert problem(PROJECT, TEXT) == ""
    assert set(NEEDED) == {part for entry in ENTRY.finditer(TEXT) for part in entry["parts"].split(", ")}
    assert "://" not in TEXT and not re.search(r"^-", TEXT, re.MULTILINE)  # pip's configuration names the index


@pytest.mark.parametrize("part", sorted(NEEDED))
def test_what_a_part_names_has_a_version_that_fits(part: str) -> None:
    found = pins(part)
    for requirement in needed_here(NEEDED[part]):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("part", ["build", "psruntime", "examples", "dev"])  # what is installed here
def test_what_the_packages_of_a_part_need_is_there_too(part: str) -> None:
    """For the other parts pip sees to it: with --require-hashes it refuses a list that is not complete."""
    found, todo = pins(part), needed_here(NEEDED[part])
    seen: set[tuple[str, ...]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        assert name in found and requirement.specifier.contains(found[name]), requirement
        if (name, *requirement.extras) not in seen:
            seen.add((name, *requirement.extras))
            todo += needed_here(distribution(name).requires or [], requirement.extras)


def test_another_requirement_or_a_version_without_hash_is_reported() -> None:
    more = PROJECT.replace("dependencies = [\n", 'dependencies = [\n    "attrs",\n', 1)
    assert problem(more, TEXT) == (
        "constraints.txt was written from other requirements than those of pyproject.toml: run make constraints"
    )
    pin = next(ENTRY.finditer(TEXT))["pin"]
    bare, _ = pin.split(" \\\n", maxsplit=1)
    assert (
        problem(PROJECT, TEXT.replace(pin, bare)) == f"constraints.txt has no hash for '{bare}': run make constraints"
    )
    with pytest.raises(SystemExit, match=r"^constraints: constraints.txt has nothing for example, x$"):
        listed(TEXT, ["psruntime[example,dev]", "x"])


def test_a_renewal_that_resolves_nothing_leaves_the_file(tmp_path: Path) -> None:
    """Here uv is not installed."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, tmp_path / "tools/constraints.py", "renew"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    last = "constraints: uv, which wrote the lines above, resolved nothing; constraints.txt is as it was"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (1, "", last)
    assert (tmp_path / "constraints.txt").read_text() == TEXT


def test_a_list_has_the_parts_of_its_words() -> None:
    assert listed(TEXT, ["psruntime[examples]"]) == listed(TEXT, ["examples", "psruntime"])
    assert "scikit-learn==" in listed(TEXT, ["psruntime[examples]"])
    assert "scikit-learn==" not in listed(TEXT, ["psruntime"])


def test_the_build_backend_is_one_version() -> None:
    (backend,) = map(Requirement, NEEDED["build"])
    assert [each.operator for each in backend.specifier] == ["=="]


def test_make_and_the_dockerfile_install_nothing_without_hashes() -> None:
    targets = (".venv/.ready", ".venv/.docs-ready", ".venv/.gpu-ready", ".venv-tools/.ready")
    commands = subprocess.run(["make", "-nB", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands += (ROOT / "Dockerfile").read_text().replace("\\\n", "\n")
    found = [set(shlex.split(line)) for line in commands.splitlines() if re.search("pip install", line)]
    assert len(found) == 7
    for words in found:
        assert {"--require-hashes", "--only-binary", "-r"} <= words or {"--no-deps", "--no-build-isolation"} <= words


def wheel(folder: Path, name: str, code: str = "", *fields: str) -> Path:
    """A wheel of one module, with these lines in its metadata; its bytes depend on the arguments alone."""
    file, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    texts = {
        f"{name}.py": code,
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *fields]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in texts.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return file


class Clone:
    """A project with this Makefile.  pip has no index there, but a folder of wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wheels = folder, folder / "wheels"
        for name in ("wheels", "tools"):
            (folder / name).mkdir()
        for name in ("Makefile", "tools/constraints.py"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "psruntime"\nversion = "1.0"\n'
        )
        own = wheel(folder, "psruntime", "", "Requires-Dist: needed")
        (folder / "backend.py").write_text(
            "import shutil\ndef build_editable(folder, *_):\n"
            f"    return shutil.copy({str(own)!r}, folder).rpartition('/')[2]\n"
        )

    def lists(self, file: Path) -> None:
        """Makes this wheel the one of constraints.txt."""
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        (self.folder / "constraints.txt").write_text(
            f"needed==1.0 \\\n    --hash=sha256:{sha256}\n    # for psruntime, build, examples, dev\n"
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
        environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, cwd=self.folder, env=environ, **output, text=True, timeout=120, check=False)

    def make(self) -> str:
        """What make prints if it fails, or ''."""
        done = self.run("make", ".venv/.ready", f"PYTHON={sys.executable}")
        assert bool(done.returncode) != (self.folder / ".venv/.ready").exists(), done.stdout
        return done.stdout if done.returncode else ""

    def value(self) -> str:
        return self.run(".venv/bin/python", "-c", "import needed; print(needed.value)").stdout.splitlines()[-1]


@pytest.mark.long
def test_make_refuses_a_wheel_of_which_a_byte_was_changed(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.lists(wheel(clone.wheels, "needed", "value = 1\n"))
    wheel(clone.wheels, "needed", "value = 2\n")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" in clone.make()
    assert clone.value() == "ModuleNotFoundError: No module named 'needed'"
    clone.run(".venv/bin/python", "-m", "pip", "install", "needed")
    assert clone.value() == "2", "no good wheel: pip had another reason"
    clone.run(".venv/bin/python", "-m", "pip", "uninstall", "--yes", "needed")
    wheel(clone.wheels, "needed", "value = 1\n")
    assert clone.make() == ""
    assert clone.value() == "1"


@pytest.mark.long
def test_make_refuses_a_package_that_the_list_does_not_have(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.lists(wheel(clone.wheels, "needed", "value = 1\n", "Requires-Dist: more"))
    wheel(clone.wheels, "more")
    assert "In --require-hashes mode, all requirements must have their versions pinned with ==" in clone.make()
    assert clone.value() == "ModuleNotFoundError: No module named 'needed'"
