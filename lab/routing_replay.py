#!/usr/bin/env python3
"""How fast a rule catches up: fills a stream, then adds a rule that begins at the first message.

Prints messages per second until Kafka has all of them, and the CPU of the broker per message.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "tests"), str(ROOT / "tests/kafka"), str(ROOT / "tests/e2e")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--form", default="raw")
    parser.add_argument("--rule", default="", help="further lines of the rule, such as 'in_flight_max = 50000'")
    args = parser.parse_args()
    os.environ["QUELEA_BIN"] = args.quelea
    from broker import Broker
    from certificates import Authority
    from routing_cost import CONFIG, ROUTING, RULE, STREAM, TARGET, cpu_of, wait_for_all
    from server import Kafka

    jars = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        (directory / "certificates").mkdir()
        kafka = Kafka(directory, jars, Authority(directory / "certificates"))
        kafka.start()
        broker = Broker(CONFIG + ROUTING, files={"rules.toml": STREAM + 'durability = "disk"\n'})
        try:
            topic = kafka.create("replay", partitions=4)
            load = subprocess.run(
                [args.flock, "pub", "-h", "127.0.0.1", "-p", str(broker.port()), "-c", "50", "-i", "1", "-I", "0",
                 "-t", "cars/%i", "-s", str(args.size), "-q", "1", "-L", str(args.messages)],
                capture_output=True, text=True,
            )  # fmt: skip
            assert f"{args.messages:,} messages" in load.stdout, load.stdout + load.stderr
            pid = broker.process.pid
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
            bytes_ = sum(path.stat().st_size for path in broker.data.glob("streams/*/*.stream"))
            print(f"stored {args.messages} messages; {bytes_ / 1e6:.0f} MB in files; resident {resident / 1e6:.0f} MB")
            rule = RULE.replace("FORM", args.form).replace("TOPIC", topic) + f'start = "beginning"\n{args.rule}\n'
            target = TARGET.replace("SERVER", kafka.address()).replace("COMPRESSION", "")
            (broker.directory / "rules.toml").write_text(STREAM + 'durability = "disk"\n' + target + rule)
            before, began = cpu_of(pid), time.monotonic()
            broker.process.send_signal(signal.SIGHUP)
            wait_for_all(kafka, topic, args.messages)
            took = time.monotonic() - began
            used = (cpu_of(pid) - before) / args.messages * 1e6
            print(f"replay: {args.messages / took:.0f} messages/s, {used:.2f} us of CPU per message")
        finally:
            broker.stop()
            kafka.kill()


if __name__ == "__main__":
    main()
