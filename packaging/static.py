#!/usr/bin/env python3
"""Builds programs that need no shared library, for x86-64 and arm64, with the C library musl.

`packaging/static.py [--profile release] [TARGET...]`. zig compiles the C parts; it comes from PyPI
into `target/zig`. `rustup` installs Rust's standard library of the target. The programs are in
`target/TARGET/PROFILE`.
"""

import argparse
import os
import subprocess
import sys

from common import PROGRAMS, ROOT, is_static

TARGETS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
TOOLS = ("cargo-zigbuild==0.24.1", "ziglang==0.17.1")
VENV = ROOT / "target/zig"


def install():
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_text() == " ".join(TOOLS):
        return
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *TOOLS], check=True)
    stamp.write_text(" ".join(TOOLS))


def build(target, profile):
    """The folder of the programs."""
    install()
    subprocess.run(["rustup", "target", "add", target], cwd=ROOT, check=True)
    packages = [word for program in PROGRAMS for word in ("-p", program)]
    subprocess.run(
        ["cargo", "zigbuild", "--locked", "--profile", profile, "--bins", "--target", target, *packages],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"},
        check=True,
    )
    folder = ROOT / "target" / target / ("debug" if profile == "dev" else profile)
    for program in PROGRAMS:
        if not is_static(folder / program):
            raise SystemExit(f"{folder / program} needs shared libraries")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    args = parser.parse_args()
    for target in args.targets or TARGETS:
        print(build(target, args.profile))


if __name__ == "__main__":
    main()
