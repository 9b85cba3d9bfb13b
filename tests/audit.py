#!/usr/bin/env python3
"""Audits what others wrote and we build in: licences, bans, duplicates, sources, advisories.

`tests/audit.py` runs cargo-deny with `deny.toml`. The database of advisories comes from the network.
Where it is not available, that check is reported as not done and the others decide; `--strict` makes
it a failure. The last line is `audit: N passed, N failed, N not done`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# `tests/setup lint` installs it.
CARGO_DENY = ROOT / "tests/e2e/.venv/bin/cargo-deny"
CHECKS = ("licenses", "bans", "sources")
# To fetch the database.
FETCH_PATIENCE_SECS = 60
# What cargo-deny says when it has no database.
NO_DATABASE = re.compile(r"failed to (fetch|load|open|acquire|clone)|FETCH_HEAD", re.I)


def deny(check, patience_secs=None):
    """Exit code and all that was said; None in place of the code where it took too long."""
    command = [CARGO_DENY, "--log-level", "error", "check", "--hide-inclusion-graph", check]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=patience_secs, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, "the database did not come in time"
    return done.returncode, done.stdout


def check_advisories():
    """True or False as the advisories say, None where they cannot be had; and what was said."""
    code, said = deny("advisories", FETCH_PATIENCE_SECS)
    if code == 0:
        return True, said
    if code is None or NO_DATABASE.search(said):
        return None, said
    return False, said


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--strict", action="store_true", help="advisories have to be checked")
    options = arguments.parse_args()
    passed = failed = undone = 0
    for check in CHECKS:
        code, said = deny(check)
        print(f"audit: {check}: {'ok' if code == 0 else 'FAILED'}", flush=True)
        passed, failed = passed + (code == 0), failed + (code != 0)
        if code != 0:
            print(said)
    is_sound, said = check_advisories()
    if is_sound is None:
        undone += 1
        why = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
        print(f"audit: advisories: NOT CHECKED, their database cannot be had here: {why[:300]}")
    else:
        passed, failed = passed + is_sound, failed + (not is_sound)
        print(f"audit: advisories: {'ok' if is_sound else 'FAILED'}")
        if not is_sound:
            print(said)
    print(f"audit: {passed} passed, {failed} failed, {undone} not done")
    return 1 if failed or (options.strict and undone) else 0


if __name__ == "__main__":
    sys.exit(main())
