"""Generates psruntime/v1 from protos/, and checks that what is committed is current and follows the house rules.

    python tools/protos.py generate
    python tools/protos.py check

Works from any current directory; needs grpcio-tools.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lint_protos import lint, run_protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")  # what protoc and its gRPC plugin write for each proto


def generate(into: Path) -> list[Path]:
    """Writes the generated code below `into`; returns the files, relative to it."""
    run_protoc(PROTOS, *(f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")))
    protos = sorted(p.relative_to(PROTOS).as_posix() for p in PROTOS.rglob("*.proto"))
    return [Path(name.removesuffix(".proto") + suffix) for name in protos for suffix in SUFFIXES]


def stale() -> list[str]:
    """One line for each committed file that is not what `generate` writes now."""
    with tempfile.TemporaryDirectory() as fresh:
        paths = generate(Path(fresh))
        return [
            f"{path} is not what grpcio-tools {version('grpcio-tools')} makes of protos/; "
            "run: python tools/protos.py generate"
            for path in paths
            if not (ROOT / path).exists() or (ROOT / path).read_bytes() != (Path(fresh) / path).read_bytes()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("generate", "check"))
    if parser.parse_args().command == "generate":
        for path in generate(ROOT):
            print(path)
        return 0
    problems = stale() + lint(PROTOS)
    print("\n".join(problems) or "protos ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
