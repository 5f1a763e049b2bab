"""constraints.txt: the versions that make, the Dockerfile and the release install, with the hashes of their files.

    python tools/constraints.py list PARTS...       what these need, as a file for pip install --require-hashes -r
    python tools/constraints.py renew [--upgrade]   writes constraints.txt from pyproject.toml; needs uv and an index
    python tools/constraints.py check               exits with 1 if it was written from another pyproject.toml

A part is `psruntime`, an extra, a dependency group, or `build`: the build backend.  `psruntime[a,b]` is three parts.
Versions are the same for all Pythons and systems, except where a package has no such version.  `list` runs in a bare
Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE, PROJECT = "constraints.txt", "pyproject.toml"
HEAD = """\
# The versions that make, the Dockerfile and the release install, with hashes of all their files: pip refuses others.
# `make constraints` writes this file from pyproject.toml.  The last line of an entry says what needs it.
# requirements: """
ENTRY = re.compile(
    r"^(?P<pin>\S.*(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)\n    # for (?P<parts>.+)$", re.MULTILINE
)
OLDEST, BEYOND = "3.10", "3.14"  # Pythons: the first, and the first that TensorFlow has no files for
END = f"python_full_version < '{BEYOND}'"  # uv writes it into all conditions
UV = f"uv pip compile - --quiet --no-header --no-annotate --universal --python-version={OLDEST}".split()


def listed(text: str, words: Iterable[str]) -> str:
    """The entries of a constraints.txt that these parts need.  Raises SystemExit if it has none for one of them."""
    parts = {part for word in words for part in re.findall(r"[\w-]+", word)}
    entries = [(entry["pin"], set(entry["parts"].split(", "))) for entry in ENTRY.finditer(text)]
    if unknown := parts.difference(*(needed for _, needed in entries)):
        raise SystemExit(f"constraints: {FILE} has nothing for {', '.join(sorted(unknown))}")
    return "".join(f"{pin}\n" for pin, needed in entries if needed & parts)


def requirements(project: str) -> dict[str, list[str]]:
    """The requirements of each part of a pyproject.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    read = tomllib.loads(project)
    return {
        "psruntime": read["project"]["dependencies"],
        "build": read["build-system"]["requires"],
        **read["project"].get("optional-dependencies", {}),
        **read.get("dependency-groups", {}),
    }


def digest(needed: Mapping[str, list[str]]) -> str:
    return hashlib.sha256(json.dumps(needed, sort_keys=True).encode()).hexdigest()


def renewed(project: str, old: str, upgrade: bool) -> str:
    """A new constraints.txt: old versions stay where the requirements allow them, except with `upgrade`."""
    needed = requirements(project)
    with tempfile.TemporaryDirectory(prefix="psruntime-constraints-") as folder:
        (Path(folder) / PROJECT).write_text(f'[tool.uv]\nenvironments = ["{END}"]\n')
        pins = Path(folder) / "pins.txt"
        pins.write_text("" if upgrade else old)
        resolve([line for lines in needed.values() for line in lines], pins, "--generate-hashes")
        text = re.sub(rf"{END} and | and {END}| ; {END}(?= \\\n)", "", pins.read_text())
        entries = re.findall(r"^\S.*(?:\n    .+)+$", text, re.MULTILINE)
        names = {}
        for part, lines in needed.items():
            own = Path(shutil.copy(pins, Path(folder) / f"{part}.txt"))
            resolve(lines, own)
            names[part] = {name_of(pin) for pin in own.read_text().splitlines()}
    parts = {entry: ", ".join(part for part in needed if name_of(entry) in names[part]) for entry in entries}
    return f"{HEAD}{digest(needed)}\n" + "".join(f"{entry}\n    # for {parts[entry]}\n" for entry in entries)


def resolve(lines: Iterable[str], file: Path, *flags: str) -> None:
    """Writes what these requirements need into a file; the versions that are in it stay, if they can."""
    command = [sys.executable, "-m", *UV, *flags, f"--output-file={file}"]
    given = "\n".join(lines)
    if subprocess.run(command, cwd=file.parent, input=given, stdout=subprocess.DEVNULL, text=True).returncode:
        raise SystemExit("constraints: uv, which wrote the lines above, resolved nothing; constraints.txt is as it was")


def name_of(pin: str) -> str:
    return re.split(r"[^\w.-]", pin, maxsplit=1)[0]


def problem(project: str, text: str) -> str:
    """Why a constraints.txt is not of this pyproject.toml, or ''."""
    if f"\n# requirements: {digest(requirements(project))}\n" not in text:
        return f"{FILE} was written from other requirements than those of {PROJECT}: run make constraints"
    loose = [line for line in ENTRY.sub("", text).splitlines() if line and not line.startswith("#")]
    return f"{FILE} has no hash for '{loose[0]}': run make constraints" if loose else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("parts", nargs="+")
    commands.add_parser("renew").add_argument("--upgrade", action="store_true", help="take the newest versions")
    commands.add_parser("check")
    args = parser.parse_args()
    project, text = (ROOT / PROJECT).read_text(), (ROOT / FILE).read_text()
    if args.command == "list":
        print(listed(text, args.parts), end="")
    elif args.command == "renew":
        (ROOT / FILE).write_text(renewed(project, text, args.upgrade))
    elif found := problem(project, text):
        print(found, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
