"""Prints an SBOM in CycloneDX's JSON: a project, what pip has installed for it, and what needs what.

    python tools/sbom.py psruntime[examples] EPOCH SITE_PACKAGES REPORTS...

The reports are those of `pip install --report` for the environment with these site-packages.  Each component has a
package URL, and the hash of the file that pip installed.  EPOCH is the time of the SBOM in seconds: the output
depends on the arguments and their files alone.  Needs cyclonedx-python-lib.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LONGEST_NAME = 80  # of a license; the field may have its whole text


@dataclass(frozen=True)
class Environment:
    packages: dict[str, Distribution]
    sha256: dict[str, str]  # of the files that pip installed

    @classmethod
    def read(cls, site_packages: str, reports: Collection[str]) -> Environment:
        items = [item for report in reports for item in json.loads(Path(report).read_text())["install"]]
        return cls(
            {canonicalize_name(found.metadata["Name"]): found for found in distributions(path=[site_packages])},
            {
                canonicalize_name(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
                for item in items
            },
        )

    def needs(self, name: str, extras: Collection[str]) -> Iterator[str]:
        """The packages that one needs here, with these extras of it."""
        for needed in map(Requirement, self.packages[name].requires or ()):
            if not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                yield canonicalize_name(needed.name)

    def component(self, name: str) -> Component:
        fields = self.packages[name].metadata
        purl = PackageURL("pypi", name=name, version=fields["Version"])
        given = fields["License-Expression"] or fields["License"] or ""
        return Component(
            name=name,
            version=fields["Version"],
            description=fields["Summary"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=purl.to_string(),
            licenses=[LicenseFactory().make_from_string(given)] if 0 < len(given) <= LONGEST_NAME else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=self.sha256[name])],
        )


def sbom(project: Requirement, epoch: int, environment: Environment) -> Bom:
    """Of what the project needs, without anything else that is installed.  Raises KeyError if a package is missing."""
    root = canonicalize_name(project.name)
    edges = {root: set(environment.needs(root, project.extras))}
    while new := set().union(*edges.values()) - set(edges):
        edges |= {name: set(environment.needs(name, ())) for name in new}
    components = {name: environment.component(name) for name in sorted(edges)}
    bom = Bom(components=[components[name] for name in components if name != root])
    bom.metadata.component = components[root]
    bom.metadata.tools.components.add(this_component())
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(environment.sha256[name] for name in components))
    for name, names in edges.items():
        bom.register_dependency(components[name], [components[each] for each in names])
    return bom


if __name__ == "__main__":
    project, epoch, site_packages, *reports = sys.argv[1:]
    made = sbom(Requirement(project), int(epoch), Environment.read(site_packages, reports))
    print(JsonV1Dot6(made).output_as_string(indent=2))
