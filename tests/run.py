#!/usr/bin/env python3
"""Runs the test suites one after another and ends with one line: `N passed, N failed`.

`tests/run.py` runs all of them; `tests/run.py SUITE...` only those named. `--list` names them.
`--setup` installs what they need (`tests/setup`) while the first suite compiles.
Every suite is a command with its own runner; this file only counts what they report, and a suite
that ends with an error without having counted a failure counts as one failure itself.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ports import defaults_taken

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "tests/e2e/.venv/bin"
QUELEA = ROOT / "target/debug/quelea"
PAGES = ROOT / "tests/pages/.venv/bin/python"
KAFKA = ROOT / "tests/kafka/.venv/bin/python"
PYTEST = [str(VENV / "python"), "-m", "pytest", "-q"]
# End-to-end tests wait most of the time: four files at once use a third of a core, a siege uses one.
WAITING = ["-n", "5", "--dist", "loadfile"]
# Packages are compressed.
BUSY = ["-n", "3", "--dist", "loadfile"]

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed")
PYTEST_RESULT = re.compile(r"(\d+) (passed|failed|errors?)\b")
NODE_RESULT = re.compile(r"^# (pass|fail) (\d+)")
CLUSTER_RESULT = re.compile(r"^cluster: (\d+) passed, (\d+) failed")
GUARD_RESULT = re.compile(r"^(?:instructions|lint|tutorials): (\d+) passed, (\d+) failed")


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
    # Examples that are named would become test programs, so none is: all of them take 7 s.
    ("build", ["cargo", "test", "--workspace", "--no-run"], count_nothing),
    # With a server that others wrote. All crates are named, so that nothing is built again. Later it
    # would wait for the lock of the cargo that lints beside.
    (
        "foreign",
        ["cargo", "test", "--workspace", "--test", "blocking", "--", "--ignored"],
        count_cargo,
    ),
    ("unit", ["python3", "tests/units.py"], count_cargo),
    ("e2e", [*PYTEST, *WAITING, "--durations=10", "tests/e2e"], count_pytest),
    (
        "e2e-js",
        ["node", "--test", "--test-reporter=tap", "tests/e2e/mqttjs.test.js"],
        count_node,
    ),
    # The dashboard in Chromium.
    ("pages", [str(PAGES), "-m", "pytest", "-q", "--durations=5", "tests/pages"], count_pytest),
    ("tools", [*PYTEST, "tests/tools"], count_pytest),
    ("tutorials", ["python3", "tests/tutorials/run.py"], count_guard),
    # Installs packages of the debug build in a root directory of its own: needs root.
    ("packages", [*PYTEST, *BUSY, "tests/packages"], count_pytest),
    # Three brokers on three NATS servers; `make cluster-test` is the long form.
    ("cluster", ["python3", "tests/cluster/rounds.py", "--short"], count_cluster),
    # The client of Kafka on a real Kafka. Without Java and Maven all its tests are skipped.
    ("kafka", [str(KAFKA), "-m", "pytest", "-q", "-rs", "--durations=5", "tests/kafka"], count_pytest),
    # The hot path in instructions, against the committed baseline: see its own help.
    ("instructions", ["python3", "tests/instructions.py", "--check"], count_guard),
    ("lint", ["python3", "tests/lint.py"], count_guard),
]

# Tests of flock and of the broker's processes wait for real time: on a machine with two cores,
# two at a time would leave both idle.
TEST_THREADS_MIN = 4

# Suites that begin with another one, if that is wanted, as tests wait for real time: which, and how
# nice they are. They are reported in their own turn. The tutorials have a network of their own.
BESIDE = {
    "lint": ("unit", 19),
    "tutorials": ("e2e", 0),
    "packages": ("pages", 0),
    "kafka": ("pages", 0),
}
# Suites that need it find it done, or do the rest.
BUILD_OF_GUARD = ["python3", "tests/instructions.py", "--build"]
# The suite `unit` runs them as well.
LINT_WITHOUT_UNITS = [
    "formatting", "spelling", "clippy", "features", "documentation", "dependencies",
]  # fmt: skip
# Suites that use nothing that `build` makes.
WITHOUT_BUILD = {"lint"}


def begin(command, output, nice=0):
    environment = dict(os.environ, QUELEA_BIN=str(QUELEA), CARGO_TERM_COLOR="never")
    environment.setdefault("RUST_TEST_THREADS", str(max(os.cpu_count() or 1, TEST_THREADS_MIN)))
    return subprocess.Popen(
        ["nice", "-n", str(nice), *command],
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def begin_beside(name, wanted, beside):
    """Starts what can be done while the suite `name` runs."""
    for suite, command, _ in SUITES:
        if suite in wanted and BESIDE.get(suite, (None,))[0] == name:
            log = tempfile.TemporaryFile("w+", errors="replace")
            more = LINT_WITHOUT_UNITS if suite == "lint" else []
            beside[suite] = (begin([*command, *more], log, BESIDE[suite][1]), log)
    if name == "e2e" and "instructions" in wanted:
        beside["build of the guard"] = (begin(BUILD_OF_GUARD, subprocess.DEVNULL, nice=19), None)


def lines_of(name, command, beside):
    """What the suite prints, line by line; its exit code is returned at the end."""
    if name == "instructions" and "build of the guard" in beside:
        beside["build of the guard"][0].wait()
    if name in beside:
        child, log = beside[name]
        child.wait()
        log.seek(0)
        yield from log
    else:
        child = begin(command, subprocess.PIPE)
        yield from child.stdout
    return child.wait()


def run_suite(name, command, count, beside):
    """Runs one suite, passing its output through; returns (passed, failed, seconds)."""
    print(f"\n=== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    passed = failed = 0
    lines = lines_of(name, command, beside)
    while True:
        try:
            line = next(lines)
        except StopIteration as end:
            if end.value != 0 and failed == 0:
                failed = 1
            break
        sys.stdout.write(line)
        sys.stdout.flush()
        more = count(line.rstrip())
        passed += more[0]
        failed += more[1]
    took = time.monotonic() - started
    print(f"=== {name}: {passed} passed, {failed} failed, {took:.0f} s", flush=True)
    return (passed, failed, took)


class Setup:
    """`tests/setup` at work, if it is wanted: what it prints comes when it has ended."""

    def __init__(self, is_wanted, names):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.child = begin(["tests/setup", *names], self.log) if is_wanted else None

    def wait(self):
        """Whether all is there."""
        if self.child is None:
            return True
        code, self.child = self.child.wait(), None
        self.log.seek(0)
        print(self.log.read(), end="", flush=True)
        return code == 0


def main():
    names = [name for name in sys.argv[1:] if name != "--setup"]
    if names == ["--list"]:
        print("\n".join(name for name, _, _ in SUITES))
        return 0
    known = {name for name, _, _ in SUITES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown suite {unknown[0]}: known are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    wanted = set(names) or known
    if wanted - WITHOUT_BUILD:
        wanted |= {"build"}
    setup = Setup("--setup" in sys.argv, names)
    results, beside = {}, {}
    with defaults_taken():
        for name, command, count in SUITES:
            if name not in wanted:
                continue
            if name != "build" and not setup.wait():
                print("setup failed", file=sys.stderr)
                return 1
            begin_beside(name, wanted, beside)
            results[name] = run_suite(name, command, count, beside)
            if name == "build" and results[name][1]:
                break
    print("\nsuites:")
    for name, (passed, failed, took) in results.items():
        print(f"  {took:5.0f} s  {name}: {passed} passed, {failed} failed")
    failures = [name for name, (_, failed, _) in results.items() if failed]
    if failures:
        print(f"failed: {', '.join(failures)}")
    passed, failed = (sum(result[place] for result in results.values()) for place in (0, 1))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
