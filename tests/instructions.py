#!/usr/bin/env python3
"""Counts the instructions of the hot path with callgrind and prints a table.

Each work is done N and then 2N times; the difference over N is the cost of one, without start-up.
Counts do not depend on what else the machine is doing. Needs valgrind.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKS = [
    ("decode a PUBLISH of 64 B, 3.1.1, QoS 0", "decode", 20_000),
    ("encode it", "encode", 20_000),
    ("publish to 1 subscriber, 3.1.1, QoS 0", "fan-311-0-1", 5_000),
    ("publish to 10", "fan-311-0-10", 2_000),
    ("publish to 1,000", "fan-311-0-1000", 50),
    ("publish to 1 subscriber, 5, QoS 1, both acknowledged", "fan-5-1-1", 5_000),
    ("publish to 10", "fan-5-1-10", 2_000),
    ("publish to 1,000", "fan-5-1-1000", 50),
]


def instructions(binary, work, count):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, binary, work, str(count)], capture_output=True, text=True, check=True
    )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def main():
    build = ["cargo", "build", "--profile", "quick", "-p", "broker", "--example", "instructions"]
    subprocess.run(build, cwd=ROOT, check=True)
    binary = ROOT / "target/quick/examples/instructions"
    print("| work | instructions |\n|---|---|")
    for title, work, count in WORKS:
        try:
            once, twice = (instructions(binary, work, times) for times in (count, 2 * count))
        except FileNotFoundError:
            sys.exit("valgrind is not installed: apt-get install valgrind")
        print(f"| {title} | {(twice - once) / count:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
