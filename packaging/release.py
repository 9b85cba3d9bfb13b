#!/usr/bin/env python3
"""Builds a release: archives of `quelea` and `flock` with checksums, below `target/release-files`.

`packaging/release.py` refuses a changed work tree and a version without a heading in CHANGELOG.md.
`--draft` allows both, to try it. Each archive has the program, its completions, the licence and
the changelog. At the end it prints the command that sets the tag.
"""

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target/release-files"
SHELLS = ("bash", "zsh", "fish")
# Installed as `quelea-flock`: Linux has another `flock`.
PROGRAMS = {"quelea": "quelea", "flock": "quelea-flock"}


def output(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def faults(number):
    """What keeps this from being a release."""
    changed = output("git", "status", "--porcelain", "--untracked-files=no").strip()
    if changed:
        yield f"the work tree has changes: commit them first\n{changed}"
    heading = re.search(
        rf"^## {re.escape(number)}(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    if not heading:
        yield f"CHANGELOG.md has no heading `## {number}`"
    elif not re.search(r"\d{4}-\d{2}-\d{2}", heading[1]):
        yield f"CHANGELOG.md: the heading `## {number}` has no date (YYYY-MM-DD)"


def archive(program, number, system):
    """Packs a program; the path of the archive."""
    name = f"{PROGRAMS[program]}-{number}-{system}"
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "completions").mkdir(parents=True)
    binary = folder / PROGRAMS[program]
    shutil.copy2(ROOT / "target/release" / program, binary)
    for shell in SHELLS:
        text = output(str(binary), "completions", shell)
        (folder / "completions" / f"{PROGRAMS[program]}.{shell}").write_text(text)
    for file in ("LICENSE", "CHANGELOG.md", "README.md"):
        shutil.copy2(ROOT / file, folder / file)
    path = OUT / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=name)
    shutil.rmtree(folder)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", action="store_true", help="of an unfinished version")
    draft = parser.parse_args().draft
    number = version()
    found = list(faults(number))
    for fault in found:
        print(f"release: {fault}", file=sys.stderr)
    if found and not draft:
        return 1
    subprocess.run(
        ["cargo", "build", "--release", "--locked", "-p", "quelea", "-p", "flock", "--bins"],
        cwd=ROOT,
        check=True,
    )
    system = f"{platform.machine()}-{platform.system().lower()}"
    OUT.mkdir(parents=True, exist_ok=True)
    paths = [archive(program, number, system) for program in PROGRAMS]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (OUT / "SHA256SUMS").write_text("".join(sums))
    for path in paths:
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    print(output(str(ROOT / "target/release/quelea"), "--version").strip())
    print(f"release: git tag -s v{number} -m 'Quelea {number}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
