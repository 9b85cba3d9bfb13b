"""Attacks of those who have logged in, on memory and disk: what they make the broker hold."""

import functools
import struct

import cases
import wire
from cases import is_cut, push

MIB = 1 << 20

# How long a client that behaves waits for an answer.
PATIENCE_SECS = 10

case = functools.partial(cases.case, peak_mib=700)


def reason_of(body):
    """The reason of a PUBACK."""
    return body[2] if len(body) > 2 else 0


def publish_retained(peer, topic, payload):
    peer.send(wire.publish(topic, payload, 1, 1, retain=True))
    return reason_of(peer.expect(wire.PUBACK))


def cleared(outcome):
    facts = outcome.facts
    if facts["cleared"] < facts["kept"]:
        return [f"{facts['cleared']} of {facts['kept']} retained messages could be cleared"]
    return ["all were kept"] if facts["refused"] == 0 else []


@case("retained-large", "retained messages of 1 MB each, until they are refused; then they are"
      " cleared", expect=cleared)  # fmt: skip
def retained_large(field):
    facts = {"kept": 0, "refused": 0, "cleared": 0}
    with field.client() as peer:
        payload = bytes(MIB)
        for number in range(900):
            reason = publish_retained(peer, f"large/{number}", payload)
            facts["refused" if reason >= 0x80 else "kept"] += 1
            if facts["refused"] >= 3:
                break
        for number in range(facts["kept"]):
            facts["cleared"] += publish_retained(peer, f"large/{number}", b"") < 0x80
    return facts


@case("retained-replaced", "small retained messages that are replaced by ones of 1 MB",
      expect=cleared)  # fmt: skip
def retained_replaced(field):
    facts = {"kept": 0, "refused": 0, "cleared": 0}
    with field.client() as peer:
        for number in range(900):
            publish_retained(peer, f"small/{number}", b"x")
        payload = bytes(MIB)
        for number in range(900):
            reason = publish_retained(peer, f"small/{number}", payload)
            facts["refused" if reason >= 0x80 else "kept"] += 1
            if facts["refused"] >= 3:
                break
        for number in range(900):
            done = publish_retained(peer, f"small/{number}", b"") < 0x80
            facts["cleared"] += done and number < facts["kept"]
    return facts


def unfinished(length, sent):
    """A PUBLISH that says it is so long, and so much of it."""
    head = b"\x32" + wire.varint(length) + wire.prefixed("large/unfinished")
    return head + bytes(sent - len(head))


def hold_packets(field, packet, connections, addresses):
    peers, sent = [], 0
    for number in range(connections):
        peer = field.client(1 + number % addresses, client_id=f"holds-{number}")
        if peer is not None:
            peer.stream.settimeout(field.pick(0.2, 0.05))
            peers.append(peer)
            sent += push(peer.stream, packet)
    facts = {"connections": len(peers), "sent_mib": sent // MIB}
    facts |= may_publish_large(field)
    field.wait()
    facts["cut"] = sum(is_cut(peer.stream) for peer in peers)
    return facts


def may_publish_large(field):
    """Somebody else publishes 1 MB meanwhile."""
    peer = field.client(0, client_id="large-and-honest")
    if peer is None:
        return {"large_refused": 1}
    with peer:
        peer.stream.settimeout(PATIENCE_SECS)
        try:
            peer.send(wire.publish("large/honest", bytes(MIB), 1, 1))
            return {"large_refused": int(reason_of(peer.expect(wire.PUBACK)) >= 0x80)}
        except (OSError, AssertionError):
            return {"large_refused": 1}


def large_goes_on(outcome):
    refused = outcome.facts["large_refused"]
    return ["a packet of 1 MB from another address was refused"] if refused else []


# One share of packets under way, or all of them, beside what the broker is.
held_case = functools.partial(cases.case, peak_mib=250, expect=large_goes_on)


@held_case("unfinished-publishes", "100 clients of one address with 16 MB - 1 of a PUBLISH each")
def unfinished_publishes(field):
    packet = unfinished(16 * MIB - 100, 16 * MIB - 101)
    return hold_packets(field, packet, field.pick(100, 20), 1)


@held_case("unfinished-publishes-many", "the same from 50 addresses")
def unfinished_publishes_many(field):
    packet = unfinished(16 * MIB - 100, 16 * MIB - 101)
    return hold_packets(field, packet, field.pick(100, 20), 50)


@held_case("unfinished-publishes-small", "5,000 clients with 30 KB of a PUBLISH each")
def unfinished_publishes_small(field):
    return hold_packets(field, unfinished(31_000, 30_900), field.pick(5_000, 200), 50)


def user_property(key, value):
    return b"\x26" + wire.prefixed(key) + wire.prefixed(value)


def kept(expiry=0xFFFF_FFFF):
    """The property of a session that outlives its connection."""
    return b"\x11" + struct.pack(">I", expiry)


def will_connect(name, properties, payload):
    body = wire.prefixed("MQTT") + bytes([5, 0x06]) + struct.pack(">H", 60)
    body += wire.varint(len(kept())) + kept() + wire.prefixed(name)
    body += wire.varint(len(properties)) + properties
    return wire.packet(0x10, body + wire.prefixed(f"will/{name}") + wire.prefixed(payload))


def come_and_leave(field, packet_of, facts):
    """Persistent sessions at full speed; `facts` has how many were accepted and how many refused."""
    number = 0
    while field.goes_on():
        number += 1
        stream = field.dial(field.open_port, 1 + number % 20)
        if stream is None:
            continue
        with wire.Peer(stream) as peer:
            try:
                peer.send(packet_of(number))
                reason = peer.expect(wire.CONNACK)[1]
            except (OSError, AssertionError):
                reason = 0xFF
            facts["refused" if reason else "let_in"] += 1
    return facts


@case("wills-with-properties", "persistent sessions, each with a will that has 100 KB of user"
      " properties", peak_mib=250)  # fmt: skip
def wills_with_properties(field):
    properties = user_property("k" * 50_000, "v" * 50_000)
    facts = {"let_in": 0, "refused": 0}
    return come_and_leave(
        field, lambda number: will_connect(f"will-{number}", properties, b"x"), facts
    )


@case("wills-at-the-limit", "the same with as much of everything as a will may have")
def wills_at_the_limit(field):
    properties = user_property("k" * 8_000, "v" * 8_000)
    facts = {"let_in": 0, "refused": 0}
    return come_and_leave(
        field, lambda number: will_connect(f"will-{number}", properties, b"x" * 60_000), facts
    )


@case("long-client-ids", "persistent sessions with client ids of 64 KB", peak_mib=250,
      expect=lambda outcome: ["some were let in"] if outcome.facts["let_in"] else [])  # fmt: skip
def long_client_ids(field):
    def packet_of(number):
        name = f"{number:08}" + "i" * 65_000
        return wire.connect(name, properties=kept())

    return come_and_leave(field, packet_of, {"let_in": 0, "refused": 0})


def subscribe_many(field, sessions, filter_of):
    facts = {"granted": 0, "refused": 0}
    peers = []
    for session in range(sessions):
        peer = field.client(1 + session, client_id=f"filters-{session}")
        if peer is None:
            continue
        peers.append(peer)
        for number in range(10_000):
            if not field.goes_on():
                break
            peer.send(wire.subscribe(filter_of(session, number)))
            try:
                facts["granted" if peer.expect(wire.SUBACK)[-1] < 0x80 else "refused"] += 1
            except (OSError, AssertionError):
                facts["refused"] += 1
                break
    field.wait()
    return facts


@case("long-filters", "filters of 64 KB", peak_mib=250,
      expect=lambda outcome: ["some were granted"] if outcome.facts["granted"] else [])  # fmt: skip
def long_filters(field):
    return subscribe_many(field, 1, lambda _, number: f"{number}/" + "f" * 65_000)


@case("deep-filters", "filters of 128 levels, as many as are granted to 20 clients", peak_mib=400)
def deep_filters(field):
    tail = "/".join("abcdefgh"[at % 8] for at in range(120))
    return subscribe_many(field, 20, lambda session, number: f"{session}/{number}/{tail}")
