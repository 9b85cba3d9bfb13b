#!/usr/bin/env python3
"""Prints the licences of the libraries that a program links, with their texts.

`packaging/licences.py quelea|flock`. A text that several libraries share is printed once.
"""

import re
import sys
from pathlib import Path

from common import linked, metadata

NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def texts_of(package):
    """The licence files of a package, as it was published."""
    folder = Path(package["manifest_path"]).parent
    for file in sorted(folder.iterdir()):
        if file.is_file() and NAMES.match(file.name):
            yield file.read_text(errors="replace").strip()


def text(program, data=None):
    data = data or metadata()
    foreign = [p for p in linked(data, program).values() if p["source"] is not None]
    users, index = {}, []
    for package in sorted(foreign, key=lambda p: (p["name"], p["version"])):
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        if licence is None:
            raise SystemExit(f"{name}: its manifest names no licence")
        index.append(f"{name}: {licence}")
        for one in texts_of(package):
            users.setdefault(one, []).append(name)
    parts = [f"Libraries that {program} links, and their licences:\n\n" + "\n".join(index)]
    for one, names in users.items():
        parts.append(f"{'=' * 78}\nThe licence of {', '.join(names)}:\n\n{one}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(text(sys.argv[1]), end="")
