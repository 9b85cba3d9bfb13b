#!/usr/bin/env python3
"""Counts which functions of the house a message calls, and how often, under callgrind.

`lab/calls.py` prints a row for each way of a message; with `--list WORK` it lists the functions
of one, those that are called most first. The works are those of `tests/instructions.py`.

Nothing is inlined, so that what the source calls is what is counted. Closures count as part of
the function that they stand in; what is called less than once in two messages does not count.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from instructions import PROGRAMS  # noqa: E402

ROUNDS = 300
WAYS = [
    ("QoS 0, same shard", "fan-311-0-1"),
    ("QoS 0, second shard", "other-311-0-1"),
    ("QoS 1, same shard", "fan-5-1-1"),
    ("QoS 1, kept session", "kept-1"),
    ("QoS 1, group in memory", "group-1"),
    ("QoS 1, kept group", "kept_group-1"),
]
HOUSE = re.compile(r"^<?&?(mut )?(broker|codec|policy|session|storage|topic)::")
# Where clients are looked up.
SLOTS = "crates/core/broker/src/parts/slots.rs"
LOOK_UPS = re.compile(
    r"clients::slots::<impl broker::clients::Sessions>::(get|get_mut|with_index)$"
)


def build():
    crate, example = PROGRAMS["broker"]
    command = ["cargo", "build", "-q", "-p", crate, "--example", example]
    environment = dict(os.environ, CARGO_PROFILE_DEV_OPT_LEVEL="0")
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def calls_of(profile):
    """How often each function of the house is called in a callgrind profile."""
    calls = Counter()
    callee = ""
    for line in profile.splitlines():
        if line.startswith("cfn="):
            callee = re.sub(r"(::\{\{closure\}\})+$", "", line[4:])
            is_closure = callee != line[4:]
        elif line.startswith("calls=") and HOUSE.match(callee) and not is_closure:
            calls[callee] += int(line[6:].split()[0])
    return calls


def profile(work, rounds):
    binary = ROOT / "target/debug/examples" / PROGRAMS["broker"][1]
    with tempfile.NamedTemporaryFile() as out:
        options = ["--compress-strings=no", "--compress-pos=no", f"--callgrind-out-file={out.name}"]
        command = ["valgrind", "--tool=callgrind", *options, binary, work, str(rounds)]
        subprocess.run(command, capture_output=True, check=True)
        return calls_of(Path(out.name).read_text())


def per_message(work):
    once, twice = profile(work, ROUNDS), profile(work, 2 * ROUNDS)
    calls = {name: (twice[name] - once[name]) / ROUNDS for name in twice}
    return {name: count for name, count in calls.items() if count >= 0.5}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", metavar="WORK", help="list the functions of one work")
    work = parser.parse_args().list
    build()
    if work:
        for name, count in sorted(per_message(work).items(), key=lambda call: -call[1]):
            print(f"{count:6.1f}  {name}")
        return
    print("| way | functions | calls | look-ups of a client |\n|---|---|---|---|")
    for title, work in WAYS:
        calls = per_message(work)
        looks = sum(count for name, count in calls.items() if LOOK_UPS.search(name))
        if looks == 0:
            sys.exit(f"{title}: no look-up of a client was counted: LOOK_UPS must name {SLOTS}")
        print(f"| {title} | {len(calls)} | {sum(calls.values()):,.0f} | {looks:.0f} |")


if __name__ == "__main__":
    main()
