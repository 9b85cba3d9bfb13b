#!/usr/bin/env python3
"""Builds a release below `target/release-files`: archives, Debian packages, images, the Helm chart,
bills of materials, and checksums of all.

`packaging/release.py` refuses a changed work tree and a version without a heading in CHANGELOG.md.
`--draft` allows both, to try it. `--native` leaves out the static programs, and with them all of
arm64. `--programs FOLDER` takes programs that are built already, and implies `--native`. `--quick`
compresses little. At the end it prints the command that sets the tag.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import deb
import image
import licences
import sbom
import static
from common import OUT, PROGRAMS, ROOT, SHELLS, epoch, is_static, machine, metadata, output
from common import package_version, pages, strip, version

CHART = ROOT / "packaging/helm/quelea"
# Where the page of operations names them.
SERVICE_FILES = [f"packaging/deb/quelea.{end}" for end in ("service", "toml", "logrotate")]
# The processor of the static programs that are packaged as well: this machine's are linked to glibc.
FOREIGN = "aarch64-unknown-linux-musl"


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


def archive(program, programs, native, number, data, out, quick):
    """Packs a program with what belongs to it; the path of the archive."""
    binary = programs / program
    installed = PROGRAMS[program]
    kind = "linux-static" if is_static(binary) else "linux"
    name = f"{installed}-{number}-{machine(binary)[0]}-{kind}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        (folder / "completions").mkdir(parents=True)
        (folder / "man1").mkdir()
        strip(binary, folder / installed)
        # A program of this machine, under the name that its pages show.
        source = Path(scratch) / "native" / installed
        source.parent.mkdir()
        source.symlink_to((native / program).resolve())
        for shell in SHELLS:
            text = output(source, "completions", shell)
            (folder / "completions" / f"{installed}.{shell}").write_text(text)
        output(source, "man", folder / "man1")
        (folder / "THIRD-PARTY-LICENCES").write_text(licences.text(program, data))
        for file in ("LICENSE", "CHANGELOG.md", "README.md"):
            shutil.copyfile(ROOT / file, folder / file)
        if program == "quelea":
            (folder / "docs/use").mkdir(parents=True)
            for page, text in pages().items():
                (folder / page).write_text(text)
            (folder / "packaging/deb").mkdir(parents=True)
            for file in SERVICE_FILES:
                shutil.copyfile(ROOT / file, folder / file)
        path = out / f"{name}.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=1 if quick else 9) as tar:
            tar.add(folder, arcname=name, filter=without_builder)
    return path


def without_builder(info):
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = epoch()
    return info


def chart(number, out):
    """Packs the Helm chart; its path, or nothing if there is no Helm."""
    built = subprocess.run(
        [ROOT / "tests/helm"], stdout=subprocess.PIPE, text=True, check=False
    )
    if built.returncode != 0:
        print("release: no Helm, so no chart", file=sys.stderr)
        return []
    # The versions of charts have no tilde.
    number = number.replace("~", "-")
    command = ["package", CHART, "--destination", out, "--version", number, "--app-version", number]
    subprocess.run([built.stdout.strip(), *command], stdout=subprocess.DEVNULL, check=True)
    return [out / f"quelea-{number}.tgz"]


def artefacts(native, others, out, quick):
    """Writes all artefacts of the programs in these folders; their paths."""
    number, data = package_version(), metadata()
    for programs in [native, *others]:
        for program in PROGRAMS:
            yield archive(program, programs, native, number, data, out, quick)
    for programs in [native, *(folder for folder in others if FOREIGN in folder.parts)]:
        for program in PROGRAMS:
            yield deb.build(program, programs, native, f"{number}-1", data, out, quick)
        yield image.write(programs / "quelea", number, out)
    for program, installed in PROGRAMS.items():
        path = out / f"{installed}-{number}.cdx.json"
        path.write_text(json.dumps(sbom.bill(program, data), indent=1) + "\n")
        yield path
    yield from chart(number, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", action="store_true", help="of an unfinished version")
    parser.add_argument("--native", action="store_true", help="without static programs")
    parser.add_argument("--programs", type=Path, help="folder of programs that are built already")
    parser.add_argument("--quick", action="store_true", help="compress little, for tests")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    number = version()
    found = list(faults(number))
    for fault in found:
        print(f"release: {fault}", file=sys.stderr)
    if found and not args.draft:
        return 1
    native, others = args.programs, []
    if native is None:
        packages = [word for program in PROGRAMS for word in ("-p", program)]
        command = ["cargo", "build", "--release", "--locked", "--bins", *packages]
        subprocess.run(command, cwd=ROOT, check=True)
        native = ROOT / "target/release"
        if not args.native:
            others = [static.build(target, "release") for target in static.TARGETS]
    args.out.mkdir(parents=True, exist_ok=True)
    paths = list(artefacts(native.resolve(), others, args.out, args.quick))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (args.out / "SHA256SUMS").write_text("".join(sums))
    for path in paths:
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    print(output(native.resolve() / "quelea", "--version").strip())
    print(f"release: git tag -s v{number} -m 'Quelea {number}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
