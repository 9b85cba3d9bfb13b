#!/usr/bin/env python3
"""Fetches the libraries of the dashboard from npm, and writes them into `vendor/`.

Each package has a version and the checksum that npm publishes; another package is refused. Files
are changed only as `FILES` says: the broker serves them without a build, so a file that imports
another one names its path. `vendor/SHA256SUMS` has the sums of the results, which a test of the
crate `quelea` compares.
"""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENDOR = HERE / "vendor"

# Name, version and checksum.
PACKAGES = {
    "htm": (
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
    ),
    "mqtt": (
        "5.16.0",
        "sha512-G0VsEtuJz5sJUgZJaaADMVfW7SIFPzkIuHR+d6rk+tBeSwdCfd9BaIRycRfd2AbyFDEmLlFM+SDQeti/+IbOnw==",
    ),
    "preact": (
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
    ),
    "uplot": (
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
    ),
}

# File here: package, file there, and texts that are replaced (none: the text is appended).
FILES = {
    "preact.js": ("preact", "dist/preact.mjs", [("//# sourceMappingURL=preact.mjs.map", "")]),
    "hooks.js": (
        "preact",
        "hooks/dist/hooks.mjs",
        [('from"preact"', 'from"./preact.js"'), ("//# sourceMappingURL=hooks.mjs.map", "")],
    ),
    "htm.js": ("htm", "dist/htm.module.js", []),
    "uplot.js": ("uplot", "dist/uPlot.iife.min.js", [("", "export default uPlot;")]),
    "uplot.css": ("uplot", "dist/uPlot.min.css", []),
    "mqtt.js": ("mqtt", "dist/mqtt.esm.js", []),
    "LICENSE-preact": ("preact", "LICENSE", []),
    "LICENSE-htm": ("htm", "LICENSE", []),
    "LICENSE-uplot": ("uplot", "LICENSE", []),
    "LICENSE-mqtt": ("mqtt", "LICENSE.md", []),
}


def fetch(name, version, integrity):
    """The files of a package: name to bytes."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"],
            cwd=directory,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (packed,) = Path(directory).iterdir()
        data = packed.read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != integrity:
        raise SystemExit(f"{name}@{version}: the checksum is {found}, not {integrity}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile():
                files[member.name.split("/", 1)[1]] = archive.extractfile(member).read()
    return files


def main():
    fetched = {name: fetch(name, *pinned) for name, pinned in PACKAGES.items()}
    VENDOR.mkdir(exist_ok=True)
    sums = []
    for name, (package, source, changes) in sorted(FILES.items()):
        text = fetched[package][source].decode()
        for old, new in changes:
            if not old:
                text = text.rstrip() + "\n" + new
                continue
            if text.count(old) != 1:
                raise SystemExit(f"{package}: {source} has {text.count(old)} times {old!r}")
            text = text.replace(old, new)
        data = (text.rstrip() + "\n").encode()
        (VENDOR / name).write_bytes(data)
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    (VENDOR / "SHA256SUMS").write_text("".join(sums))
    print(json.dumps({name: version for name, (version, _) in PACKAGES.items()}))


if __name__ == "__main__":
    main()
