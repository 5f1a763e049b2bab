"""Makes the virtual environment of a peer whose packages do not go together with ours.

    python -m benchmarks.peer_environment torchrec|tfra

It is a folder beside .venv, of this Python, with the versions that stand here; one that is there is made anew.  Where
pip finds a build of torch for the processor alone it takes that; the other brings some GB of CUDA's libraries.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = "python -m benchmarks.peer_environment"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")


class CannotBeMade(Exception):
    """The text says why, in one line."""


@dataclass(frozen=True)
class Environment:
    """packages: with what they need.  alone: without that."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / f".venv-{self.name}"

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def run(self) -> list[str]:
        """The start of a command, to which a module is given."""
        return [self.python, "-m"]

    def lacks(self) -> str | None:
        """Why it cannot be used, with the command that makes it; None if it can."""
        if not self._made.exists():
            why = f"the environment {self.folder.name} is not there, or not complete"
        elif self._made.read_text() != self._versions:
            why = f"the environment {self.folder.name} has other versions"
        else:
            return None
        return f"{why}; '{COMMAND} {self.name}' makes it"

    def make(self) -> None:
        """Anew.

        Raises:
            CannotBeMade: Python has no venv, or pip finds no such versions for it.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(self.folder))
        _run(self.python, *PIP, *self.packages)
        if self.alone:
            _run(self.python, *PIP, "--no-deps", *self.alone)
        self._made.write_text(self._versions)

    @property
    def _made(self) -> Path:
        """Is there once it is complete."""
        return self.folder / ".ready"

    @property
    def _versions(self) -> str:
        return "\n".join((*self.packages, *self.alone))


def _run(*command: str) -> None:
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines() or [f"it ended with {ended.returncode}"]
        errors = [line for line in said if line.startswith("ERROR")]
        raise CannotBeMade(f"{' '.join(command)}: {(errors or said)[-1]}")


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment(
            "torchrec",
            # torchrec itself asks for fbgemm-gpu, which has the folder of fbgemm-gpu-cpu and needs CUDA
            packages=(
                "torch==2.13.0",
                "numpy==2.2.6",
                "setuptools==84.2.1",
                "tensordict==0.15.3",
                "torchmetrics==1.0.3",
                "tqdm==4.70.1",
                "pyre-extensions==0.0.32",
            ),
            alone=("fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"),
        ),
        # built for the tensorflow of 2.16: that of the package tensorflow-cpu lacks symbols of CUDA
        Environment("tfra", packages=("tensorflow==2.16.2", "tensorflow-recommenders-addons==0.8.1")),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(ENVIRONMENTS))
    environment = ENVIRONMENTS[parser.parse_args().peer]
    try:
        environment.make()
    except CannotBeMade as error:
        raise SystemExit(f"{environment.folder.name} cannot be made: {error}") from None
    print(f"{environment.folder.name} is made: {', '.join((*environment.packages, *environment.alone))}")


if __name__ == "__main__":
    main()
