#!/usr/bin/env python3
"""What level quorum costs compared with fsync on one node: CPU of broker, standbys and NATS for
each message, latency of acknowledgements, and CPU of an idle cluster. Writes
lab/results/cluster-cost.json.

All processes of a cluster are on this machine, so rates at full speed are those of three machines
in one. CPU for each message carries over. Each round measures both levels of a case, one after
the other, on new servers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/cluster"))

import records  # noqa: E402
from lab import ROOT, Lab  # noqa: E402

SCENARIO = ROOT / "lab/bench/cluster-cost.toml"
# The exit code of flock for a run that is no measurement.
NOT_VALID = 3
TICKS = os.sysconf("SC_CLK_TCK")
IDLE_SECS = 20
# Name, and parameters of the scenario.
CASES = [
    ("1:1, 64 B, 200/s", {"rate": "10/s"}),
    ("1:1, 64 B, 2,000/s", {"rate": "100/s"}),
    ("1:1, 1 KB, 2,000/s", {"rate": "100/s", "payload": "1K"}),
    ("1:5, 1 KB, 1,000/s", {"rate": "50/s", "payload": "1K", "subscribers": "100"}),
    ("1:1, 64 B, full speed", {"rate": "max"}),
    ("1:1, 1 KB, full speed", {"rate": "max", "payload": "1K"}),
    ("1:5, 1 KB, full speed", {"rate": "max", "payload": "1K", "subscribers": "100"}),
]
# Of a row: name, unit. Those of standbys and NATS are for quorum only.
FIGURES = [
    ("rate", "1/s"), ("broker", "us"), ("standby", "us"), ("all_nats", "us"), ("one_nats", "us"),
    ("puback_p50", "ms"), ("puback_p99", "ms"),
]  # fmt: skip
ALONE = ("rate", "broker", "puback_p50", "puback_p99")
NOT_VALID_REMARK = "latencies are not valid: the machine was busy, or flock was late"
IDLE = ("active node", "each standby", "all NATS servers", "the busiest NATS server")


def cpu_secs(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Cluster(Lab):
    """Three brokers on three NATS servers."""

    def start(self, tell=lambda _: None):
        active = super().start(tell)
        self.broker_name = f"node{active + 1}"
        self.address = f"127.0.0.1:{self.mqtt_ports[active]}"

    def broker_config(self, node):
        return super().broker_config(node) + "[auth]\nallow_anonymous = true\n"


class Alone(Lab):
    """One broker at level fsync."""

    def start(self, tell=lambda _: None):
        self.start_broker(0)
        self.wait("the start of a broker", self.active)
        self.broker_name = "node1"
        self.address = f"127.0.0.1:{self.mqtt_ports[0]}"

    def broker_config(self, node):
        text = super().broker_config(node)
        return text[: text.index("[cluster]")] + "[auth]\nallow_anonymous = true\n"

    def active(self):
        state = self.readiness(0)
        return 0 if state and state[0] == 200 else None


LEVELS = {"fsync": Alone, "quorum": Cluster}


def shares(lab, before, after):
    """Seconds of CPU of the broker, of each standby, of all NATS servers and of the busiest."""
    used = {name: after[name] - before[name] for name in after}
    nats = [secs for name, secs in used.items() if name.startswith("nats")] or [0]
    standbys = [
        secs for name, secs in used.items()
        if name.startswith("node") and name != lab.broker_name
    ]  # fmt: skip
    return used[lab.broker_name], statistics.mean(standbys or [0]), sum(nats), max(nats)


def used_by(lab):
    return {name: cpu_secs(process.pid) for name, process in lab.processes.items()}


def run_flock(lab, flock, scenario, params, secs):
    """Its result, latencies of acknowledgements, and whether it is valid. Nothing may be lost."""
    out = lab.directory / "results"
    command = [flock, "run", scenario, "--broker", lab.address, "--duration", f"{secs}s"]
    command += [word for name, value in params.items() for word in ("--set", f"{name}={value}")]
    ran = subprocess.run(
        [*command, "--out", out, "--name", "run", "--quiet"], capture_output=True, text=True
    )
    if ran.returncode == NOT_VALID:
        print(f"latencies are not valid: {ran.stdout.splitlines()[0]}", file=sys.stderr)
    elif ran.returncode != 0:
        raise SystemExit(f"flock: {ran.stderr or ran.stdout}")
    result = json.loads((out / "run.json").read_text())
    if result["integrity"]["by_qos"][0]["lost"]:
        raise SystemExit(f"messages were lost: {ran.stdout}")
    latency = next(it["summary"] for it in result["latencies"] if it["kind"] == "publish_ack")
    return result, latency, ran.returncode == 0


def run_case(lab, flock, params, secs):
    """Messages per second, us per message by process, latency in ms; and whether it is valid."""
    before = used_by(lab)
    result, latency, is_valid = run_flock(lab, flock, SCENARIO, params, secs)
    after = used_by(lab)
    count = result["totals"]["acknowledged"]
    costs = [used * 1e6 / count for used in shares(lab, before, after)]
    latencies = [latency["p50_us"] / 1000, latency["p99_us"] / 1000]
    return [latency["count"] / secs, *costs, *latencies], is_valid


def measure_idle(lab):
    before = used_by(lab)
    time.sleep(IDLE_SECS)
    return [secs / IDLE_SECS * 100 for secs in shares(lab, before, used_by(lab))]


def row(name, level, runs):
    figures, are_valid = zip(*runs, strict=True)
    columns = zip(FIGURES, zip(*figures, strict=True), strict=True)
    cells = {
        name: records.cell(values, unit)
        for (name, unit), values in columns
        if level == "quorum" or name in ALONE
    }
    remarks = [] if all(are_valid) else [NOT_VALID_REMARK]
    return records.row({"case": name, "level": level}, cells, remarks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=int, default=8)
    parser.add_argument(
        "--cases", default="", help="only cases whose name contains this: nothing is written"
    )
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release")
    options = parser.parse_args()
    broker, flock = options.bin / "quelea", options.bin / "flock"
    runs, idle = {}, []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            for name, params in CASES:
                if options.cases not in name:
                    continue
                for level, kind in LEVELS.items():
                    with kind(Path(directory) / "lab", broker) as lab:
                        lab.start()
                        if level == "quorum" and name == CASES[0][0]:
                            idle.append(measure_idle(lab))
                        run = run_case(lab, flock, params, options.secs)
                    runs.setdefault((name, level), []).append(run)
                    print(
                        f"round {number + 1}: {name}, {level}: {run}", file=sys.stderr, flush=True
                    )
    rows = [row(name, level, found) for (name, level), found in runs.items()]
    for name, values in zip(IDLE, zip(*idle)):
        rows.append(records.row({"idle": name}, {"cpu": records.cell(values, "% of a core")}))
    command = f"lab/cluster_cost.py --rounds {options.rounds} --secs {options.secs}"
    notes = [f"Broker {broker.stat().st_size:,} B."]
    found = records.record("cluster-cost", command, options.rounds, rows, notes=notes)
    print("\n".join(records.tables(found)))
    if not options.cases:
        records.write(found)


if __name__ == "__main__":
    main()
