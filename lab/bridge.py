#!/usr/bin/env python3
"""Throughput of a bridge: quelea's compared with mosquitto's, side by side.

A publisher sends messages to a local broker, whose bridge relays them to a mosquitto without
persistence. A subscriber there counts them. At most WINDOW messages are on their way, so that no
queue overflows, and with QoS 2 at most `--in-flight`. The figures are messages per second at the
subscriber, and the CPU time of the local broker per message: it routes and relays. Both bridges
have the same window of unacknowledged messages (`--in-flight`) and the same version of MQTT.

Brokers take turns in each round. With --results the record is written to lab/results/bridge.json.
Run it on a quiet machine.
"""

import argparse
import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests/e2e"))

import records  # noqa: E402
from bridges import bridge_to, free_port  # noqa: E402
from wire import PUBREC, Peer, publish  # noqa: E402

TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")
TOPIC = "bench/a"
PAYLOAD = b"x" * 64
WINDOW = 1_000
BATCH = 50
WARM_UP = 2_000
READY_SECS = 20
READ_BYTES = 1 << 20
# Each with its level of durability.
LOCALS = ["mosquitto", "quelea memory", "quelea fsync"]


# --- Brokers


@contextlib.contextmanager
def running(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(READY_SECS)


def mosquitto(directory, port, in_flight, more=""):
    config = directory / f"mosquitto-{port}.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
        f"max_inflight_messages {in_flight}\nmax_queued_messages 0\nset_tcp_nodelay true\n{more}"
    )
    return ["mosquitto", "-c", str(config)]


def local(name, directory, port, remote_port, options):
    """The command of a local broker with a bridge."""
    if name == "mosquitto":
        version = {"3.1.1": "mqttv311", "5": "mqttv50"}[options.protocol]
        more = (
            f"connection bench\naddress 127.0.0.1:{remote_port}\ntopic bench/# out 2\n"
            f"bridge_protocol_version {version}\nnotifications false\n"
        )
        return mosquitto(directory, port, options.in_flight, more)
    own = bridge_to(
        remote_port, ["bench/# out 2"], name="bench", protocol=options.protocol,
        in_flight_max=options.in_flight, notifications=False,
    )
    config = directory / "quelea.toml"
    config.write_text(
        f'[[listeners]]\nurl = "tcp://127.0.0.1:{port}"\nallow_anonymous = true\n'
        f'[durability]\nlevel = "{name.split()[1]}"\n{own}'
    )
    return [options.bin, "serve", f"--config={config}", f"--data={directory / 'data'}"]


def accepted(port, client_id):
    deadline = time.monotonic() + READY_SECS
    while True:
        try:
            return Peer(port, 4).accepted(client_id=client_id)
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def cpu_secs(process):
    """User and system time of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SEC


# --- Load


class Load:
    """A publisher here, and a subscriber at the remote, in one loop."""

    def __init__(self, publisher, subscriber, qos, in_flight):
        self.publisher, self.subscriber, self.qos = publisher.stream, subscriber.stream, qos
        # Mosquitto accepts no more unfinished QoS 2 messages of a publisher.
        self.window = min(WINDOW, in_flight) if qos == 2 else WINDOW
        self.packet_bytes = len(publish(TOPIC, PAYLOAD, 0, version=4))
        self.sent = self.received_bytes = 0
        self.acks = b""

    @property
    def received(self):
        return self.received_bytes // self.packet_bytes

    def run(self, count):
        """Until so many more messages have arrived."""
        target = self.sent + count
        while self.received < target:
            batch = min(BATCH, target - self.sent, self.window - (self.sent - self.received))
            if batch > 0:
                self.send(batch)
            wait_secs = 0 if batch > 0 else READY_SECS
            ready, _, _ = select.select([self.publisher, self.subscriber], [], [], wait_secs)
            if wait_secs and not ready:
                raise SystemExit(f"only {self.received} of {self.sent} messages arrived")
            if self.subscriber in ready:
                self.received_bytes += len(read(self.subscriber))
            if self.publisher in ready:
                self.answer(read(self.publisher))

    def send(self, count):
        ids = [number % 65_000 + 1 for number in range(self.sent, self.sent + count)]
        self.publisher.sendall(
            b"".join(publish(TOPIC, PAYLOAD, self.qos, one, version=4) for one in ids)
        )
        self.sent += count

    def answer(self, data):
        """PUBREL for each PUBREC. All acknowledgements have four bytes."""
        self.acks += data
        whole = len(self.acks) // 4 * 4
        acks = [self.acks[at : at + 4] for at in range(0, whole, 4)]
        self.acks = self.acks[whole:]
        releases = b"".join(b"\x62" + ack[1:] for ack in acks if ack[0] == PUBREC)
        if releases:
            self.publisher.sendall(releases)


def read(stream):
    data = stream.recv(READ_BYTES)
    if not data:
        raise SystemExit("a broker closed the connection")
    return data


def measured(name, qos, options):
    """Messages per second, and CPU of the local broker in microseconds per message."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        directory = Path(directory)
        port, remote_port = free_port(), free_port()
        stack.enter_context(running(mosquitto(directory, remote_port, options.in_flight)))
        subscriber = stack.enter_context(accepted(remote_port, "subscriber"))
        subscriber.subscribed("bench/#", 0)
        command = local(name, directory, port, remote_port, options)
        process = stack.enter_context(running(command))
        publisher = stack.enter_context(accepted(port, "publisher"))
        await_bridge(publisher, subscriber)
        load = Load(publisher, subscriber, qos, options.in_flight)
        load.run(WARM_UP)
        began, cpu = time.monotonic(), cpu_secs(process)
        load.run(options.messages)
        took, cpu = time.monotonic() - began, cpu_secs(process) - cpu
        return options.messages / took, cpu / options.messages * 1e6


def await_bridge(publisher, subscriber):
    """Publishes until one message arrives, then reads the others."""
    subscriber.stream.settimeout(0.2)
    sent = 0
    while True:
        publisher.send(publish("bench/ready", str(sent), version=4))
        sent += 1
        with contextlib.suppress(socket.timeout):
            got = int(subscriber.message()[1])
            break
        if sent > READY_SECS * 5:
            raise SystemExit("the bridge does not relay")
    subscriber.stream.settimeout(READY_SECS)
    while got < sent - 1:
        got = int(subscriber.message()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--protocol", choices=["3.1.1", "5"], default="5")
    parser.add_argument("--in-flight", type=int, default=100)
    release = ROOT / "target/release/quelea"
    parser.add_argument("--bin", default=os.environ.get("QUELEA_BIN", release))
    parser.add_argument("--results", action="store_true")
    options = parser.parse_args()
    found = {(qos, name): [] for qos in (0, 1, 2) for name in LOCALS}
    for _ in range(options.rounds):
        for qos, name in found:
            found[qos, name].append(measured(name, qos, options))
            print(f"QoS {qos}, {name}: {found[qos, name][-1]}", file=sys.stderr, flush=True)
    rows = [
        records.row(
            {"scenario": "bridge out", "qos": qos, "broker": name},
            {
                "rate": records.cell([rate for rate, _ in runs], "msg/s"),
                "cpu": records.cell([cpu for _, cpu in runs], "us/msg"),
            },
        )
        for (qos, name), runs in found.items()
    ]
    command = f"lab/bridge.py {' '.join(sys.argv[1:])}"
    facts = {name: getattr(options, name) for name in ("messages", "protocol", "in_flight")}
    made = records.record("bridge", command, options.rounds, rows, **facts)
    print("\n".join(records.tables(made)))
    if options.results:
        records.write(made)


if __name__ == "__main__":
    main()
