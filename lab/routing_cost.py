#!/usr/bin/env python3
"""What a stream and a rule cost: CPU of the broker per published message, side by side in one run.

Rows, each a broker of its own on core 0, with the load on core 1:

- none: nobody wants the message, and it is not stored
- session: stored for a persistent session that is away (level fsync)
- stream: stored in a stream (level fsync), and no rule reads it
- rule: the same, and a rule sends it to Kafka (form raw)
- rule-binary: the same with the form binary
- rule-webhook: a rule with form batch sends to a webhook of flock's kind that only answers

The CPU is that of the process over the messages of the load, after the last of them has reached Kafka.
Kafka is that of the tests (tests/kafka). Prints a table, and JSON with --json.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/kafka"), str(ROOT / "tests/e2e")]

TICKS = os.sysconf("SC_CLK_TCK")

CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[sys]
interval_secs = "off"
[self_check]
interval_secs = "off"
"""
ROUTING = '[routing]\nfile = "{dir}/rules.toml"\ntarget_networks = ["127.0.0.0/8"]\n'
STREAM = '[[streams]]\nname = "cars"\nfilters = ["cars/#"]\n'
TARGET = '[[targets]]\nname = "lake"\ntype = "kafka"\nservers = ["SERVER"]\nCOMPRESSION\n'
RULE = '[[rules]]\nname = "all"\nfilter = "cars/#"\nform = "FORM"\ntarget = "lake"\ntopic = "TOPIC"\n'
ROWS = ["none", "session", "stream", "rule", "rule-binary", "rule-lz4"]


def cpu_of(pid):
    """Seconds of user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rules(row, kafka, topic):
    text = STREAM
    if row.startswith("rule"):
        form = "binary" if row == "rule-binary" else "raw"
        lz4 = 'compression = "lz4"' if row == "rule-lz4" else ""
        target = TARGET.replace("SERVER", kafka.address()).replace("COMPRESSION", lz4)
        text += target + RULE.replace("FORM", form).replace("TOPIC", topic)
    return text


def run(row, kafka, args, number):
    from broker import Broker
    from wire import Peer, connect, subscribe

    topic = kafka.create(f"cost-{os.getpid()}-{number}", partitions=4) if row.startswith("rule") else ""
    has_stream = row == "stream" or row.startswith("rule")
    files = {"rules.toml": rules(row, kafka, topic)} if has_stream else {}
    broker = Broker(CONFIG + (ROUTING if has_stream else ""), files=files, within=["taskset", "-c", "0"])
    try:
        if row == "session":
            away = Peer(broker.port())
            away.send(connect("away", clean=False, properties=b"\x11\xff\xff\xff\xff"))
            away.recv()
            away.send(subscribe("cars/#", 1))
            away.recv()
            away.close()
        before = cpu_of(broker.process.pid)
        load = subprocess.run(
            ["taskset", "-c", "1", args.flock, "pub", "-h", "127.0.0.1", "-p", str(broker.port()), "-c", str(args.clients), "-i", "1",
             "-I", str(args.interval_ms), "-t", "cars/%i", "-s", str(args.size), "-q", "1",
             "-L", str(args.messages)],
            capture_output=True, text=True,
        )  # fmt: skip
        # A load that was late is no matter: CPU is counted, not time.
        assert f"{args.messages:,} messages" in load.stdout, load.stdout[-2000:] + load.stderr[-2000:]
        if row.startswith("rule"):
            wait_for_all(kafka, topic, args.messages)
        else:
            time.sleep(2)
        used = cpu_of(broker.process.pid) - before
        return used / args.messages * 1e6
    finally:
        broker.stop()


def wait_for_all(kafka, topic, count):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.address(), "group.id": f"cost-{topic}"})
    deadline = time.monotonic() + 300
    while True:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, part), 60)[1] for part in range(4)]
        if sum(ends) >= count:
            consumer.close()
            return
        assert time.monotonic() < deadline, f"{sum(ends)} of {count} reached Kafka"
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--interval-ms", type=int, default=10)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    os.environ["QUELEA_BIN"] = args.quelea
    from certificates import Authority
    from server import Kafka

    jars = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True, check=True).stdout.strip()
    figures = {row: [] for row in args.rows.split(",")}
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        (directory / "certificates").mkdir()
        kafka = Kafka(directory, jars, Authority(directory / "certificates"))
        kafka.start()
        try:
            for number in range(args.rounds):
                for row in figures:
                    figures[row].append(run(row, kafka, args, f"{number}-{row}"))
                    print(f"{row}: {figures[row][-1]:.2f} us", file=sys.stderr, flush=True)
        finally:
            kafka.kill()
    print(f"| row | us of CPU per message of {args.size} B, median | spread |\n|---|---|---|")
    for row, values in figures.items():
        print(f"| {row} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    if args.json:
        Path(args.json).write_text(json.dumps({"arguments": vars(args), "us": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
