#!/usr/bin/env python3
"""Memory of connections, subscriptions and retained messages, of whole processes over sockets.

`lab/memory.py` starts each broker of `--brokers` as `crates/flock/flock/brokers/*.toml` describe it,
and reads its resident memory (`VmRSS`) before and after 15,000 idle connections, a million
distinct subscriptions, or a million retained messages. It writes lab/results/memory.json. Tables
of a broker grow by doubling, so that bytes per entry swing. `worst_each` is the largest number of
bytes per entry on the way to the full number, from a quarter of it on.

With a million subscriptions it measures the CPU of a message to one subscriber, and with a
million retained messages the time until a subscriber to all of them has the last.
"""

import argparse
import contextlib
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

import records  # noqa: E402
from ports import free_ports  # noqa: E402

TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")
CONNECTIONS = 1_000
FILTERS_PER_PACKET = 100
PAYLOAD = b"x" * 64
# Unanswered retained messages per connection.
WINDOW = 100
KEEPERS = 10
# A broker gives memory back, or takes more, for a moment after the last request.
SETTLE_SECS = 0.5
READY_SECS = 30
ANSWER_SECS = 60
READ_BYTES = 1 << 20
ROUTED = 100_000


# --- MQTT, as much of it as is needed


def text(string):
    data = string.encode()
    return struct.pack(">H", len(data)) + data


def packet(first, *parts):
    body = b"".join(parts)
    size, length = len(body), b""
    while True:
        size, digit = size >> 7, size & 0x7F
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return bytes([first]) + length + body


def connect_packet(name, version=4):
    properties = b"\x00" if version == 5 else b""
    return packet(0x10, text("MQTT"), bytes([version, 2]), b"\x00\x00", properties, text(name))


def subscribe_packet(number, filters, qos=0):
    asked = (text(filter) + bytes([qos]) for filter in filters)
    return packet(0x82, struct.pack(">H", number), *asked)


def publish_packet(topic, payload, qos=0, retain=False, number=1):
    identifier = struct.pack(">H", number) if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic), identifier, payload)


def connected(port, name, version=4):
    stream = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.sendall(connect_packet(name, version))
    answer = stream.recv(1000)
    if len(answer) < 4 or answer[0] != 0x20 or answer[3]:
        raise OSError(f"{name} was refused: {answer.hex()}")
    return stream


def read_exactly(stream, count):
    """Reads over so many bytes; what they are is known."""
    while count > 0:
        got = len(stream.recv(min(count, READ_BYTES)))
        if not got:
            raise OSError("the broker closed the connection")
        count -= got


# --- Brokers


class Broker:
    """A broker started afresh as its description says."""

    def __init__(self, name, cores):
        path = ROOT / "crates/flock/flock/brokers" / f"{name.partition(':')[0]}.toml"
        described = tomllib.loads(path.read_text())
        self.name = name.partition(":")[2] or described["name"]
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-memory-"))
        [self.port] = free_ports(1)
        program = find_program(described)
        variants = [one for one in described.get("variant", []) if one["name"] == self.name]
        self.words = {"program": program, "port": self.port, "dir": self.directory, "cores": cores}
        for params in [described.get("params", {}), *(one["params"] for one in variants)]:
            self.words |= {key: self.fill(value) for key, value in params.items()}
        self.version = self.version_of(described)
        for file in described.get("file", []):
            target = self.directory / file["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.fill(file["text"]))
        more = {key: self.fill(value) for key, value in described.get("env", {}).items()}
        self.process = subprocess.Popen(
            [self.fill(word) for word in described["command"]],
            env=os.environ | more | {"QUELEA_limits__retained_messages_max": "2000000"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.await_ready()

    def fill(self, words):
        for name, value in self.words.items():
            words = words.replace("{" + name + "}", str(value))
        return words

    def version_of(self, described):
        command = [self.fill(word) for word in described["version"]]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
        return next((word for word in shown.split() if word[:1].isdigit()), "")

    def await_ready(self):
        until = time.monotonic() + READY_SECS
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError):
                connected(self.port, "first").close()
                return
            time.sleep(0.05)
        raise OSError(f"{self.name} did not start")

    def resident(self):
        time.sleep(SETTLE_SECS)
        return self.resident_now()

    def resident_now(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def cpu_secs(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")")[-1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SEC

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def find_program(described):
    for program in described["programs"]:
        found = shutil.which(os.path.expanduser(os.path.expandvars(program)))
        if found:
            return found
    raise OSError(f"{described['name']} is missing: {described['install']}")


# --- What is held


class Growth:
    """Bytes per entry on the way, from a quarter of the whole on."""

    def __init__(self, broker, whole):
        self.broker, self.whole = broker, whole
        self.before = broker.resident()
        self.worst = (0, 0)

    def reached(self, count):
        if count * 4 >= self.whole:
            each = (self.broker.resident_now() - self.before) / count
            self.worst = max(self.worst, (each, count))

    def end(self):
        grown = self.broker.resident() - self.before
        return grown, max(self.worst, (grown / self.whole, self.whole))


def idle(broker, count, version):
    before = broker.resident()
    streams = [connected(broker.port, f"idle-{at:06}", version) for at in range(count)]
    grown = broker.resident() - before
    for stream in streams:
        stream.close()
    return grown


def subscriptions(broker, count, shape):
    """`shape` makes a filter of connection and number. The growth, and the streams."""
    streams = [connected(broker.port, f"holder-{at:04}") for at in range(CONNECTIONS)]
    growth, done = Growth(broker, count), 0
    each = count // CONNECTIONS
    # All connections side by side, so that the tables of all shards grow together.
    for first in range(0, each, FILTERS_PER_PACKET):
        numbers = range(first, min(first + FILTERS_PER_PACKET, each))
        for at, stream in enumerate(streams):
            stream.sendall(subscribe_packet(1, [shape(at, number) for number in numbers]))
            if at % 100 == 99:
                # A SUBACK has a code for each filter behind four bytes.
                for one in streams[at - 99 : at + 1]:
                    read_exactly(one, len(packet(0x90, bytes(2 + len(numbers)))))
                done += 100 * len(numbers)
                growth.reached(done)
    return growth.end(), streams


def exact(at, number):
    return f"site/{at:04}/device/{number:04}/state"


def wildcard(at, number):
    return f"site/{at:04}/device/{number:04}/+"


def routing_us(broker, streams, each, count=ROUTED):
    """CPU per QoS 0 message to a topic that one of the streams has, which the drain shares."""
    publisher = connected(broker.port, "publisher")
    body = b"x" * 16
    size = len(publish_packet(exact(0, 0), body))
    before = broker.cpu_secs()
    for first in range(0, count, CONNECTIONS):
        # A step that has no divisor in common with the counts goes through all of them.
        numbers = [(first + at) * 7919 % each for at in range(CONNECTIONS)]
        publisher.sendall(
            b"".join(publish_packet(exact(at, one), body) for at, one in enumerate(numbers))
        )
        for stream in streams:
            read_exactly(stream, size)
    spent = broker.cpu_secs() - before
    publisher.close()
    return spent * 1e6 / count


def kept(number):
    return f"site/{number % 1000:04}/device/{number // 1000:04}/state"


def retained(broker, count):
    streams = [connected(broker.port, f"keeper-{at}") for at in range(KEEPERS)]
    growth = Growth(broker, count)
    acknowledgement = len(packet(0x40, bytes(2)))
    in_flight = [0] * KEEPERS
    for turn, first in enumerate(range(0, count, WINDOW)):
        numbers = range(first, min(first + WINDOW, count))
        at = turn % KEEPERS
        # The windows of the others are under way meanwhile.
        read_exactly(streams[at], in_flight[at] * acknowledgement)
        in_flight[at] = len(numbers)
        streams[at].sendall(
            b"".join(
                publish_packet(kept(one), PAYLOAD, 1, True, one % WINDOW + 1) for one in numbers
            )
        )
        if first % 20_000 == 0:
            growth.reached(first)
    for stream, unanswered in zip(streams, in_flight):
        read_exactly(stream, unanswered * acknowledgement)
        stream.close()
    return growth.end()


def fetch_secs(broker, count):
    """A subscriber to everything gets every retained message: seconds until the last byte."""
    stream = connected(broker.port, "looker")
    one = len(publish_packet(kept(0), PAYLOAD, retain=True))
    began = time.monotonic()
    stream.sendall(subscribe_packet(1, ["site/#"]))
    read_exactly(stream, len(packet(0x90, bytes(3))) + one * count)
    took = time.monotonic() - began
    stream.close()
    return took


# --- The rows


class Rows:
    """What was measured of one broker."""

    def __init__(self, broker):
        self.broker, self.version, self.made = broker.name, broker.version, []

    def add(self, what, value, unit, **more):
        """`more`: name to (value, unit)."""
        found = {"value": (value, unit), **more}
        cells = {name: records.cell([number], unit) for name, (number, unit) in found.items()}
        row = records.row({"what": what, "broker": self.broker}, cells)
        self.made.append(row | {"version": self.version})
        print(f"{self.broker}: {what}: {value:,.2f} {unit}", flush=True)

    def grown(self, what, grown, count):
        self.add(what, grown / count, "B")

    def held(self, what, result, whole):
        grown, (worst, at) = result
        # Smoothed growth has no peak.
        peak = {"worst_each": (worst, "B"), "worst_at": (at, None)}
        self.add(what, grown / 1e6, "MB", **(peak if worst * whole > grown * 1.02 else {}))


def measure(name, arguments):
    """All rows of one broker; a row that it cannot do stays empty."""
    start = lambda: Broker(name, arguments.cores)
    with start() as broker:
        cells = Rows(broker)
        cells.add("started, nothing held", broker.resident() / 1e6, "MB")
        row = f"idle connection, 3.1.1, {arguments.idle:,} of them"
        attempt(lambda: cells.grown(row, idle(broker, arguments.idle, 4), arguments.idle), row)
    row = f"idle connection, 5, {arguments.idle:,} of them"
    with start() as broker:
        attempt(lambda: cells.grown(row, idle(broker, arguments.idle, 5), arguments.idle), row)
    attempt(lambda: measure_subscriptions(cells, start, arguments.count), "subscriptions")
    attempt(lambda: measure_retained(cells, start, arguments.count), "retained messages")
    return cells.made


def measure_subscriptions(cells, start, count):
    few = CONNECTIONS
    with start() as broker:
        _, streams = subscriptions(broker, few, exact)
        cost = routing_us(broker, streams, few // CONNECTIONS)
        cells.add(f"CPU per message, one subscriber, {few:,} subscriptions", cost, "us")
    with start() as broker:
        held, streams = subscriptions(broker, count, exact)
        cells.held(f"{count:,} exact subscriptions, filters of {len(exact(0, 0))} B", held, count)
        cost = routing_us(broker, streams, count // CONNECTIONS)
        cells.add(f"CPU per message, one subscriber, {count:,} subscriptions", cost, "us")
    with start() as broker:
        held, _ = subscriptions(broker, count, wildcard)
        size = len(wildcard(0, 0))
        cells.held(f"{count:,} wildcard subscriptions, filters of {size} B", held, count)


def measure_retained(cells, start, count):
    with start() as broker:
        held = retained(broker, count)
        words = f"{count:,} retained messages of {len(PAYLOAD)} B, topics of {len(kept(0))} B"
        cells.held(words, held, count)
        took = fetch_secs(broker, count)
        cells.add(f"all {count:,} sent to a subscriber", took, "s")


def attempt(work, what):
    try:
        work()
    except OSError as error:
        print(f"{what}: {error}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--brokers", default="quelea,quelea:quelea-memory,mosquitto")
    parser.add_argument("--count", type=int, default=1_000_000, help="subscriptions, messages")
    parser.add_argument("--idle", type=int, default=15_000, help="connections")
    parser.add_argument("--cores", type=int, default=2, help="threads, where a broker has a choice")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--no-build", action="store_true", help="take the quelea in PATH")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.chdir(ROOT)
    if not arguments.no_build:
        build = ["cargo", "build", "--profile", arguments.profile, "-p", "quelea"]
        subprocess.run(build, check=True)
        os.environ["PATH"] = f"{ROOT}/target/{arguments.profile}:{os.environ['PATH']}"
    rows = [row for name in arguments.brokers.split(",") for row in measure(name, arguments)]
    command = " ".join(["lab/memory.py", *sys.argv[1:]])
    notes = [f"Growth of VmRSS; {arguments.cores} threads for each broker."]
    found = records.record("memory", command, 1, rows, notes=notes)
    print("\n".join(records.tables(found)))
    if not arguments.print_only:
        records.write(found)


if __name__ == "__main__":
    main()
