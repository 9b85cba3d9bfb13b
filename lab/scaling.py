#!/usr/bin/env python3
"""What a core more is worth: the broker on one, two and three cores, the load on the others, and
the core by itself on one, two and four threads. Writes the tables into docs/develop/performance/tables.md.

The load needs cores, too, so the rates with sockets end at what is left for it: the bare relay of
crates/floor, which does nearly nothing, stands beside and shows that end. What a message costs has
none, and a cost that stays as cores are added is a rate that grows with them. The core by itself
(`crates/broker/examples/scaling.rs`) needs no load, and shows the rate.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys

import bench
from bench_tables import (
    Cell,
    between_markers,
    cost,
    disclosure,
    received,
    spread,
    table_head,
    table_row,
)

SCENARIOS = {"AIO-B100-16B": "AIO-B100-16B", "MAX-1": bench.file("max")}
BROKERS = {"quelea": "quelea", "relay": "crates/flock/brokers/floor.toml"}
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
    command = ["cargo", "run", "--profile", profile, "-q", "-p", "quelea-broker", "--example", "scaling"]
    for _ in range(rounds):
        done = subprocess.run(command, cwd=bench.ROOT, check=True, capture_output=True, text=True)
        for reach, threads, rate in LINE.findall(done.stdout):
            rates.setdefault(reach, {}).setdefault(int(threads), []).append(float(rate))
    return rates


def table_with_sockets(measured):
    head = ["scenario", "broker", "cores of the broker", "received/s", "x one core"]
    yield from table_head([*head, "CPU us per message", "remarks"])
    for (name, broker, count), cell in measured.items():
        one, here = (measured[name, broker, cores].median(received) for cores in (1, count))
        factor = f"{here / one:.2f}" if one and here and count > 1 else "-"
        told = [spread(received, 0, cell.runs), factor, spread(cost, 2, cell.runs)]
        yield table_row([name, broker, str(count), *told, "; ".join(cell.remarks())])


def table_by_itself(rates):
    yield from table_head(["messages go", "threads", "M messages/s", "x half the threads"])
    for reach, by_threads in rates.items():
        for threads, found in by_threads.items():
            half = by_threads.get(threads // 2)
            middle = statistics.median(found)
            factor = f"{middle / statistics.median(half):.2f}" if half else "-"
            told = f"{middle:.2f} ({min(found):.2f}-{max(found):.2f})"
            yield table_row([reach, str(threads), told, factor])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", default="5s", help="of the measured part of a run")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--programs", help="folder of quelea, flock and floor: nothing is built")
    parser.add_argument("--print-only", action="store_true", help="leave the document as it is")
    arguments = parser.parse_args()
    programs = bench.build(arguments, BROKERS.values())
    bench.adopt_orphans()
    rates = by_itself(arguments.profile, arguments.rounds)
    measured = with_sockets(bench.Shape(arguments.rounds, arguments.duration, "1s"), programs)
    runs = [run for cell in measured.values() for run in cell.runs]
    if not runs:
        sys.exit("the broker could not be measured")
    command = " ".join(["lab/scaling.py", *sys.argv[1:]])
    lines = disclosure(runs, command, bench.commit(), [])
    lines += [*table_by_itself(rates), "", *table_with_sockets(measured)]
    print("\n".join(lines))
    if not arguments.print_only:
        text = bench.DOCUMENT.read_text()
        bench.DOCUMENT.write_text(between_markers(text, "scaling", lines))


if __name__ == "__main__":
    main()
