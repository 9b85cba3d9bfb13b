#!/usr/bin/env python3
"""Measures brokers side by side and writes a file of results for each suite into lab/results.

`lab/bench.py peers` and `catalogue`: quelea and the brokers that are installed. `matrix`: quality
of service, payload and version, with mosquitto. `connections`: the cost of connects and of idle
connections, over TCP and TLS. `floor`: quelea and the bare relay of crates/proof/floor. `durable`:
durable sessions at the levels of quelea, and in other brokers that keep them on disk;
`durable-levels` has only quelea. Several suites may be given.

All suites run `flock versus`. Each run starts its broker, on the same cores, in turns, in several
rounds. A cell is the median over the rounds, with the smallest and the largest. The row of a
broker that fails has the reason, and the others go on. `make docs` writes the page and its
charts.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import records
import runs
from records import ROOT
from runs import Cell, columns


@dataclass(frozen=True)
class Row:
    """One scenario of a suite."""

    name: str
    # An id of the catalogue or a file.
    scenario: str
    # Further options of `flock versus`; the later of two counts.
    options: tuple = ()
    # Messages have due times, so that a broker can fall behind.
    paced: bool = False
    # Instead of the suite's.
    brokers: tuple = ()
    # What the rows of its record name, instead of the scenario.
    of: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    rows: list
    # Names or files of brokers.
    brokers: list
    rounds: int = 3
    duration: str = "8s"
    ramp: str = "2s"


def file(name):
    return f"lab/bench/{name}.toml"


def plain(*scenarios):
    return [Row(one, one) for one in scenarios]


P2P_1K = Row("P2P-1K", file("p2p-1k"), paced=True)
P2P = Row("P2P-20K", file("p2p-20k"), paced=True)
SHARE = Row("SHARE-20K", file("share-20k"), paced=True)
FAN = Row("FAN-50K", file("fan-50k"), paced=True)
# As fast as it goes, with up to 1,000 in flight per publisher.
MAX_1 = Row("MAX-1", file("max"), ("--set", "qos=1"))
MAX_0 = Row("MAX-0", file("max"), ("--set", "qos=0"))
ONE_1 = Row("ONE-1", file("one"))

# 2,000 messages per second into kept sessions.
DELAYED = ("quelea-memory", "quelea", "quelea-delayed", "mosquitto-durable")
D_PACED = Row("D-PACED", file("cluster-cost"), paced=True, brokers=DELAYED)

PEERS = ["quelea", "mosquitto", "rumqttd", "rmqttd", "nats"]
PEERS += ["mochi", "hivemq", "rabbitmq", "aedes"]
KEEPERS = ["quelea-memory", "quelea-disk", "quelea"]
KEEPERS += [f"{name}-durable" for name in ("mosquitto", "nats", "hivemq", "rabbitmq")]

# Where a process may open 20,000 descriptors, what has more clients is scaled to 19,000, and its
# clients are made faster, so that the rate stays as far as two cores of load can make it.
AIO_SIZES = ("16B", "8K", "255K")
MANY = ("--ramp", "5s")
# As fast as each broker goes: fan-in and fan-out in a closed loop, not at their published rates.
AIO_KINDS = (("FI", "-closed"), ("B1", ""), ("B100", ""), ("FO", "-closed"))
AIO_SHAPES = [f"{kind}-{size}{loop}" for kind, loop in AIO_KINDS for size in AIO_SIZES]
KEPT = ("quelea", "quelea-memory", "mosquitto", "mochi", "rmqttd", "hivemq")
CATALOGUE = [
    *(Row(f"MB-B{n}", f"MB-B{n}", paced=True) for n in (1, 2, 3)),
    Row("MB-E1", "MB-E1", ("--scale", "0.19", "--speed", "2", *MANY), paced=True),
    Row("MB-E2", "MB-E2", ("--scale", "0.4"), paced=True),
    Row("MB-E3", "MB-E3", ("--scale", "0.37", *MANY), paced=True),
    Row("EG-1", "EG-1", ("--scale", "0.047", "--speed", "5", *MANY), paced=True),
    Row("EG-3", "EG-3", ("--scale", "0.095", "--speed", "10", *MANY), paced=True),
    Row("EG-4", "EG-4", ("--scale", "0.475", "--speed", "2", *MANY), paced=True),
    *plain(*(f"AIO-{shape}" for shape in AIO_SHAPES)),
    # These use persistent sessions, which the other brokers keep in memory.
    *(Row(one, one, brokers=KEPT) for one in ("SOL-1K", "SOL-1M")),
    Row("HM-R", "HM-R19000", ("--speed", "240"), brokers=KEPT),
]

# Payload, and the messages in flight per publisher.
PAYLOADS = {"16": 400, "256": 400, "1K": 200, "8K": 100, "64K": 20, "1M": 4}
VERSIONS = {"3.1.1": "matrix-311", "5, with properties": "matrix-5"}


def matrix():
    for version, scenario in VERSIONS.items():
        for size, window in PAYLOADS.items():
            for qos in (0, 1, 2):
                settings = (f"qos={qos}", f"payload={size}", f"in_flight={window}")
                options = tuple(word for one in settings for word in ("--set", one))
                name = f"{scenario}-q{qos}-{size}"
                of = {"version": f"MQTT {version}", "qos": f"QoS {qos}", "payload": size}
                yield Row(name, file(scenario), options, of=of)


# 10,000 clients at 1,000 per second.
STEADY = ("--ramp", "10s")
# Those that listen over TLS, without the slowest two.
CALLED = ["quelea", "mosquitto", "rumqttd", "rmqttd", "nats", "hivemq"]

SUITES = {
    "floor": Suite(
        [P2P_1K, P2P, SHARE, FAN, *plain("AIO-B100-16B")],
        ["quelea", "crates/flock/flock/brokers/floor.toml", "crates/flock/flock/brokers/floor-1.toml"],
    ),
    "peers": Suite(
        [P2P, SHARE, FAN, MAX_1, MAX_0, ONE_1],
        PEERS,
        rounds=2,
        duration="4s",
        ramp="1s",
    ),
    "catalogue": Suite(
        CATALOGUE,
        # NATS and rumqttd do not speak version 5.
        ["quelea", "mosquitto", "mochi", "rmqttd", "hivemq"],
        rounds=1,
        duration="4s",
        ramp="1s",
    ),
    "matrix": Suite(list(matrix()), ["quelea", "mosquitto"], rounds=2, duration="2s", ramp="200ms"),
    "connections": Suite(
        [
            Row("CONN-10K", file("conn-10k"), STEADY),
            Row("CONN-RATE", file("conn-rate")),
            Row("MB-B4", "MB-B4", ("--speed", "10")),
            Row("MB-E4", "MB-E4", ("--scale", "0.019", "--speed", "10")),
            Row("TLS-10K", file("tls-10k"), STEADY),
            Row("TLS-RATE", file("tls-rate")),
        ],
        CALLED,
        rounds=1,
        duration="4s",
    ),
    "durable": Suite(
        [*plain("D-1-16B", "D-1-1K", "D-1-8K", "D-2", "D-3", "D-4"), D_PACED],
        KEEPERS,
    ),
}

SUITES["durable-levels"] = Suite(
    plain("D-1-1K", "D-2"),
    ["quelea", "quelea-disk", "quelea-memory"],
    rounds=2,
    duration="4s",
    ramp="1s",
)

# A run may take its stages, a drain, and what a slow broker needs to start and to end.
CELL_SECS_MAX = 120
ENDING_SECS_MAX = 10


# --- Runs


def build(arguments, brokers):
    """Where the programs are."""
    if arguments.programs:
        return Path(arguments.programs).resolve()
    programs = ["quelea", "flock"]
    programs += ["quelea-floor"] if any("floor" in one for one in brokers) else []
    command = ["cargo", "build", "--profile", arguments.profile]
    command += [word for one in programs for word in ("-p", one)]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target" / arguments.profile


def measure(suite, rows, brokers, shape, programs, out):
    """All rounds of all rows with all brokers: row to broker to cell, and brokers not there."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    adopt_orphans()
    measured = {row.name: {} for row in rows}
    absent = {}
    everything = [
        (number, row, broker)
        for number in range(1, shape.rounds + 1)
        for row in rows
        for broker in (row.brokers or brokers)
    ]
    for done, (number, row, broker) in enumerate(everything, 1):
        name = Path(broker).stem
        cell = measured[row.name].get(name, Cell(paced=row.paced))
        # What failed once would only take the same time to fail again.
        if broker in absent or cell.is_hopeless():
            continue
        started = time.monotonic()
        results, why = run(row, broker, shape, programs, out / f"{row.name}-{name}-{number}")
        if why and "is not installed" in why:
            absent[broker] = why
        else:
            measured[row.name][name] = cell
            (cell.failures.append(why) if why else cell.runs.append(results))
        took = f"{time.monotonic() - started:.0f} s"
        print(
            f"[{done}/{len(everything)}] {row.name} {name}, round {number}:"
            f" {told(results, why)} ({took})",
            flush=True,
        )
    return measured, list(absent.values())


def told(results, why):
    if why:
        return why
    (name, unit, of), *_, (_, _, cost) = columns([results])
    return f"{name} {of(results) or 0:,.0f} {unit}, {cost(results) or 0:.2f} us"


def run(row, broker, shape, programs, out):
    """One run in processes, and a directory, of its own: results, or why there are none."""
    command = [str(programs / "flock"), "versus", row.scenario, "--brokers", broker, "--quiet"]
    # The rounds are ours: brokers take turns.
    command += ["--rounds", "1"]
    command += ["--duration", shape.duration]
    if "--ramp" not in row.options and "--speed" not in row.options:
        command += ["--ramp", shape.ramp]
    command += ["--out", str(out), *row.options]
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        path = f"{programs}:{os.environ['PATH']}"
        environment = dict(os.environ, PATH=path, TMPDIR=scratch)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        flock = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, errors="replace", **pipes
        )
        try:
            output, why = flock.communicate(timeout=CELL_SECS_MAX)[0], None
        except subprocess.TimeoutExpired:
            output, why = "", f"not done after {CELL_SECS_MAX} s"
            interrupt(flock)
        except KeyboardInterrupt:
            interrupt(flock)
            raise
        finally:
            end_orphans()
    found = list(out.glob("*.json"))
    for other in out.glob("*.*"):
        # Only the results are read again, and there are many runs.
        other.unlink() if other.suffix in (".html", ".csv", ".md") else None
    if why is None and not found:
        why = runs.reason_in(output, Path(broker).stem)
    return (None, why) if why else (json.loads(found[0].read_text()), None)


def interrupt(flock):
    """Lets it end its broker; then it has to go."""
    flock.send_signal(signal.SIGTERM)
    try:
        flock.communicate(timeout=ENDING_SECS_MAX)
    except subprocess.TimeoutExpired:
        flock.kill()
        flock.communicate()


def adopt_orphans():
    """Makes this process the parent of whatever its brokers leave behind."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans():
    """Ends what a run left behind: all children there are, for between runs there are none."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


# --- The record


def record(name, suite, measured, absent, rounds):
    done = [run for cells in measured.values() for cell in cells.values() for run in cell.runs]
    if not done:
        sys.exit(f"{name}: no broker could be measured")
    named = {row.name: row.of for row in suite.rows}
    rows = [
        made | {"of": {**(named[made["of"]["scenario"]] or {"scenario": made["of"]["scenario"]}),
                       "broker": made["of"]["broker"]}}
        for made in runs.rows(measured)
    ]  # fmt: skip
    command = f"lab/bench.py {' '.join(sys.argv[1:])}"
    facts = {"titles": runs.titles(measured), "notes": [f"Not installed: {one}" for one in absent]}
    return records.record(name, command, rounds, rows, runs.machine(done), **facts)


@dataclass(frozen=True)
class Shape:
    rounds: int
    duration: str
    ramp: str


def main():
    # As Ctrl-C does: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--rounds", type=int, help="instead of the suite's")
    parser.add_argument("--duration", help="of the measured part of a run")
    parser.add_argument("--ramp", help="in which the clients connect")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--programs", help="folder of quelea, flock and floor: nothing is built")
    parser.add_argument("--brokers", help="instead of the suite's, separated by commas")
    parser.add_argument("--rows", help="only these rows, separated by commas: nothing is written")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    arguments = parser.parse_args()
    for name in arguments.suites:
        suite = SUITES[name]
        brokers = arguments.brokers.split(",") if arguments.brokers else suite.brokers
        wanted = arguments.rows.split(",") if arguments.rows else [row.name for row in suite.rows]
        if unknown := set(wanted) - {row.name for row in suite.rows}:
            parser.error(f"{name} has no row {', '.join(sorted(unknown))}")
        rows = [row for row in suite.rows if row.name in wanted]
        if arguments.brokers:
            rows = [replace(row, brokers=()) for row in rows]
        shape = Shape(
            arguments.rounds or suite.rounds,
            arguments.duration or suite.duration,
            arguments.ramp or suite.ramp,
        )
        programs = build(arguments, brokers)
        measured, absent = measure(suite, rows, brokers, shape, programs, ROOT / "results" / name)
        found = record(name, suite, measured, absent, shape.rounds)
        print("\n".join(records.tables(found)))
        if not (arguments.print_only or arguments.rows):
            records.write(found)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
