#!/usr/bin/env python3
"""Runs the scenarios of Event Grid's report that are routed, with the Kafka of the tests and a broker
whose rule sends to it, one after another.

    lab/routing_eg.py EG-1-KAFKA EG-5-KAFKA:kill -- --scale 0.04 --duration 5m

Options behind `--` are those of `flock run`. With `:kill`, Kafka is killed (kill -9) after --kill-secs of
publishing, and started again after --away-secs. Results and pages go to --out. With --results, the figures
go to lab/results/routing-eg.json, and the pages to docs/flock/examples.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("lab", "tests", "tests/kafka", "tests/e2e")]

import records  # noqa: E402

CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[self_check]
interval_secs = "off"
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
"""
RULES = """
[[streams]]
name = "devices"
filters = ["#"]
[[targets]]
name = "hub"
type = "kafka"
servers = ["SERVER"]
[[rules]]
name = "routed"
filter = "#"
form = "binary"
target = "hub"
topic = "TOPIC"
"""
PAGES = ROOT / "docs/flock/examples"
KILLED = ":kill"
# Time for what was published while Kafka was away.
DRAIN = "180s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--out", default="target/routing-eg", help="folder of results and pages")
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--kill-secs", type=float, default=60)
    parser.add_argument("--away-secs", type=float, default=10)
    parser.add_argument("--results", action="store_true", help="write lab/results and docs/flock/examples")
    own, more = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, more = own[:at], own[at + 1 :]
    args = parser.parse_args(own)
    os.environ["QUELEA_BIN"] = args.quelea
    from certificates import Authority
    from server import Kafka

    jars = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True, check=True).stdout.strip()
    rows, codes = [], []
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        (directory / "certificates").mkdir()
        kafka = Kafka(directory, jars, Authority(directory / "certificates"))
        kafka.start()
        try:
            for scenario in args.scenarios:
                code, results = run(scenario, kafka, args, more)
                codes.append(code)
                rows += rows_of(scenario, results, args)
        finally:
            kafka.kill()
    record = records.record("routing-eg", f"lab/routing_eg.py {' '.join(sys.argv[1:])}", 1, rows)
    print("\n".join(records.tables(record)))
    if args.results:
        records.write(record)
        for scenario in args.scenarios:
            shutil.copy(Path(args.out) / f"{name_of(scenario)}.html", PAGES)
    # Not valid as a measurement (3) is no failure: a kill makes connections of Kafka fail.
    return 0 if set(codes) <= {0, 3} else 1


def name_of(scenario):
    return scenario.replace(KILLED, "-kill")


def run(scenario, kafka, args, more):
    """Exit code and results of flock."""
    from broker import Broker

    name = name_of(scenario)
    topic = kafka.create(name.lower())
    rules = RULES.replace("SERVER", kafka.address()).replace("TOPIC", topic)
    broker = Broker(CONFIG, files={"rules.toml": rules})
    over = threading.Event()
    killer = threading.Thread(target=lose_kafka, args=(kafka, broker, over, args))
    if scenario.endswith(KILLED):
        killer.start()
    try:
        command = [args.flock, "run", scenario.removesuffix(KILLED), "--broker", f"127.0.0.1:{broker.port()}",
                   "--name", name, "--set", f"kafka={kafka.address()}", "--set", f"kafka_topic={topic}",
                   "--set", f"drain={DRAIN}", "--out", args.out,
                   "--pid", str(broker.process.pid), *more]  # fmt: skip
        print(" ".join(command), flush=True)
        code = subprocess.run(command).returncode
        print(f"{name}: exit code {code}", flush=True)
    finally:
        over.set()
        if killer.is_alive():
            killer.join()
        broker.stop()
    return code, json.loads((Path(args.out) / f"{name}.json").read_text())


def lose_kafka(kafka, broker, over, args):
    """Kills and starts Kafka once messages have flowed for a time."""
    stored = 'quelea_stream_stored_messages_total{stream="devices"}'
    while not broker.metrics().get(stored):
        if over.wait(0.2):
            return
    if over.wait(args.kill_secs):
        return
    kafka.kill()
    time.sleep(args.away_secs)
    kafka.start()


def rows_of(scenario, results, args):
    """A row for subscribers of each QoS, and one for the sink."""
    fault = f"Kafka is killed for {args.away_secs:.0f} s" if scenario.endswith(KILLED) else "none"
    of = {"scenario": scenario.removesuffix(KILLED), "fault": fault, "page": f"{name_of(scenario)}.html"}
    reasons = [str(reason) for reason in results["validity"].get("reasons", [])]
    rows = []
    for one in results["latencies"]:
        if one["kind"] == "end_to_end" and one["summary"]["count"]:
            to = "subscribers" if one.get("qos") is None else f"subscribers, QoS {one['qos']}"
            rows.append(records.row({**of, "to": to}, latency(one["summary"]), reasons))
    [sink] = results["routing"]["sinks"]
    counts = {name: sum(count[name] for count in sink["by_qos"])
              for name in ("expected", "lost", "duplicated", "reordered")}  # fmt: skip
    cells = {"received": records.cell([sink["received_per_sec"]], "/s"), **latency(sink["latency"])}
    cells |= {name: records.cell([value], "") for name, value in counts.items()}
    rows.append(records.row({**of, "to": "Kafka"}, cells, reasons))
    return rows


def latency(summary):
    return {name: records.cell([summary[f"{name}_us"] / 1000], "ms") for name in ("p50", "p75", "p90", "p99")}


if __name__ == "__main__":
    sys.exit(main())
