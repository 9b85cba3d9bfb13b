#!/usr/bin/env python3
"""Measures brokers side by side and writes the table into docs/performance.md, between markers.

`tests/bench.py floor`: quelea beside the bare relay of crates/floor, as a multiple of what that
costs. `tests/bench.py peers`: quelea beside every broker of brokers/ that is installed.
`tests/bench.py durable`: what durable sessions cost, at quelea's levels and with other brokers that
keep them on disk.

All run `flock versus`: every broker afresh for every run, all on the same cores, in turns, several
rounds. A cell is the median over the rounds; behind it stands the smallest and the largest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/performance.md"
OWN = [f"tests/bench/{name}.toml" for name in ("p2p-1k", "p2p-20k", "share-20k", "fan-50k")]
FLAT_OUT = ["AIO-B100-16B"]
DURABLE = ["D-1-16B", "D-1-1K", "D-1-8K", "D-2", "D-3", "D-4"]
KEEPERS = ["quelea-memory", "quelea-disk", "quelea"]
KEEPERS += [f"{name}-durable" for name in ("mosquitto", "nats", "hivemq", "rabbitmq")]


@dataclass(frozen=True)
class Suite:
    scenarios: list
    # Names or files; none: all that are installed.
    brokers: list
    # The broker that the others are told as a multiple of.
    unit: str


SUITES = {
    "floor": Suite(
        OWN + FLAT_OUT, ["quelea", "brokers/floor.toml", "brokers/floor-1.toml"], "floor"
    ),
    "peers": Suite(OWN + FLAT_OUT + ["AIO-B1-16B"], [], "mosquitto"),
    "durable": Suite(DURABLE, KEEPERS, "quelea-memory"),
}


def rate(field):
    return lambda results: statistics.median(busy(results, field) or [0])


def busy(results, field):
    seconds = results["series"]
    return [second[field] for second in seconds if second["published"] + second["received"] > 0]


def latency(percentile):
    def of(results):
        kinds = [one["summary"] for one in results["latencies"] if one["kind"] == "end_to_end"]
        most = max(kinds, key=lambda summary: summary["count"], default=None)
        return most and most[percentile] / 1000

    return of


def load(field, unit=1):
    def of(results):
        value = (results["broker_load"] or {}).get(field)
        return None if value is None else value / unit

    return of


# Title, where it comes from, digits behind the point.
COLUMNS = [
    ("received/s", rate("received"), 0),
    ("p50 ms", latency("p50_us"), 2),
    ("p99 ms", latency("p99_us"), 2),
    ("MB", load("memory_bytes_max", 1e6), 1),
    ("CPU us per message", load("cpu_us_per_message"), 2),
]
COST = COLUMNS[-1]


def columns(runs):
    """What is told of a scenario: its own stopwatches, if it has some, instead of rates."""
    timers = dict.fromkeys(timer["name"] for results in runs for timer in results["timers"])
    if not timers:
        return COLUMNS
    return [*((f"{name} ms", stopwatch(name), 1) for name in timers), *COLUMNS[-2:]]


def stopwatch(name):
    """Of the slowest client."""

    def of(results):
        times = [one["summary"]["max_us"] for one in results["timers"] if one["name"] == name]
        return times[0] / 1000 if times else None

    return of


def faults(results):
    """What a reader must know of a run before its figures."""
    said = []
    for name in ("lost", "duplicated", "reordered"):
        count = sum(one[name] for one in results["integrity"]["by_qos"])
        if count:
            said.append(f"{count:,} {name}")
    if not results["validity"]["valid"]:
        said += results["validity"]["reasons"][:1] or ["not valid"]
    return said


def cell(of, digits, rounds):
    values = [value for value in map(of, rounds) if value is not None]
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def ratio(rounds, unit_rounds):
    costs, units = ([one for one in map(COST[1], some) if one] for some in (rounds, unit_rounds))
    if not costs or not units:
        return "-"
    return f"{statistics.median(costs) / statistics.median(units):.2f}"


def table(runs, unit):
    """One table per scenario, in the order of the runs."""
    scenarios = {}
    for results in runs:
        brokers = scenarios.setdefault(results["scenario"]["id"], {})
        brokers.setdefault(results["broker"]["name"], []).append(results)
    lines = []
    for scenario, brokers in scenarios.items():
        first = next(iter(brokers.values()))[0]
        told = columns([results for rounds in brokers.values() for results in rounds])
        lines += [f"**{scenario}**: {first['scenario']['title']}", ""]
        titles = ["broker", *(column[0] for column in told), f"x {unit}", "remarks"]
        lines += ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
        for broker, rounds in brokers.items():
            cells = [cell(of, digits, rounds) for _, of, digits in told]
            remarks = "; ".join(dict.fromkeys(one for run in rounds for one in faults(run)))
            name = f"{broker} {rounds[0]['broker']['version']}".strip()
            cells = [name, *cells, ratio(rounds, brokers.get(unit, [])), remarks]
            lines.append("| " + " | ".join(one.replace("|", "/") for one in cells) + " |")
        lines.append("")
    return lines


def disclosure(runs, command, commit):
    machine = runs[0]["machine"]
    memory = machine["memory_bytes"] / 2**30
    rounds = max(count_rounds(runs).values())
    return [
        f"Commit `{commit}`, `{command}`; {machine['cores']} x {machine['cpu']}, {memory:.0f} GiB,",
        f"Linux {machine['kernel']}; brokers on cores {runs[0]['broker']['cpus']}, the load on the"
        f" others; {rounds} rounds in turns: median (smallest-largest).",
        "",
    ]


def count_rounds(runs):
    counts = {}
    for results in runs:
        pair = (results["scenario"]["id"], results["broker"]["name"])
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def between_markers(text, name, lines):
    """The document with the part between the two markers of `name` replaced."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{DOCUMENT.name} needs {begin.strip()} and {end.strip()}, once each")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return before + begin + "\n".join(lines).rstrip("\n") + "\n" + end + after


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure(name, suite, arguments):
    out = ROOT / "results" / name
    for old in out.glob("*.json"):
        old.unlink()
    profile = ["--profile", arguments.profile]
    programs = ["server", "flock", "floor"]
    build = ["cargo", "build", *profile, *(word for one in programs for word in ("-p", one))]
    subprocess.run(build, cwd=ROOT, check=True)
    built = ROOT / "target" / arguments.profile
    scenarios = arguments.scenarios.split(",") if arguments.scenarios else suite.scenarios
    flock = [str(built / "flock"), "versus", *scenarios]
    options = ["--rounds", str(arguments.rounds), "--duration", arguments.duration]
    options += ["--ramp", arguments.ramp, "--out", str(out), "--quiet"]
    brokers = arguments.brokers or ",".join(suite.brokers)
    if brokers:
        options += ["--brokers", brokers]
    # A broker that fails has no results and is missing from the table; flock says why.
    path = f"{built}:{os.environ['PATH']}"
    subprocess.run([*flock, *options], cwd=ROOT, env=dict(os.environ, PATH=path))
    runs = [json.loads(path.read_text()) for path in out.glob("*.json")]
    return sorted(runs, key=lambda results: results["run"]["started_unix_ms"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", default="8s", help="of the measured part of a run")
    parser.add_argument("--ramp", default="2s", help="in which the clients connect")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--brokers", help="instead of the suite's, separated by commas")
    parser.add_argument("--print-only", action="store_true", help="leave the document as it is")
    parser.add_argument("--scenarios", help="instead of the suite's, separated by commas")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    runs = measure(arguments.suite, suite, arguments)
    if not runs:
        sys.exit("no broker could be measured")
    commit = git("describe", "--always", "--dirty")
    command = " ".join(["tests/bench.py", *sys.argv[1:]])
    lines = disclosure(runs, command, commit) + table(runs, suite.unit)
    print("\n".join(lines))
    if not arguments.print_only:
        text = DOCUMENT.read_text()
        DOCUMENT.write_text(between_markers(text, arguments.suite, lines))


if __name__ == "__main__":
    main()
