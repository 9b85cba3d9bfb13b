#!/usr/bin/env python3
"""What three nodes with six cells cost compared with one node: CPU for each message, by brokers,
their threads of links (with relays and gateways) and NATS, and CPU of an idle cluster. Writes lab/results/cells-cost.json.

All processes are on this machine, so rates at full speed are those of three machines in one. CPU
for each message carries over. Clients connect to a node at random, as behind a load balancer that
knows no cells. Each round measures both layouts of a case, one after the other, on new servers.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/cluster"))

import records  # noqa: E402
from cluster_cost import NOT_VALID_REMARK, TICKS, Alone, cpu_secs, run_flock  # noqa: E402
from lab import ROOT, Lab  # noqa: E402

SCENARIO = ROOT / "lab/bench/cells-cost.toml"
CELLS = 6
IDLE_SECS = 20
CASES = [
    ("clean sessions, 64 B, 4,000/s", {"rate": "40/s"}),
    ("clean sessions, 64 B, full speed", {"rate": "max"}),
    ("persistent sessions, 64 B, 2,000/s", {"rate": "20/s", "expiry": "1h"}),
]
# Threads of a broker, by the begin of their names.
KINDS = {"links": "links"}
FIGURES = [
    ("rate", "1/s"), ("brokers", "us"), ("links", "us"), ("nats", "us"), ("puback_p50", "ms"), ("puback_p99", "ms"),
]  # fmt: skip


class Several(Lab):
    """Three brokers with six cells on three NATS servers."""

    def __init__(self, directory, broker):
        super().__init__(directory, broker, shards=2, cells=CELLS)

    def start(self, tell=lambda _: None):
        super().start(tell)
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.mqtt_ports)

    def broker_config(self, node):
        return super().broker_config(node) + "[auth]\nallow_anonymous = true\n"


LAYOUTS = {"one node": Alone, "three nodes": Several}


def used_by(lab):
    """Seconds of CPU: of all brokers, of some of their threads, of all NATS servers."""
    used = {"brokers": 0, "nats": 0, **{name: 0 for name in KINDS.values()}}
    for name, process in lab.processes.items():
        used["brokers" if name.startswith("node") else "nats"] += cpu_secs(process.pid)
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            kind = (task / "comm").read_text().strip()
            if name.startswith("node") and kind in KINDS:
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
                used[KINDS[kind]] += (int(fields[11]) + int(fields[12])) / TICKS
    return used


def run_case(lab, flock, params, secs):
    before = used_by(lab)
    result, latency, is_valid = run_flock(lab, flock, SCENARIO, params, secs)
    after = used_by(lab)
    count = result["totals"]["acknowledged"]
    figures = {name: (after[name] - before[name]) * 1e6 / count for name in after}
    figures["rate"] = latency["count"] / secs
    figures["puback_p50"] = latency["p50_us"] / 1000
    figures["puback_p99"] = latency["p99_us"] / 1000
    return figures, is_valid


def measure_idle(lab):
    before = used_by(lab)
    time.sleep(IDLE_SECS)
    after = used_by(lab)
    return {name: (after[name] - before[name]) / IDLE_SECS * 100 for name in after}


def row(name, layout, runs):
    figures, are_valid = zip(*runs, strict=True)
    cells = {
        key: records.cell([run[key] for run in figures], unit)
        for key, unit in FIGURES
        if layout == "three nodes" or key not in (*KINDS.values(), "nats")
    }
    remarks = [] if all(are_valid) else [NOT_VALID_REMARK]
    return records.row({"case": name, "layout": layout}, cells, remarks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=int, default=8)
    parser.add_argument("--cases", default="", help="only cases that contain this: writes nothing")
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release")
    options = parser.parse_args()
    broker, flock = options.bin / "quelea", options.bin / "flock"
    runs, idle = {}, []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            for name, params in CASES:
                if options.cases not in name:
                    continue
                for layout, kind in LAYOUTS.items():
                    with kind(Path(directory) / "lab", broker) as lab:
                        lab.start()
                        if layout == "three nodes" and name == CASES[0][0]:
                            idle.append(measure_idle(lab))
                        run = run_case(lab, flock, params, options.secs)
                    runs.setdefault((name, layout), []).append(run)
                    shown = {key: round(value, 1) for key, value in run[0].items()}
                    print(f"round {number + 1}: {name}, {layout}: {shown}", file=sys.stderr)
    rows = [row(name, layout, found) for (name, layout), found in runs.items()]
    for key in ("brokers", "nats") if idle else ():
        values = [one[key] for one in idle]
        rows.append(records.row({"idle": key}, {"cpu": records.cell(values, "% of a core")}))
    command = f"lab/cells_cost.py --rounds {options.rounds} --secs {options.secs}"
    if options.bin != parser.get_default("bin"):
        command += f" --bin {options.bin}"
    found = records.record("cells-cost", command, options.rounds, rows)
    print("\n".join(records.tables(found)))
    if not options.cases:
        records.write(found)


if __name__ == "__main__":
    main()
