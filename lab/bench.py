#!/usr/bin/env python3
"""Measures brokers side by side and writes the tables into docs/develop/performance/tables.md,
between markers, and what messages cost in the core rows as a picture into docs/use/charts.

`lab/bench.py peers` and `catalogue`: quelea beside the brokers that are installed, with a summary
on top. `matrix`: quality of service, payload and version, beside mosquitto. `connections`: what
they cost to make and to hold, over TCP and TLS. `floor`: beside the
bare relay of crates/floor, as a multiple of what that costs. `durable`: what durable sessions cost,
at quelea's levels and with other brokers that keep them on disk. Several suites may be given.

All run `flock versus`: every broker afresh for every run, all on the same cores, in turns, several
rounds. A cell is the median over the rounds; behind it stands the smallest and the largest. A
broker that fails is shown with its reason, and the others go on.
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

from bench_chart import chart
from bench_tables import (
    Cell,
    between_markers,
    columns,
    disclosure,
    grid,
    reason_in,
    summary,
    tables,
)

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/develop/performance/tables.md"
CHARTS = ROOT / "docs/use/charts"


@dataclass(frozen=True)
class Row:
    """One scenario of a suite: a line of the summary, a table, or a cell of the grid."""

    name: str
    # An id of the catalogue or a file.
    scenario: str
    # Further options of `flock versus`; the later of two counts.
    options: tuple = ()
    # Messages have due times, so that a broker can fall behind.
    paced: bool = False
    # Which broker of ours is held against the others.
    own: str = "quelea"
    # Instead of the suite's.
    brokers: tuple = ()
    # Block, column and line in a grid.
    place: tuple = ()
    # Its line in the picture; a suite with one for each row is drawn.
    about: str = ""


@dataclass(frozen=True)
class Suite:
    rows: list
    # Names or files of brokers.
    brokers: list
    # The broker that the others are told as a multiple of.
    unit: str
    rounds: int = 3
    duration: str = "8s"
    ramp: str = "2s"
    has_summary: bool = False
    # What others cost beside `unit` on another machine: row to broker to us per message.
    marks: dict = field(default_factory=dict)


def file(name):
    return f"lab/bench/{name}.toml"


def plain(*scenarios):
    return [Row(one, one) for one in scenarios]


P2P_1K = Row("P2P-1K", file("p2p-1k"), paced=True)
P2P = Row("P2P-20K", file("p2p-20k"), paced=True, about="1,000 pairs, 20,000/s, QoS 1")
SHARE = Row("SHARE-20K", file("share-20k"), paced=True, about="1,000 to a group of 50, 20,000/s")
FAN = Row("FAN-50K", file("fan-50k"), paced=True, about="5 to 1,000 subscribers, 50,000/s")
# As fast as it goes, with up to 1,000 in flight per publisher.
MAX_1 = Row("MAX-1", file("max"), ("--set", "qos=1"), about="100 pairs flat out, QoS 1")
MAX_0 = Row("MAX-0", file("max"), ("--set", "qos=0"), about="100 pairs flat out, QoS 0")
ONE_1 = Row("ONE-1", file("one"), about="one pair flat out, QoS 1")

# 2,000 messages per second into kept sessions.
DELAYED = ("quelea-memory", "quelea", "quelea-delayed", "mosquitto-durable")
D_PACED = Row("D-PACED", file("cluster-cost"), paced=True, brokers=DELAYED)

PEERS = ["quelea", "mosquitto", "rumqttd", "rmqttd", "nats"]
PEERS += ["mochi", "hivemq", "rabbitmq", "aedes"]
KEEPERS = ["quelea-memory", "quelea-disk", "quelea"]
KEEPERS += [f"{name}-durable" for name in ("mosquitto", "nats", "hivemq", "rabbitmq")]

# CPU us per message of brokers that no package registry has, and of mosquitto beside them, on one
# machine of four cores: versions 2.1.2 (mosquitto), 1.26.2, 0.25.5 and 5.8.9.
MARKS = {
    "P2P-20K": {"mosquitto": 41.8, "FlashMQ": 69.4, "NanoMQ": 96.8, "EMQX": 117.8},
    "SHARE-20K": {"mosquitto": 30.9, "FlashMQ": 78.9, "NanoMQ": 81.3, "EMQX": 105.8},
    "FAN-50K": {"mosquitto": 15.2, "FlashMQ": 20.5, "NanoMQ": 31.4, "EMQX": 39.6},
    "MAX-1": {"mosquitto": 15.3, "FlashMQ": 1.17, "NanoMQ": 53.1, "EMQX": 42.8},
    "MAX-0": {"mosquitto": 8.0, "FlashMQ": 0.97, "NanoMQ": 29.0, "EMQX": 17.5},
    "ONE-1": {"mosquitto": 12.2, "FlashMQ": 2.47, "NanoMQ": 98.3, "EMQX": 28.9},
}

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
    # These keep sessions: ours is held against the others where it does so in memory, as they do.
    *(Row(one, one, own="quelea-memory", brokers=KEPT) for one in ("SOL-1K", "SOL-1M")),
    Row("HM-R", "HM-R19000", ("--speed", "240"), own="quelea-memory", brokers=KEPT),
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
                place = (f"MQTT {version}", f"QoS {qos}", size)
                yield Row(name, file(scenario), options, place=place)


# 10,000 clients at 1,000 per second.
STEADY = ("--ramp", "10s")
# Those that listen over TLS, without the slowest two.
CALLED = ["quelea", "mosquitto", "rumqttd", "rmqttd", "nats", "hivemq"]

SUITES = {
    "floor": Suite(
        [P2P_1K, P2P, SHARE, FAN, *plain("AIO-B100-16B")],
        ["quelea", "crates/flock/brokers/floor.toml", "crates/flock/brokers/floor-1.toml"],
        "floor",
    ),
    "peers": Suite(
        [P2P, SHARE, FAN, MAX_1, MAX_0, ONE_1],
        PEERS,
        "mosquitto",
        rounds=2,
        duration="4s",
        ramp="1s",
        has_summary=True,
        marks=MARKS,
    ),
    "catalogue": Suite(
        CATALOGUE,
        # NATS and rumqttd do not speak version 5.
        ["quelea", "mosquitto", "mochi", "rmqttd", "hivemq"],
        "mosquitto",
        rounds=1,
        duration="4s",
        ramp="1s",
        has_summary=True,
    ),
    "matrix": Suite(
        list(matrix()), ["quelea", "mosquitto"], "mosquitto", rounds=2, duration="2s", ramp="200ms"
    ),
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
        "mosquitto",
        rounds=1,
        duration="4s",
    ),
    "durable": Suite(
        [*plain("D-1-16B", "D-1-1K", "D-1-8K", "D-2", "D-3", "D-4"), D_PACED],
        KEEPERS,
        "quelea-memory",
    ),
}

# A run may take its stages, a drain, and what a slow broker needs to start and to end.
CELL_SECS_MAX = 120
ENDING_SECS_MAX = 10


# --- Runs


def build(arguments, brokers):
    """Where the programs are."""
    if arguments.programs:
        return Path(arguments.programs).resolve()
    programs = ["quelea", "flock"]
    programs += ["floor"] if any("floor" in one for one in brokers) else []
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
    (title, of, _), *_, (_, cost, _) = columns([results])
    return f"{of(results) or 0:,.0f} {title}, {cost(results) or 0:.2f} us"


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
        why = reason_in(output, Path(broker).stem)
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


# --- The document


def write(name, suite, measured, absent, arguments):
    runs = [run for cells in measured.values() for cell in cells.values() for run in cell.runs]
    if not runs:
        sys.exit(f"{name}: no broker could be measured")
    lines = disclosure(runs, f"lab/bench.py {' '.join(sys.argv[1:])}", commit(), absent)
    rows = {row.name: row for row in suite.rows}
    brokers = list(dict.fromkeys(one for cells in measured.values() for one in cells))
    if suite.has_summary:
        lines += summary(measured, brokers, suite.unit, lambda row: rows[row].own, suite.marks)
    if all(rows[row].place for row in measured):
        lines += grid(measured, brokers, {row: rows[row].place for row in measured})
    else:
        lines += tables(measured, suite.unit)
    print("\n".join(lines))
    if not arguments.print_only:
        DOCUMENT.write_text(between_markers(DOCUMENT.read_text(), name, lines))
        if set(rows) == set(measured) and all(row.about for row in suite.rows):
            draw(name, suite, measured, brokers, runs[0]["machine"])


def draw(name, suite, measured, brokers, machine):
    where = f"Two broker cores of {machine['cpu']}, commit {commit()}, one run in turns."
    CHARTS.mkdir(exist_ok=True)
    picture = chart(
        "CPU per message, in microseconds: the shorter the better",
        measured,
        {row.name: row.about for row in suite.rows},
        brokers,
        where + " How it was measured: docs/develop/performance/method.md",
    )
    (CHARTS / f"{name}.svg").write_text(picture)


def commit():
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


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
    parser.add_argument("--rows", help="only these of the suite's rows, separated by commas")
    parser.add_argument("--print-only", action="store_true", help="leave the document as it is")
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
        write(name, suite, measured, absent, arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
