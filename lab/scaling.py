#!/usr/bin/env python3
"""What a further core brings: the broker on one, two and three cores, the load on the others, and
the core of the broker without sockets on one, two and four threads. Writes
lab/results/scaling.json.

The load needs cores, so the rates with sockets end at what is left for it. The bare relay of
crates/proof/floor does nearly nothing and shows that end. CPU per message has no such end: if it stays
the same as cores are added, the rate grows with them. `crates/core/broker/examples/scaling.rs` needs
no load and shows the rate.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys

import bench
import records
import runs
from runs import Cell, cost, received

SCENARIOS = {"AIO-B100-16B": "AIO-B100-16B", "MAX-1": bench.file("max")}
BROKERS = {"quelea": "quelea", "relay": "crates/flock/flock/brokers/floor.toml"}
LINE = re.compile(r"(.+), (\d+) threads: ([\d.]+) M messages/s")


def cores(first, last):
    return f"{first}-{last}" if last > first else f"{first}"


def rows():
    """A row per scenario and number of cores for the broker; the load needs one at least."""
    last = os.cpu_count() - 1
    for name, scenario in SCENARIOS.items():
        for count in range(1, last + 1):
            cpus = ["--broker-cpus", cores(0, count - 1), "--load-cpus", cores(count, last)]
            yield name, count, bench.Row(f"{name}-{count}", scenario, tuple(cpus))


def with_sockets(shape, programs):
    """Scenario, broker and cores to cell. The numbers of cores and the brokers take turns."""
    measured = {}
    for number in range(1, shape.rounds + 1):
        for (name, count, row), broker in itertools.product(rows(), BROKERS):
            cell = measured.setdefault((name, broker, count), Cell())
            out = bench.ROOT / "results/scaling" / f"{row.name}-{broker}-{number}"
            results, why = bench.run(row, BROKERS[broker], shape, programs, out)
            (cell.failures.append(why) if why else cell.runs.append(results))
            print(f"{row.name}, {broker}, round {number}: {bench.told(results, why)}", flush=True)
    return dict(sorted(measured.items()))


def by_itself(profile, rounds):
    """Reach (within a shard, to any shard) to threads to rates in millions."""
    rates = {}
    command = [
        "cargo",
        "run",
        "--profile",
        profile,
        "-q",
        "-p",
        "quelea-broker",
        "--example",
        "scaling",
    ]
    for _ in range(rounds):
        done = subprocess.run(command, cwd=bench.ROOT, check=True, capture_output=True, text=True)
        for reach, threads, rate in LINE.findall(done.stdout):
            rates.setdefault(reach, {}).setdefault(int(threads), []).append(float(rate))
    return rates


def rows_of(rates, measured):
    for reach, by_threads in rates.items():
        for threads, found in by_threads.items():
            cells = {"rate": records.cell(found, "M/s")}
            yield records.row({"messages": reach, "threads": threads}, cells)
    told = [("received", "1/s", received), ("cpu", "us", cost)]
    for (name, broker, count), cell in measured.items():
        yield cell.row({"scenario": name, "broker": broker, "cores": count}, told)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", default="5s", help="of the measured part of a run")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--programs", help="folder of quelea, flock and floor: nothing is built")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    arguments = parser.parse_args()
    programs = bench.build(arguments, BROKERS.values())
    bench.adopt_orphans()
    rates = by_itself(arguments.profile, arguments.rounds)
    measured = with_sockets(bench.Shape(arguments.rounds, arguments.duration, "1s"), programs)
    done = [run for cell in measured.values() for run in cell.runs]
    if not done:
        sys.exit("the broker could not be measured")
    command = " ".join(["lab/scaling.py", *sys.argv[1:]])
    rows = list(rows_of(rates, measured))
    found = records.record("scaling", command, arguments.rounds, rows, runs.machine(done))
    print("\n".join(records.tables(found)))
    if not arguments.print_only:
        records.write(found)


if __name__ == "__main__":
    main()
