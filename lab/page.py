#!/usr/bin/env python3
"""Writes docs/use/performance.md and its charts from the files in lab/results.

`lab/page.py` fills the tables into lab/page.tmpl; `make docs` runs it. `lab/page.py --check`
fails if a file is not current. `lab/page.py --list` lists all results with commit and date.
"""

import argparse
import datetime
import sys

import records
from chart import Panel, chart
from records import ROOT, figure, find, median, read, spread, table, values, with_unit

TEMPLATE = ROOT / "lab/page.tmpl"
PAGE = ROOT / "docs/use/performance.md"
CHARTS = ROOT / "docs/use/charts"
RESULTS = "../../lab/results"
EXAMPLES = "../flock/examples"
OWN = "quelea"

LOADS = {
    "P2P-20K": "1,000 pairs, 20,000/s, QoS 1",
    "SHARE-20K": "1,000 to a group of 50, 20,000/s",
    "FAN-50K": "5 to 1,000 subscribers, 50,000/s",
    "MAX-1": "100 pairs at full speed, QoS 1",
    "MAX-0": "100 pairs at full speed, QoS 0",
    "ONE-1": "one pair at full speed, QoS 1",
}
DURABLE = {"D-1-1K": "1:1, 1 KB", "D-2": "1:5, 1 KB"}
LEVELS = {"quelea": "fsync", "quelea-disk": "disk", "quelea-memory": "memory"}
# Parts of a record's `of` that say which rows are of one load.
LOAD = ("scenario", "version", "qos", "payload")


MAKE = {
    "peers": "bench-peers", "catalogue": "bench-catalogue", "matrix": "bench-matrix",
    "connections": "bench-connections", "memory": "bench-memory", "tails": "bench-tails",
    "dashboard": "bench-dashboard",
    "durable-levels": "bench-durable", "scaling": "scaling",
    "cluster-cost": "cluster-bench", "takeover": "cluster-bench",
    "cluster-faults": "cluster-test RESULTS=1", "siege": "siege", "bridge": "bench-bridge",
    "routing-kills": "routing-faults", "routing-away": "routing-faults",
    "routing-eg": "bench-routed",
}  # fmt: skip
# What the page shows of faults.
GAP_SECS_MIN = 5


# --- What every table says


def caption(*names):
    """Of each record: its file, command, commit and age, machine and day."""
    lines = []
    for name in names:
        record = read(name)
        commit, of = (record[one] or "unknown" for one in ("commit", "commit_date"))
        file = f"[{name}.json]({RESULTS}/{name}.json), `make {MAKE[name]}`"
        late = f", {behind(record)} days older" if behind(record) else ""
        machine = (record["machine"] or "unknown machine").split(",")[0].split(";")[0]
        run = record["date"] or "unknown"
        lines.append(f"{file}: {commit} ({of}{late}), {machine}, run: {run}.")
    return [part for line in lines for part in ("", line)]


def behind(record):
    """Days between this record and the newest one; 0 if its age is unknown."""
    known = day(record)
    return (newest() - known).days if known else 0


def newest():
    return max(filter(None, map(day, map(read, records.suites()))))


def day(record):
    told = record["date"] or record["commit_date"]
    return datetime.date.fromisoformat(told) if told else None


# --- Comparisons


def sound(record, name, **of):
    """Broker to median, of the rows that delivered everything in time."""
    rows = [one for one in record["rows"] if of.items() <= one["of"].items()]
    found = {one["of"]["broker"]: median(one, name) for one in rows if "shortcomings" not in one}
    return {broker: value for broker, value in found.items() if value is not None}


def best(found, pick=min):
    """The best broker that is not ours, with its figure."""
    others = {one: value for one, value in found.items() if not one.startswith(OWN)}
    name = pick(others, key=others.get, default=None)
    return f"{figure(others[name])} {name}" if name else "none"


def compared(record, name, pick=min, **of):
    found = sound(record, name, **of)
    return [figure(found[OWN]), best(found, pick)]


def leaders(record, name="cpu"):
    """Load to (our lowest figure, the best other broker and its figure)."""
    loads = [{key: one["of"][key] for key in LOAD if key in one["of"]} for one in record["rows"]]
    told = {}
    for of in {tuple(of.values()): of for of in loads}.values():
        found = sound(record, name, **of)
        ours = min(value for one, value in found.items() if one.startswith(OWN))
        others = {one: value for one, value in found.items() if not one.startswith(OWN)}
        other = min(others, key=others.get)
        told[", ".join(of.values())] = (ours, other, others[other])
    return told


# --- Tables


def peers():
    record = read("peers")
    rows = [
        [
            about,
            *compared(record, "cpu", scenario=load),
            *compared(record, "received", max, scenario=load),
            *compared(record, "p99", scenario=load),
        ]
        for load, about in LOADS.items()
    ]
    heads = ["load"]
    heads += [
        f"{what}{who}"
        for what in ("CPU us", "messages/s", "p99 ms")
        for who in ("", ", best other")
    ]
    return [*table(heads, rows), *caption("peers")]


def ahead():
    lines, rows = [], []
    for name in ("catalogue", "matrix"):
        told = leaders(read(name))
        lost = {load: one for load, one in told.items() if one[0] > one[2]}
        lines.append(
            f"- {name}: quelea is cheapest in {len(told) - len(lost)} of {len(told)} loads."
        )
        rows += [
            [load, figure(ours), f"{figure(value)} {other}"]
            for load, (ours, other, value) in lost.items()
        ]
    heads = ["load in which another broker is cheaper", "quelea, us", "best other, us"]
    return [*lines, "", *table(heads, rows), *caption("catalogue", "matrix")]


def connections():
    record = read("connections")
    asked = [
        ("idle connection, bytes", "memory", min, "CONN-10K"),
        ("idle TLS connection, bytes", "memory", min, "TLS-10K"),
        ("connects per second", "connects", max, "CONN-RATE"),
        ("TLS connects per second", "connects", max, "TLS-RATE"),
    ]
    rows = [
        [what, *compared(record, name, pick, scenario=load)] for what, name, pick, load in asked
    ]
    return [*table(["", "quelea", "best other"], rows), *caption("connections")]


def memory():
    record = read("memory")
    rows = []
    for what in values(record, "what"):
        found = [find(record, what=what, broker=one) for one in (OWN, "mosquitto")]
        cells = [one["cells"]["value"] for one in found if one]
        if len(cells) == len(found) and cells[0]["unit"] == "MB":
            rows.append([what, *(figure(one["median"]) for one in cells)])
    return [*table(["MB", "quelea", "mosquitto"], rows), *caption("memory")]


def tails():
    record = read("tails")
    rows = []
    for what in values(record, "disturbance"):
        own, other = (find(record, disturbance=what, broker=one) for one in (OWN, "mosquitto"))
        if median(own, "p99.9_ratio") and other:
            rows.append([what, *(spread(one["cells"]["p99.9_ratio"]) for one in (own, other))])
    heads = ["disturbance", "quelea, p99.9 as a multiple of quiet", "mosquitto"]
    return [*table(heads, rows), *caption("tails")]


def dashboard():
    ratio = find(read("dashboard"), dashboard="ratio")["cells"]["p99_9"]
    text = "While a dashboard was open on a broker with 100,000 sessions, p99.9 was"
    return [f"{text} {spread(ratio)} times that without.", *caption("dashboard")]


def bridge():
    record = read("bridge")
    rows = []
    for qos in values(record, "qos"):
        for broker in values(record, "broker"):
            cells = find(record, qos=qos, broker=broker)["cells"]
            rows.append([str(qos), broker, *(spread(cells[name]) for name in ("rate", "cpu"))])
    heads = ["QoS", "local broker", "messages/s", "CPU us"]
    return [*table(heads, rows), *caption("bridge")]


def durable():
    record = read("durable-levels")
    rows = []
    for one in record["rows"]:
        level = LEVELS[one["of"]["broker"]]
        told = (spread(one["cells"][name]) for name in ("received", "p99", "cpu"))
        rows.append([DURABLE[one["of"]["scenario"]], level, *told])
    return [
        *table(["load", "level", "messages/s", "p99 ms", "CPU us"], rows),
        *caption("durable-levels"),
    ]


def scaling():
    record = read("scaling")
    rows = []
    for reach in values(record, "messages"):
        rates = [median(find(record, messages=reach, threads=one), "rate") for one in (1, 2, 4)]
        rows.append([reach, *map(figure, rates)])
    heads = ["M messages/s", "1 thread", "2 threads", "4 threads"]
    return [*table(heads, rows), *caption("scaling")]


def cluster():
    record = read("cluster-cost")
    rows = []
    for case in (one for one in values(record, "case") if one.startswith("1:1")):
        alone, three = (find(record, case=case, level=one) for one in ("fsync", "quorum"))
        nats = figure(median(three, "all_nats"))
        rows.append([case, *(figure(median(one, "broker")) for one in (alone, three)), nats])
    heads = ["CPU us per message", "broker, fsync", "broker, quorum", "NATS servers"]
    return [*table(heads, rows), *caption("cluster-cost")]


def faults():
    rows = [gap(one["of"]["fault"], one) for one in read("cluster-faults")["rows"]]
    rows = [cells for what, cells, secs in rows if secs >= GAP_SECS_MIN]
    for one in read("takeover")["rows"]:
        what = "kill active, {sessions:,} sessions, {messages:,} messages".format(**one["of"])
        rows.append(gap(what, one)[1])
    heads = ["fault", "median s without service", "worst s"]
    return [*table(heads, rows), *caption("cluster-faults", "takeover")]


def gap(what, row):
    """What a fault is, its cells, and the median time without service."""
    cell = row["cells"]["without_service"]
    return what, [what, figure(cell["median"]), figure(cell["max"])], cell["median"]


def siege():
    record = read("siege")
    rows = record["rows"]
    holding = [one for one in rows if not one["findings"]]
    lines = [f"The broker withstood {len(holding)} of {len(rows)} attacks.", ""]
    lines += [
        f"- {one['of']['case']}: {'; '.join(one['findings'])}." for one in rows if one["findings"]
    ]
    lines += [
        f"- {one['of']['case']}: p99 of the other clients {figure(median(one, 'p99'))} ms."
        for one in rows
        if "p99" in one.get("missed", [])
    ]
    return [*lines, *caption("siege")]


def kills():
    record = read("routing-kills")
    [row] = record["rows"]
    return [*table(list(row["cells"]), [map(spread, row["cells"].values())]), *caption("routing-kills")]


def away():
    record = read("routing-away")
    targets = [one for one in record["rows"] if "target" in one["of"]]
    names = list(targets[0]["cells"])
    rows = [[one["of"]["target"], *(with_unit(one["cells"][name]) for name in names)] for one in targets]
    lines = table(["target", *names], rows)
    phases = [one for one in record["rows"] if "phase" in one["of"]]
    rows = [[one["of"]["phase"], *(ends(cell) for cell in one["cells"].values())] for one in phases]
    heads = ["MB", *phases[0]["cells"]]
    return [*lines, "", *table(heads, rows), *caption("routing-away")]


def ends(cell):
    """The smallest and the largest."""
    return spread(cell | {"median": None})


def routed():
    """Nothing until it has been measured."""
    if "routing-eg" not in records.suites():
        return []
    record = read("routing-eg")
    names = list(dict.fromkeys(name for one in record["rows"] for name in one["cells"]))
    rows = [
        [f"[{one['of']['scenario']}]({EXAMPLES}/{one['of']['page']})", one["of"]["fault"], one["of"]["to"],
         *(with_unit(one["cells"].get(name)) for name in names)]
        for one in record["rows"]
    ]  # fmt: skip
    text = "Scenarios of Event Grid's report with Kafka in place of the event hub:"
    return ["", text, "", *table(["scenario", "fault", "to", *names], rows), *caption("routing-eg")]


PARTS = (
    peers, ahead, connections, memory, tails, dashboard, durable, bridge, kills, away, routed,
    scaling, cluster, faults, siege,
)  # fmt: skip


# --- Charts


def peers_chart():
    record = read("peers")
    panels = []
    for load, about in LOADS.items():
        rows = [one for one in record["rows"] if one["of"]["scenario"] == load]
        bars = [
            (one["of"]["broker"], one.get("shortcomings", [None])[0] or median(one, "cpu"))
            for one in rows
        ]
        panels.append(Panel(load, about, bars))
    return chart("CPU per message, in microseconds: shorter is better", panels, source(record))


def tails_chart():
    record = read("tails")
    panels = []
    for what in values(record, "disturbance"):
        rows = [one for one in record["rows"] if one["of"]["disturbance"] == what]
        bars = [(one["of"]["broker"], median(one, "p99.9_ratio")) for one in rows]
        if len(bars) > 1 and all(value for _, value in bars):
            panels.append(Panel(what, "p99.9 / p99.9 of the quiet broker", bars))
    return chart(
        "Latency of other clients during a disturbance: shorter is better", panels, source(record)
    )


def source(record):
    command = record["command"].split()[0]
    machine = record["machine"].split(";")[0]
    return f"Commit {record['commit']} of {record['commit_date']}. {machine}. {command}"


# --- Files


def files():
    """Path to text."""
    parts = {f"{{{{{part.__name__}}}}}": part for part in PARTS}
    lines = []
    for line in TEMPLATE.read_text().splitlines():
        lines += parts[line]() if line in parts else [line]
    return {
        PAGE: "\n".join(lines) + "\n",
        CHARTS / "peers.svg": peers_chart(),
        CHARTS / "tails.svg": tails_chart(),
    }


def stale():
    """Files that are not what the results give."""
    return [
        path for path, text in files().items() if not path.is_file() or path.read_text() != text
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    parser.add_argument("--list", action="store_true", help="list all results")
    options = parser.parse_args()
    if options.list:
        for one in map(read, records.suites()):
            print(f"{one['suite']:16} {one['commit']!s:8} {one['date']!s:11} {one['command']}")
    elif options.check:
        found = stale()
        for path in found:
            print(f"{path.relative_to(ROOT)} is not current: run `make docs`")
        return 1 if found else 0
    else:
        CHARTS.mkdir(exist_ok=True)
        for path, text in files().items():
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
