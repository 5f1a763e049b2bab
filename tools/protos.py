"""Generates psruntime/v1 from protos/, and checks that what is committed is current and follows the house rules.

    python tools/protos.py generate
    python tools/protos.py check

Works from any current directory; needs grpcio-tools.

What protoc writes refuses at import a protobuf that is older than protoc's, or two major versions newer; but TensorFlow
2.18 needs protobuf 5, and 2.21 protobuf 6 or 7.  So the checks are removed.  What is left is, but for comments and
annotations, what protoc 26 writes (grpcio-tools 1.65), the last one without a check.  pyproject.toml has the versions.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lint_protos import lint, run_protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")  # what protoc and its gRPC plugin write for each proto

CHECKS = re.compile(  # of the installed protobuf and grpcio
    r"from google\.protobuf import runtime_version .*?\n"
    r"|_runtime_version\.Validate\w+\(.*?\n\)\n"
    r"|import warnings\n"
    r"|GRPC_GENERATED_VERSION = .*?\n    \)\n",
    re.DOTALL,
)


def generate(into: Path) -> list[Path]:
    """Writes the generated code below `into`; returns the files, relative to it."""
    run_protoc(PROTOS, *(f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")))
    protos = sorted(p.relative_to(PROTOS).as_posix() for p in PROTOS.rglob("*.proto"))
    paths = [Path(name.removesuffix(".proto") + suffix) for name in protos for suffix in SUFFIXES]
    for path in paths:
        (into / path).write_text(CHECKS.sub("", (into / path).read_text()))
    return paths


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
