#!/usr/bin/env python3
"""Checks everything that can be said of the sources without running them.

`tests/lint.py` runs, in this order: formatting, spelling (typos), the rules of the house (links,
plain words, stale documents; crate xtask), clippy, with and without features, the documentation
of the code, and the licences, sources and advisories of dependencies (cargo-deny). The last line is
`lint: N passed, N failed`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPOS = ROOT / "tests/e2e/.venv/bin/typos"

# What is checked, the command, and how to mend what it finds.
CHECKS = [
    ("formatting", ["cargo", "fmt", "--all", "--check"], "cargo fmt"),
    ("spelling", [str(TYPOS), "--format", "brief", "."], "mend the word, or name it in typos.toml"),
    ("house", ["cargo", "test", "-q", "-p", "xtask"], "see the message"),
    (
        "clippy",
        ["cargo", "clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"],
        "mend the warning",
    ),
    # With the example, dependencies have the features that they have above: only `quelea` is compiled.
    (
        "features",
        ["cargo", "clippy", "-q", "--workspace", "--no-default-features", "--lib", "--bins",
         "--example", "kafka_send", "--", "-D", "warnings"],
        "mend what a build without the features `cli` and `import` lacks",
    ),  # fmt: skip
    (
        "documentation",
        ["cargo", "doc", "-q", "--workspace", "--no-deps"],
        "mend the link or the text",
    ),
    ("dependencies", ["python3", "tests/audit.py"], "see deny.toml"),
]


def run(name, command, remedy):
    started = time.monotonic()
    environment = dict(os.environ, RUSTDOCFLAGS="-D warnings", CARGO_TERM_COLOR="never")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    took = time.monotonic() - started
    if done.returncode == 0:
        print(f"lint: {name}: passed, {took:.0f} s", flush=True)
        return True
    print(f"{done.stdout}\nlint: {name}: FAILED, {took:.0f} s: {remedy}", flush=True)
    return False


def main():
    wanted = sys.argv[1:] or [name for name, _, _ in CHECKS]
    known = {name for name, _, _ in CHECKS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"unknown check {unknown[0]}: known are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    results = []
    for name, command, remedy in CHECKS:
        if name not in wanted:
            continue
        results.append(run(name, command, remedy))
    print(f"lint: {results.count(True)} passed, {results.count(False)} failed")
    return 1 if False in results else 0


if __name__ == "__main__":
    sys.exit(main())
