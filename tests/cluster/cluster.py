#!/usr/bin/env python3
"""`make cluster`: three NATS servers and three brokers on loopback, until Ctrl-C."""

import argparse
import signal
import threading

from lab import NODES, ROOT, Lab

HELP = """
  quelea sub -p {port} -i reader -c -q 1 -t 'demo/#' -v     a kept session
  quelea pub -p {port} -q 1 -t demo/a -m hello              a message that two disks have
  quelea cluster status --config {config}
  quelea cluster switchover --config {config}
  kill -9 {pid}                                             the active node: another takes over
"""


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--broker", default=ROOT / "target/quick/quelea")
    options.add_argument("--directory", default=ROOT / "target/cluster")
    arguments = options.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Lab(arguments.directory, arguments.broker) as lab:
        active = lab.start(tell=lambda what: print(f"cluster: {what}", flush=True))
        show(lab, active)
        watch(lab, active, ended)
        print("cluster: stopping", flush=True)


def show(lab, active):
    print("node    MQTT    HTTP    NATS    pid of broker   pid of NATS")
    for node in range(NODES):
        ports = (lab.mqtt_ports[node], lab.http_ports[node], lab.engine_ports[node])
        pids = [lab.processes[f"{kind}{node + 1}"].pid for kind in ("node", "nats")]
        mark = "  active" if node == active else ""
        columns = [f"{port:7}" for port in ports] + [f"{pids[0]:15}", f"{pids[1]:13}{mark}"]
        print(f"node{node + 1}", *columns)
    pid = lab.processes[f"node{active + 1}"].pid
    config = lab.directory / f"node{active + 1}" / "quelea.toml"
    print(f"\nTo try it (quelea is {lab.broker}; Ctrl-C stops everything):")
    print(HELP.format(port=lab.mqtt_ports[active], config=config, pid=pid), flush=True)


def watch(lab, active, ended):
    """Reports who is active, and starts again what was killed."""
    while not ended.wait(0.5):
        for name, process in list(lab.processes.items()):
            if process.poll() is not None and not ended.is_set():
                print(f"cluster: {name} has ended ({process.returncode}), starting it", flush=True)
                node = int(name[-1]) - 1
                lab.start_engine(node) if name.startswith("nats") else lab.start_broker(node)
        now = lab.active()
        if now is not None and now != active:
            print(f"cluster: node{now + 1} is active, MQTT port {lab.mqtt_ports[now]}", flush=True)
            active = now


if __name__ == "__main__":
    main()
