#!/usr/bin/env python3
"""The well-behaved clients beside an attack, in a process of their own.

`pair.py pair PORT` publishes a message every 10 ms at QoS 1 from one client to another.
`pair.py newcomer PORT [SCHEME-DATA]` logs in, publishes and leaves, four times a second.

Both print a line `ready`, take the names of phases on standard input, one a line, and print what
they have seen in each phase as JSON when told `end`.
"""

import json
import os
import select
import struct
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))

import wire

PERIOD_SECS = 0.01
NEWCOMER_PERIOD_SECS = 0.25
# What has not come by then is lost.
PATIENCE_SECS = 10
NEWCOMER_PATIENCE_SECS = 5
PAYLOAD = struct.Struct(">QdH")
TOPIC = "siege/pair"


class Phases:
    """The phases as they are told, and what belongs to each."""

    def __init__(self, make):
        self.make, self.all, self.name, self.buffer = make, {}, None, b""
        self.is_over = False
        os.set_blocking(0, False)
        self.begin("before")

    def begin(self, name):
        self.name = name
        self.all.setdefault(name, self.make())

    @property
    def now(self):
        return self.all[self.name]

    def listen(self):
        try:
            more = os.read(0, 4096)
        except BlockingIOError:
            return
        if not more:
            self.is_over = True
        self.buffer += more
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            if line == b"end":
                self.is_over = True
            else:
                self.begin(line.decode())


class End:
    """One of the two connections, which does not wait."""

    def __init__(self, port, login, client_id):
        peer = wire.Peer(("127.0.0.1", port))
        peer.accepted(client_id=client_id, keep_alive=0, **login)
        self.peer, self.socket, self.inbox = peer, peer.stream, b""

    def packets(self):
        """The whole packets that have come; None at the end of the connection."""
        try:
            more = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not more:
            return None
        self.inbox += more
        found = []
        while len(self.inbox) >= 2 and self.inbox[1] + 2 <= len(self.inbox):
            # All of ours are short: one byte of length.
            length = self.inbox[1] + 2
            found.append((self.inbox[0], self.inbox[2:length]))
            self.inbox = self.inbox[length:]
        return found


def new_counts():
    return {"sent": 0, "refused": 0, "acknowledged": 0, "received": 0, "late_ms": []}


def run_pair(port, login):
    subscriber = End(port, login, "siege-subscriber")
    subscriber.peer.subscribed(TOPIC, 1)
    publisher = End(port, login, "siege-publisher")
    phases, cut = Phases(new_counts), {}
    for end in (publisher, subscriber):
        end.socket.setblocking(False)
    print("ready", flush=True)
    next_at, number, over_at = time.monotonic(), 0, None
    open_acks, open_messages = {}, {}
    while True:
        now = time.monotonic()
        phases.listen()
        if phases.is_over and over_at is None:
            over_at = now
        if over_at is not None:
            if cut or not (open_acks or open_messages) or now > over_at + PATIENCE_SECS:
                break
        elif now >= next_at and not cut:
            # Open loop: what was due is sent, and counted from when it was due.
            number += 1
            packet_id = number % 60_000 + 1
            payload = PAYLOAD.pack(number, next_at, packet_id)
            open_acks[packet_id] = open_messages[number] = phases.name
            phases.now["sent"] += 1
            try:
                publisher.socket.sendall(wire.publish(TOPIC, payload, 1, packet_id))
            except OSError:
                cut.setdefault("publisher", "without a word")
            next_at += PERIOD_SECS
        wait = max(0.0, min(next_at - now, PERIOD_SECS)) if over_at is None else PERIOD_SECS
        readable, _, _ = select.select([publisher.socket, subscriber.socket], [], [], wait)
        now = time.monotonic()
        if publisher.socket in readable:
            packets = publisher.packets()
            if packets is None:
                cut.setdefault("publisher", "without a word")
            for first, body in packets or ():
                if first == wire.DISCONNECT:
                    cut["publisher"] = f"reason {body[0] if body else 0:#x}"
                if first != wire.PUBACK:
                    continue
                phase = open_acks.pop(struct.unpack(">H", body[:2])[0], None)
                if phase is not None:
                    is_refused = len(body) > 2 and body[2] >= 0x80
                    phases.all[phase]["refused" if is_refused else "acknowledged"] += 1
                    if is_refused:
                        open_messages.pop(number_of(open_messages, body), None)
        if subscriber.socket in readable:
            packets = subscriber.packets()
            if packets is None:
                cut.setdefault("subscriber", "without a word")
            for first, body in packets or ():
                if first == wire.DISCONNECT:
                    cut["subscriber"] = f"reason {body[0] if body else 0:#x}"
                if first & 0xF0 != wire.PUBLISH:
                    continue
                delivered_number, due_at, _ = PAYLOAD.unpack(body[-PAYLOAD.size :])
                at = 2 + struct.unpack(">H", body[:2])[0]
                subscriber.socket.sendall(wire.packet(wire.PUBACK, body[at : at + 2]))
                phase = open_messages.pop(delivered_number, None)
                if phase is not None:
                    phases.all[phase]["received"] += 1
                    phases.all[phase]["late_ms"].append((now - due_at) * 1000)
        if cut and over_at is None:
            over_at = now
    tell_pair(phases, open_messages, cut)


def number_of(open_messages, body):
    """The message that a packet id stands for."""
    packet_id = struct.unpack(">H", body[:2])[0]
    return next((n for n in open_messages if n % 60_000 + 1 == packet_id), None)


def tell_pair(phases, open_messages, cut):
    told = {}
    for name, counts in phases.all.items():
        late_ms = sorted(counts.pop("late_ms"))
        counts["lost"] = sum(phase == name for phase in open_messages.values())
        counts["p50_ms"] = at_share(late_ms, 0.50)
        counts["p99_ms"] = at_share(late_ms, 0.99)
        counts["max_ms"] = late_ms[-1] if late_ms else None
        told[name] = counts
    print(json.dumps({"phases": told, "cut": cut}), flush=True)


def at_share(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def visit(port, login, name):
    """Logs in, publishes at QoS 1, leaves; why it did not succeed, or None."""
    try:
        with wire.Peer(("127.0.0.1", port)) as peer:
            peer.stream.settimeout(NEWCOMER_PATIENCE_SECS)
            _, reason, _ = peer.connect(client_id=name, **login)
            if reason:
                return f"CONNECT {reason:#x}"
            peer.send(wire.publish("siege/newcomer", b"here", 1, 1))
            body = peer.expect(wire.PUBACK)
            if len(body) > 2 and body[2] >= 0x80:
                return f"PUBLISH {body[2]:#x}"
            peer.send(wire.packet(wire.DISCONNECT))
    except TimeoutError:
        return "no answer in time"
    except (OSError, AssertionError) as error:
        return str(error) or type(error).__name__
    return None


def ask_health(http_port):
    try:
        url = f"http://127.0.0.1:{http_port}/healthz"
        with urllib.request.urlopen(url, timeout=NEWCOMER_PATIENCE_SECS) as answer:
            return None if answer.status == 200 else f"/healthz {answer.status}"
    except (OSError, ValueError) as error:
        return f"/healthz: {error}"


def run_newcomer(port, login, http_port):
    phases = Phases(lambda: {"tries": 0, "failed": {}, "slowest_ms": 0.0, "health_ms": 0.0})
    print("ready", flush=True)
    number = 0
    while not phases.is_over:
        phases.listen()
        seen, number = phases.now, number + 1
        begun = time.monotonic()
        failed = visit(port, login, f"siege-newcomer-{number}")
        asked = time.monotonic()
        sick = ask_health(http_port)
        seen["health_ms"] = max(seen["health_ms"], (time.monotonic() - asked) * 1000)
        seen["slowest_ms"] = max(seen["slowest_ms"], (asked - begun) * 1000)
        seen["tries"] += 1
        for why in filter(None, (failed, sick)):
            seen["failed"][why] = seen["failed"].get(why, 0) + 1
        select.select([0], [], [], NEWCOMER_PERIOD_SECS)
    print(json.dumps({"phases": phases.all}), flush=True)


def main():
    role, options = sys.argv[1], json.loads(sys.argv[2])
    login = {"user": options["user"], "password": options["password"]}
    if role == "pair":
        run_pair(options["port"], login)
    else:
        run_newcomer(options["port"], login, options["http_port"])


if __name__ == "__main__":
    main()
