#!/usr/bin/env python3
"""How long a takeover takes with many sessions and a large log, compared with an empty cluster.

Fills a cluster on this machine, kills the active node ROUNDS times, and measures the time from
the last PUBACK of a publisher to the first one of the node that took over. Writes
lab/results/takeover.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "cluster"), str(TESTS / "e2e")]

import records  # noqa: E402
from cluster_cost import Cluster  # noqa: E402
from lab import NODES, ROOT  # noqa: E402
from wire import PUBACK, Peer, publish  # noqa: E402

FILL = ROOT / "lab/bench/cluster-fill.toml"
PUBLISHERS = 50
LAG_SECS = 600
SERVED_SECS = 60


def acknowledged(peer):
    """One QoS 1 message; when its PUBACK came."""
    peer.send(publish("probe", "x", 1, packet_id=1))
    peer.expect(PUBACK)
    return time.monotonic()


def await_service(lab, since):
    """Tries all nodes in turn until one acknowledges a message."""
    while time.monotonic() < since + SERVED_SECS:
        for port in lab.mqtt_ports:
            try:
                with Peer(port) as peer:
                    peer.accepted(client_id="probe")
                    return acknowledged(peer)
            except (OSError, AssertionError):
                time.sleep(0.02)
    raise SystemExit("no node took over")


def status(lab):
    command = [lab.broker, "cluster", "status", "--json", "--config", lab.config(0)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def await_standbys(lab):
    def are_ready():
        nodes = status(lab)["nodes"]
        lags = [node["lag_messages"] for node in nodes if node["role"] == "standby"]
        return len(lags) == NODES - 1 and max(lags) == 0

    until = time.monotonic() + LAG_SECS
    while not are_ready():
        if time.monotonic() > until:
            raise SystemExit("the standbys do not catch up")
        time.sleep(0.5)


def gap(lab):
    """Kills the active node, and starts it again when another one serves."""
    await_standbys(lab)
    node = lab.wait("the active node", lab.active)
    with Peer(lab.mqtt_ports[node]) as peer:
        peer.accepted(client_id="probe")
        last = acknowledged(peer)
        process = lab.processes.pop(f"node{node + 1}")
        process.kill()
        process.wait()
    served = await_service(lab, last) - last
    lab.start_broker(node)
    return served


def fill(lab, flock, sessions, log_bytes):
    messages = max(1, log_bytes // 1024 // PUBLISHERS)
    command = [
        flock, "run", FILL, "--broker", lab.address, "--quiet", "--name", "fill",
        "--set", f"sessions={sessions}", "--set", f"messages={messages}",
        "--out", lab.directory / "results",
    ]  # fmt: skip
    # Nobody receives them, which flock reports as a loss.
    ran = subprocess.run(command, capture_output=True, text=True)
    result = json.loads((lab.directory / "results/fill.json").read_text())
    stored = result["totals"]["acknowledged"]
    if stored < messages * PUBLISHERS or result["totals"]["subscribes_ok"] < sessions:
        raise SystemExit(f"only {stored} messages were stored: {ran.stdout}{ran.stderr}")
    return stored


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--log-mib", type=int, default=1024)
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release")
    options = parser.parse_args()
    broker, flock = options.bin / "quelea", options.bin / "flock"
    rows = []
    for sessions, log_mib in ((0, 0), (options.sessions, options.log_mib)):
        with (
            tempfile.TemporaryDirectory() as directory,
            Cluster(Path(directory) / "lab", broker) as lab,
        ):
            lab.start()
            stored = fill(lab, flock, sessions, log_mib << 20) if sessions else 0
            gaps = [gap(lab) for _ in range(options.rounds)]
            print(f"{sessions} sessions, {stored} messages: {gaps}", file=sys.stderr, flush=True)
            of = {"sessions": sessions, "messages": stored}
            rows.append(records.row(of, {"without_service": records.cell(gaps, "s")}))
    command = f"lab/takeover.py {' '.join(sys.argv[1:])}"
    found = records.record("takeover", command, options.rounds, rows)
    print("\n".join(records.tables(found)))
    records.write(found)


if __name__ == "__main__":
    main()
