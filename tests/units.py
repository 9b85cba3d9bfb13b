#!/usr/bin/env python3
"""Runs the test programs of all crates, two at once.

`tests/units.py ROOM`: of the crates below crates/ROOM only, and only they are compiled.

`cargo test` runs one program after the other, and many wait for real time most of theirs. What a
program prints is shown when it has ended; the slowest are listed at the end.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# More than two of them keep each other from being on time, on two cores.
AT_ONCE = 2
SLOWEST = 10
# It waits for real time nearly always: 41 s of CPU in 245 s with four threads, in 104 s with these.
# So it runs beside the two.
WAITING = "crates/flock/flock it"
WAITING_THREADS = "8"
# They take longest.
FIRST = ("crates/proof/fuzzing", "crates/proof/sim", "crates/flock/flock")
# No examples.
BUILD = ["--lib", "--bins", "--tests", "--no-run", "--message-format=json"]
# Tests of these rooms start the program.
PROGRAM = ["cargo", "build", "-p", "quelea", "--bin", "quelea"]
ROOMS_WITH_PROGRAM = ("flock", "proof")


@dataclass(frozen=True)
class Program:
    """A command, and where cargo would run it."""

    name: str
    command: tuple
    folder: Path = ROOT


def selection(room):
    """What cargo is to work on."""
    if room is None:
        return ["--workspace"]
    command = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    folder = ROOT / "crates" / room
    packages = json.loads(listed.stdout)["packages"]
    names = [own["name"] for own in packages if folder in Path(own["manifest_path"]).parents]
    return [word for name in names for word in ("-p", name)]


def programs(room):
    """The programs with tests, built if need be."""
    chosen = selection(room)
    if room in ROOMS_WITH_PROGRAM:
        subprocess.run(PROGRAM, cwd=ROOT, check=True)
    command = ["cargo", "test", *chosen, *BUILD]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if not message.get("executable") or not message["profile"]["test"]:
            continue
        folder = Path(message["manifest_path"]).parent
        name = f"{folder.relative_to(ROOT)} {message['target']['name']}"
        found.append(Program(name, (message["executable"],), folder))
    found.sort(key=place)
    return found


def place(program):
    """Where it is in the order."""
    places = (at for at, begin in enumerate(FIRST) if program.name.startswith(begin))
    return next(places, len(FIRST))


def run(program):
    """What it printed, whether it succeeded, and how many seconds it took."""
    started = time.monotonic()
    environment = dict(os.environ)
    if program.name == WAITING:
        environment["RUST_TEST_THREADS"] = WAITING_THREADS
    done = subprocess.run(
        program.command,
        cwd=program.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.stdout, done.returncode == 0, time.monotonic() - started


def main():
    rooms = sorted(path.name for path in (ROOT / "crates").iterdir() if path.is_dir())
    if len(sys.argv) > 2 or sys.argv[1:] and sys.argv[1] not in rooms:
        print(f"usage: tests/units.py [{' | '.join(rooms)}]", file=sys.stderr)
        return 2
    room = sys.argv[1] if sys.argv[1:] else None
    failed, times = [], []
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(1) as beside:
        running = {}
        for program in programs(room):
            chosen = beside if program.name == WAITING else pool
            running[chosen.submit(run, program)] = program
        for future in as_completed(running):
            output, is_good, took = future.result()
            name = running[future].name
            print(f"\n--- {name}: {took:.1f} s\n{output}", flush=True)
            times.append((took, name))
            if not is_good:
                failed.append(name)
    print("\nslowest:")
    for took, name in sorted(times, reverse=True)[:SLOWEST]:
        print(f"  {took:6.1f} s  {name}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
