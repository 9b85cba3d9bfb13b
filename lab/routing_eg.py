#!/usr/bin/env python3
"""Runs the scenarios of Event Grid's report that are routed, with the Kafka of the tests and a broker
whose rules send to it. Results and pages go to --out.

    lab/routing_eg.py --out results EG-1-KAFKA EG-2-KAFKA EG-5-KAFKA -- --scale 0.1

Options behind `--` are those of `flock run`. With --kill SECS, Kafka is killed (kill -9) so many seconds
after the start of each run, and started again after --away SECS.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/kafka"), str(ROOT / "tests/e2e")]

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--kill", type=float)
    parser.add_argument("--away", type=float, default=10)
    own, more = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, more = own[:at], own[at + 1 :]
    args = parser.parse_args(own)
    os.environ["QUELEA_BIN"] = args.quelea
    from broker import Broker
    from certificates import Authority
    from server import Kafka

    jars = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        (directory / "certificates").mkdir()
        kafka = Kafka(directory, jars, Authority(directory / "certificates"))
        kafka.start()
        try:
            for scenario in args.scenarios:
                run(scenario, kafka, args, more, Broker)
        finally:
            kafka.kill()


def run(scenario, kafka, args, more, Broker):
    topic = kafka.create(scenario.lower())
    rules = RULES.replace("SERVER", kafka.address()).replace("TOPIC", topic)
    broker = Broker(CONFIG, files={"rules.toml": rules})

    def lose_kafka():
        time.sleep(args.kill)
        kafka.kill()
        time.sleep(args.away)
        kafka.start()

    if args.kill is not None:
        threading.Thread(target=lose_kafka).start()
    try:
        command = [args.flock, "run", scenario, "--broker", f"127.0.0.1:{broker.port()}", "--name", scenario,
                   "--set", f"kafka={kafka.address()}", "--set", f"kafka_topic={topic}", "--out", args.out,
                   "--pid", str(broker.process.pid), *more]  # fmt: skip
        print(" ".join(command), flush=True)
        print(f"{scenario}: exit code {subprocess.run(command).returncode}", flush=True)
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
