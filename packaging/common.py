"""What all scripts of this folder share: version, commit, programs, and what they link."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target/release-files"
SHELLS = ("bash", "zsh", "fish")
# Installed as `quelea-flock`: Linux has another `flock`.
PROGRAMS = {"quelea": "quelea", "flock": "quelea-flock"}
# `e_machine` of an ELF header: names in archives, in Debian and in images.
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


def output(*command, **options):
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, **options
    ).stdout


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def commit():
    """The commit, with a `+` if the work tree differs from it."""
    changed = output("git", "status", "--porcelain", "--untracked-files=no").strip()
    return output("git", "rev-parse", "HEAD").strip() + ("+" if changed else "")


def epoch():
    """Seconds of the commit: the time of all files, so that two builds give the same bytes."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output("git", "log", "-1", "--format=%ct").strip())


def package_version():
    """The version for packages: an unreleased state sorts before its release."""
    number = version()
    tags = output("git", "tag", "--points-at", "HEAD").split()
    if f"v{number}" in tags and not commit().endswith("+"):
        return number
    stamp = output("git", "log", "-1", "--format=%cd", "--date=format:%Y%m%d%H%M").strip()
    return f"{number}~{stamp}.{commit()[:8]}"


def machine(binary):
    """The machine of an ELF file, as archives name it and as Debian does."""
    head = binary.read_bytes()[:20]
    number = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or number not in MACHINES:
        raise SystemExit(f"{binary}: no program for x86-64 or arm64")
    return MACHINES[number]


def is_static(binary):
    return "INTERP" not in output("readelf", "--program-headers", "--wide", binary)


def strip(binary, target):
    """Copies a program without its debug information."""
    tool = "strip" if machine(binary)[0] == os.uname().machine else "llvm-strip"
    if shutil.which(tool) is None:
        shutil.copyfile(binary, target)
    else:
        subprocess.run([tool, "--remove-section=.comment", "-o", target, binary], check=True)
    target.chmod(0o755)


def pages():
    """The pages for users by path, for packages. Links to what is not among them are plain text."""
    sys.path.append(str(ROOT / "packaging/site"))
    from build import staged

    chosen = {str(page.relative_to(ROOT)) for page in (ROOT / "docs/use").glob("*.md")}
    return {page: staged(page, chosen, chosen, set()) for page in sorted(chosen)}


def metadata():
    """`cargo metadata`, with the crates of other platforms left out."""
    return json.loads(
        output(
            "cargo", "metadata", "--locked", "--format-version=1",
            "--filter-platform=x86_64-unknown-linux-gnu",
        )
    )


def linked(data, program):
    """The packages that are linked into a program, by ID: no tests, no build scripts."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    start = next(id for id in data["workspace_members"] if packages[id]["name"] == program)
    found, waiting = {}, [start]
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        found[id] = packages[id]
        for dependency in nodes[id]["deps"]:
            is_macro = any(
                "proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"]
            )
            if not is_macro and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return found


def dependencies_of(data, id, among):
    node = next(node for node in data["resolve"]["nodes"] if node["id"] == id)
    return sorted({dependency["pkg"] for dependency in node["deps"]} & among.keys())
