"""Builds the wheel, the sdist and the SBOM of the last commit into dist/, and checks them.

    python tools/release.py

Refuses a tree with changes, and a version that CHANGELOG.md does not have.  Builds twice, and compares: the files
depend on the commit alone.  Each is installed in an empty environment, and trains the demo in an empty folder.  What is
installed for all this is in constraints.txt, with hashes.  dist/ gets both files; the wheel's SBOM (CycloneDX), of the
environment in which it has trained; SHA256SUMS; and CONTENTS, the names of the files in them.  Needs git and a package
index.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIED = ("psruntime", "examples")  # the parts of constraints.txt with which the demo trains


def release(root: Path) -> None:
    """Fills dist/ of a clone.  Raises SystemExit with the reason, or CalledProcessError."""
    version = checked_version(root)
    os.umask(0o022)  # archives have the modes of files
    with tempfile.TemporaryDirectory(prefix="psruntime-release-") as folder:
        work = Path(folder)
        python = environment(root, work / "builders", "build", "release")
        files, again = (build(root, python, work / name) for name in ("first", "second"))
        if (sums := sums_of(files)) != sums_of(again):
            raise SystemExit(f"release: two builds differ:\n{sums}{sums_of(again)}")
        run(python, "-m", "twine", "check", "--strict", *files)
        for file in files:
            try_out(root, file, version, work / f"installed {file.suffix}")
        tried = work / "installed .whl"
        (site_packages,), reports = tried.glob("venv/lib/*/site-packages"), sorted(tried.glob("*.json"))
        project = f"{TRIED[0]}[{TRIED[1]}]"
        listed = run(python, root / "tools/sbom.py", project, epoch_of(root), site_packages, *reports, quiet=True)
        sbom = work / f"first/dist/psruntime-{version}.cdx.json"
        sbom.write_bytes(listed)
        sums = sums_of([*files, sbom])
        (work / "first/dist/SHA256SUMS").write_text(sums)
        with zipfile.ZipFile(files[0]) as wheel, tarfile.open(files[1]) as sdist:
            inside = [*wheel.namelist(), *(entry.name for entry in sdist if entry.isfile())]
        (work / "first/dist/CONTENTS").write_text("\n".join([*inside, ""]))
        shutil.rmtree(root / "dist", ignore_errors=True)
        shutil.copytree(work / "first/dist", root / "dist")
    print(f"{sums}two builds gave the wheel and the sdist; each was installed and has trained the demo")


def checked_version(root: Path) -> str:
    """The version of a clone that can be released.  Raises SystemExit."""
    if changed := run("git", "-C", root, "status", "--porcelain", quiet=True).splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise SystemExit(f"release: {changed[0][3:].decode()}{more} not committed; a release is made of a commit")
    version = re.findall(r'^__version__ = "(.+)"$', (root / "psruntime/__init__.py").read_text(), re.MULTILINE)[0]
    entry = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if not entry.search((root / "CHANGELOG.md").read_text()):
        raise SystemExit(f"release: CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'; psruntime has this version")
    return version


def build(root: Path, python: Path, folder: Path) -> list[Path]:
    """The wheel and the sdist of the last commit; the wheel is built of the sdist."""
    folder.mkdir()
    run("git", "-C", root, "archive", "--output", folder / "tree.tar", "HEAD")
    shutil.unpack_archive(folder / "tree.tar", folder / "tree", filter="data")
    command = (python, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree")
    run(*command, quiet=True, SOURCE_DATE_EPOCH=epoch_of(root))
    wheel, sdist = sorted((folder / "dist").iterdir())
    normalise(sdist, int(epoch_of(root)))
    return [wheel, sdist]


def normalise(sdist: Path, epoch: int) -> None:
    """Gives all that is in a .tar.gz one time and no owner.  setuptools does so for wheels."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.pax_headers = epoch, 0, 0, "", "", {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def epoch_of(root: Path) -> str:
    """The time of the last commit, in seconds."""
    return run("git", "-C", root, "log", "-1", "--format=%ct", quiet=True).decode().strip()


def try_out(root: Path, file: Path, version: str, folder: Path) -> None:
    """Trains the demo with what a user has installed; pip's reports are in the folder.  Raises as `release`."""
    python = environment(root, folder / "venv", "build", *TRIED)
    install(python, folder / "file.json", "--no-deps", "--no-build-isolation", file)
    run(python, "-m", "pip", "check")
    (folder / "empty").mkdir()
    command = python.with_name("psruntime")
    answer = run(command, "--version", quiet=True, cwd=folder / "empty").decode()
    if answer != f"psruntime {version}\n":
        raise SystemExit(f"release: {file.name} has version {version}, and its command says '{answer.strip()}'")
    run(command, "demo", cwd=folder / "empty")


def environment(root: Path, folder: Path, *parts: str) -> Path:
    """The Python of a new virtual environment with these parts of constraints.txt.  pip's report is beside it."""
    run(sys.executable, "-m", "venv", folder)
    listed = folder / "requirements.txt"
    listed.write_bytes(run(sys.executable, root / "tools/constraints.py", "list", *parts, quiet=True))
    report = folder.with_name(f"{folder.name}.json")
    install(folder / "bin/python", report, "--require-hashes", "--only-binary", ":all:", "-r", listed)
    return folder / "bin/python"


def install(python: Path, report: Path, *what: str | Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--report", report, *what)


def sums_of(files: list[Path]) -> str:
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def run(*command: str | Path, cwd: Path | None = None, quiet: bool = False, **settings: str) -> bytes:
    """What it prints, with quiet=True.  Raises CalledProcessError."""
    out, environ = subprocess.PIPE if quiet else None, {**os.environ, **settings}
    return subprocess.run(command, cwd=cwd, env=environ, check=True, stdout=out).stdout


if __name__ == "__main__":
    try:
        release(ROOT)
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: {error}")
