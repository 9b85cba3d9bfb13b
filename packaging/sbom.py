#!/usr/bin/env python3
"""Prints the bill of materials (CycloneDX 1.6, JSON) of a program: the crates that it links.

`packaging/sbom.py quelea|flock`. The checksums are those of Cargo.lock. Two calls at the same
commit print the same bytes.
"""

import datetime
import json
import sys
import tomllib
import uuid

from common import PROGRAMS, ROOT, commit, dependencies_of, epoch, linked, metadata
from common import package_version


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {
        (package["name"], package["version"]): package["checksum"]
        for package in lock["package"]
        if "checksum" in package
    }


def component(package, sums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        # Older manifests separate alternatives by a slash.
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
    }
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["source"] is None:
        # Crates of this workspace are published nowhere.
        del entry["purl"]
    return entry


def bill(program, data=None):
    data = data or metadata()
    packages = linked(data, program)
    root = next(id for id, package in packages.items() if package["name"] == program)
    sums = checksums()
    name, number = PROGRAMS[program], package_version()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{name} {commit()}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch(), datetime.UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": reference(packages[root]),
                "name": name,
                "version": number,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "commit", "value": commit()}],
            },
        },
        "components": sorted(
            (component(package, sums) for id, package in packages.items() if id != root),
            key=lambda entry: entry["bom-ref"],
        ),
        "dependencies": sorted(
            (
                {
                    "ref": reference(package),
                    "dependsOn": [
                        reference(packages[d]) for d in dependencies_of(data, id, packages)
                    ],
                }
                for id, package in packages.items()
            ),
            key=lambda entry: entry["ref"],
        ),
    }


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1]), indent=1))
