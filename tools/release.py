"""Builds the wheel and the sdist of the last commit into dist/, and checks them.

    python tools/release.py

Refuses a tree with changes, and a version that CHANGELOG.md does not have.  Builds twice, and compares: the files
depend on the commit alone.  Each is installed in an empty environment, and trains the demo in an empty folder.
dist/ gets both, SHA256SUMS, and CONTENTS, the names of the files in them.  Needs git and a package index.
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
BUILDERS = ("build==1.6.1", "twine==7.0.0")
BACKEND = "setuptools==84.2.1"  # another one may write other files


def release(root: Path) -> None:
    """Fills dist/ of a clone.  Raises SystemExit with the reason, or CalledProcessError."""
    version = checked_version(root)
    os.umask(0o022)  # archives have the modes of files
    with tempfile.TemporaryDirectory(prefix="psruntime-release-") as folder:
        work = Path(folder)
        python = environment(work / "builders", *BUILDERS)
        files, again = (build(root, python, work / name) for name in ("first", "second"))
        if (sums := sums_of(files)) != sums_of(again):
            raise SystemExit(f"release: two builds differ:\n{sums}{sums_of(again)}")
        run(python, "-m", "twine", "check", "--strict", *files)
        for file in files:
            try_out(file, version, work / f"installed {file.suffix}")
        (work / "first/dist/SHA256SUMS").write_text(sums)
        with zipfile.ZipFile(files[0]) as wheel, tarfile.open(files[1]) as sdist:
            inside = [*wheel.namelist(), *(entry.name for entry in sdist if entry.isfile())]
        (work / "first/dist/CONTENTS").write_text("\n".join([*inside, ""]))
        shutil.rmtree(root / "dist", ignore_errors=True)
        shutil.copytree(work / "first/dist", root / "dist")
    print(f"{sums}two builds gave these; each was installed and has trained the demo")


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
    epoch = run("git", "-C", root, "log", "-1", "--format=%ct", quiet=True).decode().strip()
    (folder / "constraints").write_text(BACKEND)
    settings = {"SOURCE_DATE_EPOCH": epoch, "PIP_CONSTRAINT": str(folder / "constraints")}
    run(python, "-m", "build", "--outdir", folder / "dist", folder / "tree", quiet=True, **settings)
    wheel, sdist = sorted((folder / "dist").iterdir())
    normalise(sdist, int(epoch))
    return [wheel, sdist]


def normalise(sdist: Path, epoch: int) -> None:
    """Gives all that is in a .tar.gz one time and no owner.  setuptools does so for wheels."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.pax_headers = epoch, 0, 0, "", "", {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def try_out(file: Path, version: str, folder: Path) -> None:
    """Trains the demo with what a user has installed.  Raises as `release`."""
    command = environment(folder / "venv", f"{file}[examples]").with_name("psruntime")
    (folder / "empty").mkdir()
    answer = run(command, "--version", quiet=True, cwd=folder / "empty").decode()
    if answer != f"psruntime {version}\n":
        raise SystemExit(f"release: {file.name} has version {version}, and its command says '{answer.strip()}'")
    run(command, "demo", cwd=folder / "empty")


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a new virtual environment with these packages."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return folder / "bin/python"


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
