#!/usr/bin/env python3
"""Counts the instructions of the hot path under callgrind and guards them.

Without an argument: prints a table. `--check` compares with tests/instructions.json and fails where
a work costs more than 3 % above it. `--bless` writes that file anew.

Each work is done N and then 2N times; the difference over N is the cost of one, without start-up.
Where a work is a batch of messages it is divided by the messages of the batch.
Only what runs in our own binary is counted: the C library picks its memcpy by processor and changes
with the distribution. The counts are the same on every machine with the compiler, the profile and
the instruction set that the baseline names; elsewhere they are not compared, and it says so.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tests/instructions.json"
PROFILE = "release"
EXAMPLES = (ROOT / "target").resolve() / PROFILE / "examples"
TOLERANCE = 0.03

# The programs: crate and example.
PROGRAMS = {
    "broker": ("quelea-broker", "instructions"),
    "driver": ("quelea-driver", "turns"),
    "message": ("quelea-driver", "messages"),
}


@dataclass(frozen=True)
class Work:
    """One row: what a program is asked for, how often, and how many messages that is each time."""

    title: str
    name: str
    count: int
    program: str = "broker"
    messages: int = 1

    @property
    def key(self):
        """Its name in the baseline."""
        return self.name if self.program == "broker" else f"{self.program}-{self.name}"

    @property
    def binary(self):
        return EXAMPLES / PROGRAMS[self.program][1]


WORKS = [
    Work("decode a PUBLISH of 64 B, 3.1.1, QoS 0", "decode", 20_000),
    Work("encode it", "encode", 20_000),
    Work("publish to 1 subscriber, 3.1.1, QoS 0", "fan-311-0-1", 5_000),
    Work("publish to 10", "fan-311-0-10", 2_000),
    Work("publish to 1,000", "fan-311-0-1000", 50),
    Work("publish to 1 subscriber, 5, QoS 1, both acknowledged", "fan-5-1-1", 5_000),
    Work("publish to 10", "fan-5-1-10", 2_000),
    Work("publish to 1,000", "fan-5-1-1000", 50),
    Work("to a second shard, 3.1.1, QoS 0", "other-311-0-1", 5_000),
    Work("16 to a second shard", "other-311-0-16", 400, messages=16),
    Work("to a second shard, 5, QoS 1, both acknowledged", "other-5-1-1", 5_000),
    Work("16 to a second shard", "other-5-1-16", 400, messages=16),
    Work("to a kept session, 5, QoS 1, one commit", "kept-1", 5_000),
    Work("16 to a kept session in one commit", "kept-16", 400, messages=16),
    Work("to a shared group, 5, QoS 1, both acknowledged", "group-1", 5_000),
    Work("16 to a shared group", "group-16", 400, messages=16),
    Work("to a kept group, 5, QoS 1, one commit", "kept_group-1", 5_000),
    Work("16 to a kept group in one commit", "kept_group-16", 400, messages=16),
    Work("publish to 1 subscriber with a journal, 5, QoS 0", "stream-none-0-1-0", 5_000),
    Work("with a stream that does not match", "stream-vehicles/#-0-1-0", 5_000),
    Work("publish on another topic each time", "stream-none-0-2-0", 2_500, messages=2),
    Work("with a stream that does not match", "stream-vehicles/#-0-2-0", 2_500, messages=2),
    Work("publish to 1 subscriber with a journal, 5, QoS 1", "stream-none-1-1-0", 5_000),
    Work("with a stream that does not match", "stream-vehicles/#-1-1-0", 5_000),
    Work("publish on another topic each time", "stream-none-1-2-0", 2_500, messages=2),
    Work("with a stream that does not match", "stream-vehicles/#-1-2-0", 2_500, messages=2),
    Work("into a stream with 1 rule, 5, QoS 1, one commit", "stream-sensors/#-1-1-1", 5_000),
    Work("into a stream with 1,000 rules", "stream-sensors/#-1-1-1000", 5_000),
    Work("turn of a driver, 5, QoS 0", "1-0-1", 5_000, "driver"),
    Work("turn of a driver with 16", "1-0-16", 400, "driver", 16),
    Work("turns of a driver, 5, QoS 1, both acknowledged", "1-1-1", 5_000, "driver"),
    Work("turns of a driver with 16", "1-1-16", 400, "driver", 16),
    Work("turn with 1 of 4 shards busy, 5, QoS 0", "1-0-1-4-1", 5_000, "driver"),
    Work("turn with 1 of 16 shards busy", "1-0-1-16-1", 5_000, "driver"),
    Work("turn with 4 of 4 shards busy", "1-0-1-4-4", 2_000, "driver", 4),
    Work("turns with 1 of 16 shards busy, 5, QoS 1", "1-1-1-16-1", 5_000, "driver"),
    Work("16 to a second driver, 5, QoS 0", "2-0-16", 400, "driver", 16),
    Work("16 to a second driver, 5, QoS 1, both acknowledged", "2-1-16", 400, "driver", 16),
    Work("one message of 16 pairs in turn, 4 shards, 5, QoS 1", "paced-4-16-16", 3_200, "message"),
    Work("one pair with one in flight, 4 shards", "paced-4-1-1", 3_200, "message"),
    Work("one message to a shared group, 4 shards", "share-4-16-4", 3_200, "message"),
    Work("one message to a kept session, level disk, 1 shard", "disk-1-16-16", 1_600, "message"),
    Work("one message to a kept session, level disk, 4 shards", "disk-4-16-16", 1_600, "message"),
    Work("one message to a kept session, level fsync, 1 shard", "fsync-1-16-16", 1_600, "message"),
    Work("one message to a kept session, level fsync, 4 shards", "fsync-4-16-16", 1_600, "message"),
]
HOW_TO_BLESS = """\
The hot path got dearer. If that was not meant, `valgrind --tool=callgrind {binary} WORK COUNT` and
`callgrind_annotate` show where. If it buys something that is worth it, run `make
instructions-bless` and commit tests/instructions.json with the reason in the commit message."""


def instructions_of(profile, binary):
    """Sums the instructions that a callgrind profile charges to one object file."""
    total = 0
    current = None
    is_call = False
    for line in profile.splitlines():
        if line.startswith("ob="):
            current = line[3:]
        elif line.startswith("calls="):
            # The line behind it repeats what the callee cost; the callee has it already.
            is_call = True
        elif re.match(r"[0-9+*-]", line):
            if not is_call and current == binary:
                total += int(line.split()[1])
            is_call = False
    if total == 0:
        raise ValueError(f"nothing of {binary} is in the profile: is it behind a link?")
    return total


def measure(work, times):
    with tempfile.NamedTemporaryFile(suffix=".callgrind") as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        options = ["--compress-strings=no", "--compress-pos=no"]
        program = [work.binary, work.name, str(work.count * times)]
        subprocess.run([*command, *options, *program], capture_output=True, check=True)
        return instructions_of(Path(out.name).read_text(), str(work.binary))


def build():
    command = ["cargo", "build", "--profile", PROFILE]
    for crate, example in PROGRAMS.values():
        command += ["-p", crate, "--example", example]
    subprocess.run(command, cwd=ROOT, check=True)
    return 0


def measure_all():
    build()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        once = pool.map(lambda work: measure(work, 1), WORKS)
        twice = pool.map(lambda work: measure(work, 2), WORKS)
        sums = list(zip(WORKS, once, twice, strict=True))
    return {
        work.key: round((double - single) / (work.count * work.messages))
        for work, single, double in sums
    }


def surroundings():
    """What a count depends on beside the source."""
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    return {"compiler": rustc.stdout.strip(), "profile": PROFILE, "processor": processor()}


def processor():
    """Valgrind shows every x86 processor with AVX2 as one and the same; others differ from it."""
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return "x86_64 with AVX2" if flags and "avx2" in flags[1].split() else machine


def compare(counts, baseline):
    """One line per work, and how many are within the tolerance and beyond it."""
    lines = []
    within = beyond = 0
    for work in WORKS:
        now, before = counts[work.key], baseline.get(work.key)
        if before is None:
            lines.append(f"FAILED {work.key}: {now:,}, and the baseline does not know it")
            beyond += 1
            continue
        change = (now - before) / before
        text = f"{work.key}: {now:,} instructions, baseline {before:,} ({change:+.1%})"
        if change > TOLERANCE:
            lines.append(f"FAILED {text}, more than {TOLERANCE:+.0%}")
            beyond += 1
        else:
            hint = "; bless it, so that it stays won" if change < -TOLERANCE else ""
            lines.append(f"ok {text}{hint}")
            within += 1
    return lines, within, beyond


def check():
    baseline = json.loads(BASELINE.read_text())
    here = surroundings()
    for key, value in here.items():
        if baseline[key] != value:
            print(f"instructions: not compared: {key} is {value!r} here, {baseline[key]!r} there")
            return 0
    lines, within, beyond = compare(measure_all(), baseline["instructions"])
    print("\n".join(lines))
    print(f"instructions: {within} passed, {beyond} failed")
    if beyond:
        print(HOW_TO_BLESS.format(binary=EXAMPLES / "PROGRAM"))
    return 1 if beyond else 0


def bless():
    BASELINE.write_text(json.dumps({**surroundings(), "instructions": measure_all()}, indent=2) + "\n")
    print(f"written: {BASELINE.relative_to(ROOT)}")
    return 0


def table():
    counts = measure_all()
    print("| work | instructions of a message |\n|---|---|")
    for work in WORKS:
        print(f"| {work.title} | {counts[work.key]:,} |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="fail above +3 %% of the baseline")
    choice.add_argument("--bless", action="store_true", help="write the baseline anew")
    choice.add_argument("--build", action="store_true", help="build what is measured, and no more")
    arguments = parser.parse_args()
    try:
        if arguments.build:
            return build()
        return check() if arguments.check else bless() if arguments.bless else table()
    except FileNotFoundError as error:
        if error.filename == "valgrind":
            sys.exit("valgrind is not installed: apt-get install valgrind")
        raise


if __name__ == "__main__":
    sys.exit(main())
