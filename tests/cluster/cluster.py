#!/usr/bin/env python3
"""`make cluster`: three NATS servers and three brokers on loopback, until Ctrl-C."""

import argparse
import signal
import threading

from lab import NODES, ROOT, Lab

HELP = """
  quelea sub -p {port} -i reader -c -q 1 -t 'demo/#' -v     a kept session
  quelea pub -p {other} -q 1 -t demo/a -m hello              a message that two disks have
  kill -9 {pid}                                             a node: others take over its cells
"""


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--broker", default=ROOT / "target/quick/quelea")
    options.add_argument("--directory", default=ROOT / "target/cluster")
    options.add_argument("--cells", type=int, default=6, help="cells of the cluster (default: 6)")
    arguments = options.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Lab(arguments.directory, arguments.broker, cells=arguments.cells, shards=2) as lab:
        lab.start(tell=lambda what: print(f"cluster: {what}", flush=True))
        show(lab)
        watch(lab, ended)
        print("cluster: stopping", flush=True)


def show(lab):
    print("node    MQTT    HTTP    NATS    pid of broker   pid of NATS")
    for node in range(NODES):
        ports = (lab.mqtt_ports[node], lab.http_ports[node], lab.engine_ports[node])
        pids = [lab.processes[f"{kind}{node + 1}"].pid for kind in ("node", "nats")]
        columns = [f"{port:7}" for port in ports] + [f"{pids[0]:15}", f"{pids[1]:13}"]
        print(f"node{node + 1}", *columns)
    tell(lab.owners())
    print(f"\nTo try it (quelea is {lab.broker}; Ctrl-C stops everything):")
    port, other = lab.mqtt_ports[:2]
    print(HELP.format(port=port, other=other, pid=lab.processes["node1"].pid), flush=True)


def tell(owners):
    names = [f"node{node + 1}" if node is not None else "none" for node in owners]
    cells = ", ".join(f"{cell}: {name}" for cell, name in enumerate(names))
    print(f"cluster: active nodes of the cells: {cells}", flush=True)


def watch(lab, ended):
    """Reports who is active, and starts again what was killed."""
    known = lab.owners()
    while not ended.wait(0.5):
        for name, process in list(lab.processes.items()):
            if process.poll() is not None and not ended.is_set():
                print(f"cluster: {name} has ended ({process.returncode}), starting it", flush=True)
                node = int(name[-1]) - 1
                lab.start_engine(node) if name.startswith("nats") else lab.start_broker(node)
        owners = lab.owners()
        if owners != known:
            tell(owners)
            known = owners


if __name__ == "__main__":
    main()
