"""Attacks by every exchange that a client can begin again and again, and every field that it sizes.

One case for each such field of MQTT 3.1.1 and 5 that no other file attacks.
"""

import contextlib
import functools
import selectors
import struct
import threading
import time

import cases
import scram
import wire
from after_login import at_full_speed, never_read, read_away, retain, subscribed, unsubscribe_all
from cases import is_cut, push
from ground import SCRAM_USER
from held import kept, user_property

MIB = 1 << 20

case = functools.partial(cases.case, peak_mib=450)


def repeat(field, portion, source=1, **options):
    """One client says the same at full speed, and reads what comes."""
    peer = field.client(source, **options)
    if peer is None:
        return {"sent_mb": 0}
    read_away(peer.stream)
    return {"sent_mb": at_full_speed(field, peer.stream, portion) / MIB}


def come_again(field, packets_of, port=None, clients=20):
    """Connects, says something, is gone, at full speed."""
    count = 0
    while field.goes_on():
        stream = field.dial(port or field.open_port, 1 + count % clients)
        if stream is not None:
            push(stream, packets_of(count))
            stream.close()
            count += 1
    return {"connections": count}


def scram_client(field):
    """Logged in by SCRAM, so that it may authenticate again."""
    stream = field.dial(field.closed_port, 1)
    if stream is None:
        return None
    peer, client = wire.Peer(stream), scram.ScramClient(*SCRAM_USER)
    method = b"\x15" + wire.prefixed("SCRAM-SHA-256")
    first = method + b"\x16" + wire.prefixed(client.first())
    peer.send(wire.connect("siege-scram", properties=first))
    body = peer.expect(wire.AUTH)
    challenge = dict(wire.properties_of(body[1:]))[0x16]
    properties = method + b"\x16" + wire.prefixed(client.final(challenge))
    peer.send(wire.packet(wire.AUTH, b"\x18" + wire.varint(len(properties)) + properties))
    assert peer.expect(wire.CONNACK)[1] == 0
    return peer


def begin_again(data=b"n,,n=sara,r=again"):
    properties = b"\x15" + wire.prefixed("SCRAM-SHA-256") + b"\x16" + wire.prefixed(data)
    return wire.packet(wire.AUTH, b"\x19" + wire.varint(len(properties)) + properties)


@case("auth-again", "a client that begins to re-authenticate, at full speed")
def auth_again(field):
    peer = scram_client(field)
    read_away(peer.stream)
    return {"sent_mb": at_full_speed(field, peer.stream, begin_again() * 100) / MIB}


@case("auth-again-unread", "the same, and it reads no answer")
def auth_again_unread(field):
    peer = scram_client(field)
    return {"sent_mb": at_full_speed(field, peer.stream, begin_again() * 100) / MIB}


@case("auth-long", "authentication exchanges of 60 KB, begun repeatedly")
def auth_long(field):
    peer = scram_client(field)
    read_away(peer.stream)
    data = b"n,,n=sara,r=" + b"x" * 60_000
    return {"sent_mb": at_full_speed(field, peer.stream, begin_again(data)) / MIB}


@case("auth-begun", "connections that begin an exchange and never end it", peak_mib=250)
def auth_begun(field):
    method = b"\x15" + wire.prefixed("SCRAM-SHA-256")
    streams = []
    for number in range(field.pick(2_000, 300)):
        stream = field.dial(field.closed_port, 1 + number % 20)
        if stream is not None:
            first = b"\x16" + wire.prefixed(f"n,,n=user{number},r=nonce")
            push(stream, wire.connect(f"begun-{number}", properties=method + first))
            streams.append(stream)
    field.wait()
    return {"connections": len(streams)}


PAIRS = user_property("k" * 60, "v" * 60) * 120


@case("properties-everywhere", "16 KB of user properties in each packet that may have some")
def properties_everywhere(field):
    some = wire.varint(len(PAIRS)) + PAIRS
    acks = [wire.packet(first, b"\0\1\0" + some) for first in (0x40, 0x50, 0x62, 0x70)]
    subscribe = wire.subscribe("siege/properties", 1, properties=PAIRS)
    unsubscribe = wire.packet(0xA2, b"\0\1" + some + wire.prefixed("siege/properties"))
    publish = wire.publish("siege/properties", b"x", 1, properties=PAIRS)
    return repeat(field, subscribe + publish + b"".join(acks) + unsubscribe)


@case("reason-strings", "acknowledgements with reason strings of 64 KB")
def reason_strings(field):
    reason = b"\x1f" + wire.prefixed("r" * 65_000)
    body = b"\0\1\0" + wire.varint(len(reason)) + reason
    return repeat(field, b"".join(wire.packet(first, body) for first in (0x40, 0x62, 0x70)) * 4)


@case("correlation-data", "publishes with 15 KB of correlation data into the queues of 50 sessions")
def correlation_data(field):
    leave_sessions(field, 50, "siege-correlation/#", "correlated")
    properties = b"\x08" + wire.prefixed("reply/" + "x" * 900)
    properties += b"\x09" + wire.prefixed(b"c" * 15_000)
    return repeat(field, wire.publish("siege-correlation/x", b"x", 1, properties=properties) * 10)


def leave_sessions(field, count, topic_filter, name):
    """Sessions that are kept, subscribed and left alone."""
    for number in range(field.pick(count, max(2, count // 10))):
        options = {"client_id": f"{name}-{number}", "properties": kept(60)}
        peer = field.client(1 + number % 20, **options)
        if peer is not None:
            with peer:
                subscribed(peer, [topic_filter], 1)


@case("ghost-sessions", "a flood into the queues of four sessions whose clients are gone")
def ghost_sessions(field):
    leave_sessions(field, 4, "siege-ghost/#", "ghost")
    return repeat(field, wire.publish("siege-ghost/x", bytes(64 * 1024), 1))


@case("ghost-sessions-small", "the same with messages of 10 bytes at QoS 2, never released")
def ghost_sessions_small(field):
    leave_sessions(field, 4, "siege-ghost/#", "ghost-small")
    portion = b"".join(wire.publish("siege-ghost/x", b"0123456789", 2, n) for n in range(1, 900))
    release = b"".join(wire.ack(wire.PUBREL, n) for n in range(1, 900))
    return repeat(field, portion + release)


def with_will(number, delay, expiry=3600, topic="siege-wills/all"):
    connect_properties = kept(expiry)
    will_properties = b"\x18" + struct.pack(">I", delay)
    body = wire.prefixed("MQTT") + bytes([5, 0x06]) + struct.pack(">H", 60)
    body += wire.varint(len(connect_properties)) + connect_properties
    body += wire.prefixed(f"willed-{number}")
    body += wire.varint(len(will_properties)) + will_properties
    return wire.packet(0x10, body + wire.prefixed(topic) + wire.prefixed(b"w" * 200))


@case("will-delays", "wills with a delay of 1 s, left and taken back in a loop")
def will_delays(field):
    return come_again(field, lambda count: with_will(count % 500, 1))


@case("wills-at-once", "1,000 clients with wills that 20 others want, all cut at once")
def wills_at_once(field):
    listeners = [peer for number in range(20) if (peer := field.client(1 + number))]
    for peer in listeners:
        subscribed(peer, ["siege-wills/#"])
        read_away(peer.stream)
    streams = []
    for number in range(field.pick(1_000, 200)):
        stream = field.dial(field.open_port, 1 + number % 20)
        if stream is not None:
            push(stream, with_will(f"at-once-{number}", 0, expiry=0))
            streams.append(stream)
    for stream in streams:
        stream.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
        stream.close()
    field.wait()
    return {"clients": len(streams)}


@case("expiry-churn", "sessions whose expiry goes from 0 to the longest and back, at full speed")
def expiry_churn(field):
    def packets(count):
        leave = kept(0 if count % 2 else 0xFFFF_FFFF)
        goodbye = wire.packet(wire.DISCONNECT, b"\0" + wire.varint(len(leave)) + leave)
        client_id = f"churn-{count // 2 % 2_000}"
        return wire.connect(client_id, properties=kept(1 + count % 2)) + goodbye

    return come_again(field, packets)


@case("assigned-ids", "persistent sessions with client ids that the broker assigns, at full speed")
def assigned_ids(field):
    return come_again(field, lambda _: wire.connect("", properties=kept()))


@case("takeover-loop", "one client id that eight clients take over at once, with a clean start")
def takeover_loop(field):
    def take(source):
        count = 0
        while field.goes_on():
            stream = field.dial(field.open_port, source)
            if stream is not None:
                packet = wire.connect("taken", clean=count % 2 == 0, properties=kept(60))
                push(stream, packet + wire.subscribe("siege/#", 1))
                count += 1
        tries.append(count)

    tries = []
    threads = [threading.Thread(target=take, args=(1 + number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return {"takeovers": sum(tries)}


@case("packet-maximum-small", "clients that take packets of 1 to 8 bytes only, at full speed")
def packet_maximum_small(field):
    def packets(count):
        most = b"\x27" + struct.pack(">I", 1 + count % 8)
        return wire.connect(f"small-{count}", properties=most) + wire.subscribe("#", 1)

    return come_again(field, packets)


@case("packet-maximum-below", "subscribers to whom no message fits, and a flood for them")
def packet_maximum_below(field):
    for number in range(20):
        peer = field.client(1 + number, properties=b"\x27" + struct.pack(">I", 30))
        if peer is not None:
            subscribed(peer, ["siege-below/#"], 1)
            read_away(peer.stream)
    return repeat(field, wire.publish("siege-below/x", b"x" * 100, 1) * 100)


@case("never-acknowledged", "50 subscribers that take everything and acknowledge nothing")
def never_acknowledged(field):
    peers = [peer for number in range(50) if (peer := field.client(1 + number % 20))]
    for peer in peers:
        subscribed(peer, ["siege-never/#"], 2)
        read_away(peer.stream)
    return repeat(field, wire.publish("siege-never/x", b"x" * 500, 1) * 50)


@case("never-released", "publishes at QoS 2 under each packet id there is, none released")
def never_released(field):
    numbers = range(1, 60_000)
    facts = {"connections": 0, "sent_mb": 0}
    portion = b"".join(wire.publish("siege/open", b"x", 2, n) for n in numbers[:20_000])
    while field.goes_on():
        peer = field.client(1, client_id="never", clean=False, properties=kept(60))
        if peer is not None:
            with peer:
                read_away(peer.stream)
                facts["sent_mb"] += push(peer.stream, portion) / MIB
                facts["connections"] += 1
    return facts


@case("pubrels", "PUBREL for packet ids that are not there, at full speed")
def pubrels(field):
    return repeat(field, b"".join(wire.ack(wire.PUBREL, n) for n in range(1, 5_000)))


@case("pings", "PINGREQ, at full speed, by eight clients that read")
def pings(field):
    threads = [
        threading.Thread(target=repeat, args=(field, wire.packet(0xC0) * 5_000, 1 + number))
        for number in range(8)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return {"clients": 8}


@case("unsubscribes", "UNSUBSCRIBE of what was never subscribed to, at full speed")
def unsubscribes(field):
    names = [f"siege/never/{number}/+" for number in range(500)]
    return repeat(field, unsubscribe_all(names))


@case("unsubscribes-unread", "the same by clients that read no answer")
def unsubscribes_unread(field):
    names = [f"siege/never/{number}/+" for number in range(500)]
    return never_read(field, unsubscribe_all(names))


@case("slashes", "topics of slashes only, from 1 to 127, retained and not")
def slashes(field):
    topics = ["/" * count for count in range(1, 128)]
    portion = b"".join(wire.publish(topic, b"x", retain=count % 2) for count, topic in
                       enumerate(topics))  # fmt: skip
    return repeat(field, portion * 4)


@case("pluses", "filters `+/+/+/...` of each depth, with `#` behind them and without")
def pluses(field):
    peer = field.client()
    plus = ["/".join("+" * depth) for depth in range(1, 128)]
    granted = subscribed(peer, plus + [f"{name}/#" for name in plus[:126]])
    read_away(peer.stream)
    portion = b"".join(wire.publish("/".join("x" * depth), b"x") for depth in range(1, 128))
    return {"granted": granted} | repeat(field, portion * 4, 2)


@case("retained-many", "retained messages of 1 byte on as many topics as are accepted", alone=True)
def retained_many(field):
    peer = field.client()
    read_away(peer.stream)
    number = 0
    while field.goes_on():
        portion = [wire.publish(f"m/{n}", b"x", retain=True) for n in range(number, number + 5_000)]
        push(peer.stream, b"".join(portion))
        number += 5_000
    return {"topics": number}


@case("retained-hash", "clients that connect, get 10,000 retained messages, and disconnect")
def retained_hash(field):
    retain(field, field.pick(10_000, 1_000))
    return come_again(field, lambda n: wire.connect(f"hash-{n}") + wire.subscribe("#", 0))


@case("share-names", "one client that joins and leaves groups of new names, at full speed")
def share_names(field):
    peer = field.client()
    read_away(peer.stream)
    number = 0
    while field.goes_on():
        names = [f"$share/n{number}-{n}/siege/#" for n in range(50)]
        number += 1
        joins = b"".join(wire.subscribe(name, 1) for name in names)
        push(peer.stream, joins + unsubscribe_all(names))
    return {"groups": number * 50}


@case("groups-parked", "messages for a group whose only member is offline")
def groups_parked(field):
    leave_sessions(field, 1, "$share/parked/siege-parked/#", "parked")
    return repeat(field, wire.publish("siege-parked/x", bytes(16 * 1024), 1) * 4)


@case("expired-messages", "messages that expire in a second, for 20 offline sessions")
def expired_messages(field):
    leave_sessions(field, 20, "siege-expired/#", "expired")
    expiry = b"\x02" + struct.pack(">I", 1)
    return repeat(field, wire.publish("siege-expired/x", b"x" * 100, 1, properties=expiry) * 50)


@case("second-connects", "connections that send CONNECT twice, or what only a server sends")
def second_connects(field):
    wrong = [wire.connect("twice"), wire.packet(wire.CONNACK, b"\0\0"), b"\xff\xff\xff\xff\xff"]
    return come_again(field, lambda n: wire.connect(f"wrong-{n}") + wrong[n % 3])


@case("bytes-one-by-one", "200 clients that send each byte in a segment of its own")
def bytes_one_by_one(field):
    peers = [peer for n in range(field.pick(200, 50)) if (peer := field.client(1 + n % 20))]
    data, at = wire.publish("siege/trickle", b"x" * 100, 1), 0
    for peer in peers:
        read_away(peer.stream)
    while field.goes_on():
        for peer in peers:
            push(peer.stream, data[at : at + 1])
        at = (at + 1) % len(data)
    return {"clients": len(peers)}


# Only from half of the memory on, what waits in connections is held to an eighth of it: below the
# goal of 800 MB, and more than others of its kind.
@case(
    "half-open",
    "1,000 clients without a keep alive that never read, and a flood for them",
    peak_mib=700,
)
def half_open(field):
    peers = []
    for number in range(field.pick(1_000, 40)):
        peer = field.client(1 + number % 20, client_id=f"half-{number}")
        if peer is not None:
            peer.send(wire.subscribe("siege-half/#", 0))
            peers.append(peer)
    facts = repeat(field, wire.publish("siege-half/x", b"x" * 200) * 5)
    return facts | {"clients": len(peers), "cut": sum(is_cut(peer.stream) for peer in peers)}


@case("chorus", "300 clients that all want what each of them publishes, one message at a time")
def chorus(field):
    peers = [peer for n in range(field.pick(300, 60)) if (peer := field.client(1 + n % 20))]
    readable = selectors.DefaultSelector()
    for peer in peers:
        subscribed(peer, ["siege-chorus/#"])
        peer.stream.setblocking(False)
        readable.register(peer.stream, selectors.EVENT_READ)
    packet, sent = wire.publish("siege-chorus/x", b"x"), 0
    while field.goes_on():
        for peer in peers:
            sent += push(peer.stream, packet)
        for key, _ in readable.select(0):
            with contextlib.suppress(OSError):
                key.fileobj.recv(1 << 18)
    return {"clients": len(peers), "sent": sent // len(packet)}


@case("audience", "4,000 connections that all want what a few of them publish at full speed")
def audience(field):
    peers = []
    for number in range(field.pick(4_000, 60)):
        peer = field.client(1 + number % 20)
        if peer is not None:
            peer.send(wire.subscribe("siege-audience/#", 0))
            peers.append(peer)
    readable = selectors.DefaultSelector()
    for peer in peers:
        peer.stream.setblocking(False)
        readable.register(peer.stream, selectors.EVENT_READ)
    packet, sent = wire.publish("siege-audience/x", b"x") * 10, 0
    while field.goes_on():
        for peer in peers[:20]:
            sent += push(peer.stream, packet)
        for key, _ in readable.select(0):
            with contextlib.suppress(OSError):
                key.fileobj.recv(1 << 18)
    return {"clients": len(peers), "sent": sent // (len(packet) // 10)}


@case("sys-topics", "clients that repeatedly subscribe to `$SYS/#`")
def sys_topics(field):
    both = wire.subscribe("$SYS/#", 1) + unsubscribe_all(["$SYS/#"])
    return repeat(field, both * 100)


@case("identifiers", "one subscription after the other with another identifier, each the largest")
def identifiers(field):
    largest = b"\x0b" + wire.varint(268_435_455)
    portion = b"".join(
        wire.subscribe(f"siege/id/{n}", 1, properties=largest) for n in range(5_000)
    )
    return repeat(field, portion)


@case("one-shard", "client ids that all belong to one shard, with work for it")
def one_shard(field):
    names = [name for name in (f"c{n}" for n in range(2_000)) if shard_of(name, 4) == 0][:200]
    peers = [peer for n, name in enumerate(names[: field.pick(200, 40)])
             if (peer := field.client(1 + n % 20, client_id=name))]  # fmt: skip
    for peer in peers:
        subscribed(peer, ["siege-shard/+"])
        read_away(peer.stream)
    time.sleep(0)
    return {"clients": len(peers)} | repeat(field, wire.publish("siege-shard/x", b"x") * 50)


def shard_of(name, shards):
    """As `shard_of` in crates/core/broker/src/words/shared.rs: fixed, so that anybody can compute it."""
    value, most = 0xCBF2_9CE4_8422_2325, (1 << 64) - 1
    for byte in name.encode():
        value = (value ^ byte) * 0x0000_0100_0000_01B3 & most
    value = (value ^ value >> 32) * 0x9E37_79B9_7F4A_7C15 & most
    return value * shards >> 64
