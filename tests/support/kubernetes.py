"""The objects of launch/kubernetes: as they stand, as kustomize makes them, and questions about them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import docs
from tests.support.docs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = ROOT / "launch" / "kubernetes"
BASE, EXAMPLE, INSECURE, GPU = (FOLDER / name for name in ("base", "example", "insecure", "gpu"))
MIGRATING = docs.blocks(ROOT / "docs" / "migrating.md")
MODELS = {block.file: block.text for block in MIGRATING if block.file}
OLDEST = "1.31"  # podFailurePolicy is there for good
GRACE_S = 10  # docs/operations.md, "Stop a job": how much longer than --stop-grace the grace time has to be
CREDENTIALS = ("ca.pem", "cert.pem", "key.pem", "token")

Object = dict[str, Any]


def kustomization(folder: Path) -> Object:
    found: Object = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return found


def as_it_stands(folder: Path) -> list[Object]:
    """The documents of all files that are listed, and the ConfigMaps that would be made, without suffixes."""
    listed = kustomization(folder)
    found = [d for name in listed["resources"] for d in yaml.safe_load_all((folder / name).read_text())]
    for made in listed["configMapGenerator"]:
        data = dict(literal.split("=", 1) for literal in made.get("literals", ()))
        data |= {name: (folder / name).read_text() for name in made.get("files", ())}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    return found


def rendered(folder: Path) -> list[Object]:
    """What kustomize makes of a folder."""
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl, which has kustomize")
    return list(yaml.safe_load_all(kustomize(folder)))


@cache
def kustomize(folder: Path) -> str:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_tls(folder: Path) -> list[Object]:
    """The base with the component that takes TLS and the token away."""
    used = as_its_comment_says(INSECURE)
    assert used == {"components": ["../insecure"]}
    return kustomized({**used, "resources": ["../base"]}, folder)


def with_gpu(folder: Path) -> list[Object]:
    """The base with the component for GPUs."""
    used = as_its_comment_says(GPU)
    assert used == {"components": ["../gpu"]}
    return kustomized({**used, "resources": ["../base"]}, folder)


def as_its_comment_says(component: Path) -> Object:
    """What a kustomization has that names the component."""
    comment = (component / "kustomization.yaml").read_text().split("apiVersion")[0]
    used: Object = yaml.safe_load("\n".join(line[5:] for line in comment.splitlines() if line.startswith("#     ")))
    return used


def migrated(folder: Path) -> list[Object]:
    """What the page on Estimators makes of the base."""
    overlay, job = ([b.text for b in MIGRATING if b.check == check] for check in ("kustomization", "job"))
    (folder / "job.toml").write_text(*job)
    return kustomized(yaml.safe_load(*overlay), folder)


def kustomized(overlay: Object, folder: Path) -> list[Object]:
    """What comes of an overlay in a folder outside of the repository."""
    for key in overlay.keys() & {"resources", "components"}:
        overlay[key] = [os.path.relpath(EXAMPLE / path, folder) for path in overlay[key]]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return rendered(folder)


READ: dict[str, Callable[[Path], list[Object]]] = {
    "base": lambda _: as_it_stands(BASE),
    "base, rendered": lambda _: rendered(BASE),
    "example": lambda _: rendered(EXAMPLE),
    "insecure": without_tls,
    "gpu": with_gpu,
    "migrated": migrated,
}


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [found for found in objects if found["kind"] == kind]


def job_of(objects: list[Object], role: str) -> Object:
    (found,) = [job for job in of_kind(objects, "Job") if args_of(job)[0] == role]
    return found


def pod_of(job: Object) -> Object:
    found: Object = job["spec"]["template"]["spec"]
    return found


def labels_of(job: Object) -> dict[str, str]:
    found: dict[str, str] = job["spec"]["template"]["metadata"]["labels"]
    return found


def container_of(job: Object) -> Object:
    (found,) = pod_of(job)["containers"]
    return dict(found)


def args_of(job: Object) -> list[str]:
    return list(container_of(job)["args"])


def flag_of(job: Object, name: str) -> str:
    (found,) = [word.partition("=")[2] for word in args_of(job) if word.partition("=")[0] == name]
    return found


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether an object with these labels is meant; an empty selector means all."""
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def config_map(objects: list[Object], name: str) -> dict[str, str]:
    (found,) = [c["data"] for c in of_kind(objects, "ConfigMap") if c["metadata"]["name"] == name]
    return dict(found)


def volume_of(job: Object, kind: str) -> Object:
    (found,) = [volume[kind] for volume in pod_of(job)["volumes"] if kind in volume]
    return dict(found)


def settings_of(objects: list[Object]) -> dict[str, Any]:
    """Of the job, in the file that the ps are given."""
    name = volume_of(job_of(objects, "ps"), "configMap")["name"]
    return tomllib.loads(config_map(objects, name)["job.toml"])


def expanded(word: str, environment: dict[str, str]) -> str:
    """As Kubernetes expands a word of a command."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)


def commands(objects: list[Object], job: Object, folder: Path) -> Iterator[list[str]]:
    """The command lines of its pods; where a ConfigMap is mounted, its files are in the folder."""
    container, mounted = container_of(job), {}
    for volume in pod_of(job)["volumes"]:
        if "configMap" in volume:
            (where,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume["name"]]
            mounted[where] = folder
            for name, text in config_map(objects, volume["configMap"]["name"]).items():
                (folder / name).write_text(text)
    environment = {}
    for source in container.get("envFrom", ()):
        environment |= config_map(objects, source["configMapRef"]["name"])
    for index in range(job["spec"]["completions"]):
        known = {**environment, "JOB_COMPLETION_INDEX": str(index)}
        words = [expanded(word, known) for word in args_of(job)]
        for where, there in mounted.items():
            words = [word.replace(where, str(there)) for word in words]
        yield ["psruntime", *words]
