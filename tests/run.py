#!/usr/bin/env python3
"""Runs the test suites one after another and ends with one line: `N passed, N failed`.

`tests/run.py` runs all of them; `tests/run.py SUITE...` only those named. `--list` names them.
Every suite is a command with its own runner; this file only counts what they report, and a suite
that ends with an error without having counted a failure counts as one failure itself.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from ports import defaults_taken

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "tests/e2e/.venv/bin"
QUELEA = ROOT / "target/debug/quelea"
PYTEST = [str(VENV / "python"), "-m", "pytest", "-q"]
# End-to-end tests wait most of the time: three files at once keep two cores busy.
PROCESSES = ["-n", "3", "--dist", "loadfile"]

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed")
PYTEST_RESULT = re.compile(r"(\d+) (passed|failed|errors?)\b")
NODE_RESULT = re.compile(r"^# (pass|fail) (\d+)")
CLUSTER_RESULT = re.compile(r"^cluster: (\d+) passed, (\d+) failed")
GUARD_RESULT = re.compile(r"^instructions: (\d+) passed, (\d+) failed")


def count_cargo(line):
    found = CARGO_RESULT.match(line)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def count_pytest(line):
    if not re.search(r" in \d+\.\d+s", line):
        return (0, 0)
    passed = failed = 0
    for number, what in PYTEST_RESULT.findall(line):
        if what == "passed":
            passed += int(number)
        else:
            failed += int(number)
    return (passed, failed)


def count_node(line):
    found = NODE_RESULT.match(line)
    if not found:
        return (0, 0)
    return (int(found[2]), 0) if found[1] == "pass" else (0, int(found[2]))


def count_guard(line):
    found = GUARD_RESULT.match(line)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def count_cluster(line):
    found = CLUSTER_RESULT.match(line)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def count_nothing(_line):
    return (0, 0)


# Name, command, what counts its results. The first suite builds everything that the others use,
# in one go: another selection of packages or targets would have other features, and compile again.
SUITES = [
    ("build", ["cargo", "test", "--workspace", "--no-run"], count_nothing),
    ("unit", ["python3", "tests/units.py"], count_cargo),
    ("e2e", [*PYTEST, *PROCESSES, "--durations=10", "tests/e2e"], count_pytest),
    (
        "e2e-js",
        ["node", "--test", "--test-reporter=tap", "tests/e2e/mqttjs.test.js"],
        count_node,
    ),
    ("tools", [*PYTEST, "tests/tools"], count_pytest),
    # Three brokers on three NATS servers; `make cluster-test` is the long form.
    ("cluster", ["python3", "tests/cluster/rounds.py", "--short"], count_cluster),
    # The hot path in instructions, against the committed baseline: see its own help.
    ("instructions", ["python3", "tests/instructions.py", "--check"], count_guard),
]

# Tests of flock and of the broker's processes wait for real time: on a machine with two cores,
# two at a time would leave both idle.
TEST_THREADS_MIN = 4

# What is built beside the end-to-end tests, which wait most of the time: the suite that needs it
# finds it there, or builds the rest.
BUILT_BESIDE = ["nice", "-n", "19", "python3", "tests/instructions.py", "--build"]


def build_beside():
    quiet = subprocess.DEVNULL
    return subprocess.Popen(BUILT_BESIDE, cwd=ROOT, stdout=quiet, stderr=quiet)


def run_suite(name, command, count):
    """Runs one suite, passing its output through; returns (passed, failed)."""
    print(f"\n=== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    environment = dict(os.environ, QUELEA_BIN=str(QUELEA), CARGO_TERM_COLOR="never")
    environment.setdefault("RUST_TEST_THREADS", str(max(os.cpu_count() or 1, TEST_THREADS_MIN)))
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    passed = failed = 0
    for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        more = count(line.rstrip())
        passed += more[0]
        failed += more[1]
    if child.wait() != 0 and failed == 0:
        failed = 1
    took = time.monotonic() - started
    print(f"=== {name}: {passed} passed, {failed} failed, {took:.0f} s", flush=True)
    return (passed, failed)


def main():
    names = sys.argv[1:]
    if names == ["--list"]:
        print("\n".join(name for name, _, _ in SUITES))
        return 0
    known = {name for name, _, _ in SUITES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown suite {unknown[0]}: known are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    wanted = {"build", *names} if names else known
    totals = [0, 0]
    failures = []
    beside = None
    with defaults_taken():
        for name, command, count in SUITES:
            if name not in wanted:
                continue
            if name == "e2e" and "instructions" in wanted:
                beside = build_beside()
            if name == "instructions" and beside:
                beside.wait()
            passed, failed = run_suite(name, command, count)
            totals[0] += passed
            totals[1] += failed
            if failed:
                failures.append(name)
                if name == "build":
                    break
    if failures:
        print(f"\nfailed: {', '.join(failures)}")
    print(f"{totals[0]} passed, {totals[1]} failed")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
