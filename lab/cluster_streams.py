#!/usr/bin/env python3
"""What a stream costs in a cluster: CPU per published message (QoS 1, level quorum), in one run.

Rows, each a cluster of its own with three NATS servers and three brokers on this machine:

- session: stored for a persistent session that is away
- stream: stored in a stream, whose files a second stream of the engine has
- both: stored for the session and in the stream

Prints microseconds of CPU per message of the active broker, of the standbys together, and of the NATS
servers together, from the first publish until three seconds after the last one. The last 4 MiB of the
stream are in no file then.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / path) for path in ("lab", "tests", "tests/e2e", "tests/cluster")]

from lab import NODES, Lab  # noqa: E402
from routing_cost import STREAM, cpu_of  # noqa: E402
from wire import Peer, connect, subscribe  # noqa: E402

ROWS = ["session", "stream", "both"]
NEVER = b"\x11\xff\xff\xff\xff"


class WithStream(Lab):
    """A cluster whose nodes define the same streams: none or one."""

    rules = ""

    def broker_config(self, node):
        text = super().broker_config(node)
        if not self.rules:
            return text
        path = self.directory / f"node{node + 1}" / "rules.toml"
        path.write_text(self.rules)
        return text + f'[routing]\nfile = "{path}"\n'


def keep_session(port):
    with Peer(port) as away:
        away.send(connect("away", clean=False, properties=NEVER))
        away.recv()
        away.send(subscribe("cars/#", 1))
        away.recv()


def usage(lab, active):
    """Seconds of the active broker, of the others, and of the engines."""
    used = {name: cpu_of(process.pid) for name, process in lab.processes.items()}
    own = f"node{active + 1}"
    others = [used[name] for name in used if name.startswith("node") and name != own]
    return used[own], sum(others), sum(used[name] for name in used if name.startswith("nats"))


def run(row, args, directory):
    with WithStream(directory / "cluster", args.quelea, shards=2) as lab:
        lab.rules = "" if row == "session" else STREAM
        active = lab.start()
        if row != "stream":
            keep_session(lab.mqtt_ports[active])
        before = usage(lab, active)
        load = subprocess.run(
            [args.flock, "pub", "-h", "127.0.0.1", "-p", str(lab.mqtt_ports[active]), "-c", str(args.clients),
             "-i", "1", "-I", str(args.interval_ms), "-t", "cars/%i", "-s", str(args.size), "-q", "1",
             "-L", str(args.messages)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert f"{args.messages:,} messages" in load.stdout, load.stdout[-2000:] + load.stderr[-2000:]
        # Standbys and engines go on.
        time.sleep(3)
        used = zip(usage(lab, active), before, strict=True)
        return [(after - before) / args.messages * 1e6 for after, before in used]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--interval-ms", type=int, default=25)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    figures = {row: [] for row in ROWS}
    for _ in range(args.rounds):
        for row in ROWS:
            with tempfile.TemporaryDirectory() as directory:
                figures[row].append(run(row, args, Path(directory)))
            print(f"{row}: {figures[row][-1]}", file=sys.stderr, flush=True)
    print(f"{NODES} nodes; us of CPU per message: active broker, standbys, NATS; median (least to most)")
    for row, rounds in figures.items():
        columns = [sorted(column) for column in zip(*rounds, strict=True)]
        cells = [f"{statistics.median(own):.0f} ({own[0]:.0f} to {own[-1]:.0f})" for own in columns]
        print(f"{row:8} " + "  ".join(cells))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
