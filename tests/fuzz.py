#!/usr/bin/env python3
"""Runs every fuzz target under fuzz/ for a while: `tests/fuzz.py [--seconds N] [TARGET...]`.

Needs a nightly toolchain and cargo-fuzz, and says so and fails when they are missing. Its last
line is `fuzz: N passed, N failed`; an input that made a target fail stays in fuzz/artifacts.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def targets():
    listed = subprocess.run(
        ["cargo", "+nightly", "fuzz", "list"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        sys.exit(f"fuzz: cannot list the targets: {listed.stderr.strip()}")
    return listed.stdout.split()


def ensure_tools():
    """Installs cargo-fuzz when it is missing; a nightly toolchain has to be there."""
    nightly = subprocess.run(["cargo", "+nightly", "--version"], capture_output=True)
    if nightly.returncode != 0:
        sys.exit("fuzz: a nightly toolchain is missing: rustup toolchain install nightly")
    if not shutil.which("cargo-fuzz"):
        print("fuzz: cargo install cargo-fuzz", flush=True)
        subprocess.run(["cargo", "install", "--locked", "--quiet", "cargo-fuzz"], check=True)


def write_seeds():
    """Puts the seeds of every target where libFuzzer looks for them, beside what it found."""
    seeds = ["cargo", "run", "--quiet", "-p", "quelea-fuzzing", "--example", "seeds"]
    subprocess.run(seeds, cwd=ROOT, check=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=int, default=600, help="per target")
    arguments.add_argument("targets", nargs="*")
    options = arguments.parse_args()
    ensure_tools()
    write_seeds()
    passed = failed = 0
    for target in options.targets or targets():
        print(f"fuzz: {target} for {options.seconds} s", flush=True)
        command = ["cargo", "+nightly", "fuzz", "run", target, "--"]
        limits = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=2048"]
        ended = subprocess.run(
            [*command, *limits], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if ended.returncode == 0:
            passed += 1
        else:
            failed += 1
            print(ended.stdout.decode(errors="replace")[-4000:])
    print(f"fuzz: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
