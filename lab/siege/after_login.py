"""Attacks of those who have logged in: on the broker's work, and on what waits for them."""

import functools
import itertools
import struct
import threading
import time

import cases
import wire
from cases import is_cut, push

MIB = 1 << 20

# What a few clients may hold of everything, and what the broker is without them.
case = functools.partial(cases.case, peak_mib=400)

RETAINED = 10_000
LEVELS = 13


def subscribe_all(filters, options=0, packet_id=1):
    body = struct.pack(">H", packet_id) + b"\0"
    body += b"".join(wire.prefixed(name) + bytes([options]) for name in filters)
    return wire.packet(0x82, body)


def unsubscribe_all(filters, packet_id=1):
    body = struct.pack(">H", packet_id) + b"\0"
    return wire.packet(0xA2, body + b"".join(wire.prefixed(name) for name in filters))


def subscribed(peer, filters, options=0, portion=500):
    """Subscribes in packets as clients send them; how many filters were granted."""
    filters, granted = iter(filters), 0
    while some := list(itertools.islice(filters, portion)):
        peer.send(subscribe_all(some, options))
        while (got := peer.recv())[0] != wire.SUBACK:
            pass
        granted += sum(reason < 0x80 for reason in got[1][3:])
    return granted


def read_away(stream):
    """What comes to this connection is read and forgotten, until it ends."""

    def read():
        try:
            while stream.recv(1 << 16):
                pass
        except OSError:
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def at_full_speed(field, stream, portion):
    """Sends the same again and again, as fast as it is taken, until the time is over."""
    sent = 0
    stream.settimeout(0.2)
    while field.goes_on() and not stream._closed:
        view = memoryview(portion)
        while view and field.goes_on():
            try:
                count = stream.send(view)
            except TimeoutError:
                continue
            except OSError:
                return sent
            sent, view = sent + count, view[count:]
    return sent


def never_read(field, portion, **options):
    """Eight clients send what is answered, and take no answer."""
    peers = [peer for number in range(8) if (peer := field.client(1 + number, **options))]
    threads, sent = [], []
    for peer in peers:
        work = functools.partial(
            lambda peer: sent.append(at_full_speed(field, peer.stream, portion))
        )
        threads.append(threading.Thread(target=work, args=(peer,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    cut = sum(is_cut(peer.stream) for peer in peers)
    return {"clients": len(peers), "sent_mb": sum(sent) / MIB, "cut": cut}


@case("filters-repeated", "one SUBSCRIBE with a million filters, all the same")
def filters_repeated(field):
    peer = field.client()
    count = field.pick(1_000_000, 200_000)
    sent = push(peer.stream, subscribe_all(["siege/same"] * count))
    field.wait()
    return {"sent_mb": sent / MIB}


@case("filters-many", "SUBSCRIBEs with 100,000 filters each, and UNSUBSCRIBEs of as many")
def filters_many(field):
    rounds = 0
    while field.goes_on():
        peer = field.client()
        if peer is None:
            continue
        with peer:
            names = [f"{number}/+" for number in range(field.pick(100_000, 5_000))]
            peer.stream.settimeout(5)
            push(peer.stream, subscribe_all(names) + unsubscribe_all(names))
            try:
                while field.goes_on() and peer.recv():
                    pass
            except (OSError, TypeError):
                pass
            rounds += 1
    return {"rounds": rounds}


def retain(field, count, prefix="siege-retained", payload=b"x" * 100):
    peer = field.client(9)
    reader = read_away(peer.stream)
    for number in range(count):
        push(peer.stream, wire.publish(f"{prefix}/{number}", payload, retain=True))
    peer.send(wire.packet(wire.DISCONNECT))
    peer.stream.shutdown(1)
    reader.join()


@case("retained-loop", "clients that repeatedly subscribe to 10,000 retained messages, and never"
      " read")  # fmt: skip
def retained_loop(field):
    retain(field, field.pick(RETAINED, 1_000))
    return never_read(field, wire.subscribe("#", 1) * 1_000)


@case("retained-loop-read", "the same, by clients that read")
def retained_loop_read(field):
    retain(field, field.pick(RETAINED, 1_000))
    peers = [peer for number in range(8) if (peer := field.client(1 + number))]
    for peer in peers:
        read_away(peer.stream)
    while field.goes_on():
        for peer in peers:
            push(peer.stream, wire.subscribe("#", 0) * 100)
    return {"clients": len(peers)}


@case("retained-in-vain", "100 clients with filters that match none of many retained messages")
def retained_in_vain(field):
    retain(field, field.pick(50_000, 2_000))
    peers = [peer for number in range(100) if (peer := field.client(1 + number % 20))]
    for peer in peers:
        read_away(peer.stream)
    while field.goes_on():
        for peer in peers:
            push(peer.stream, wire.subscribe("+/+/nothing", 0))
        time.sleep(0.01)
    return {"clients": len(peers)}


@case("pings-unread", "clients that send PINGREQ and never read")
def pings_unread(field):
    return never_read(field, wire.packet(0xC0) * 10_000)


@case("subscribes-unread", "clients that send SUBSCRIBE and UNSUBSCRIBE and never read")
def subscribes_unread(field):
    both = wire.subscribe("siege/unread") + unsubscribe_all(["siege/unread"])
    return never_read(field, both * 1_000)


@case("publishes-unread", "clients that publish at QoS 1 and never read")
def publishes_unread(field):
    return never_read(field, wire.publish("siege/unread", b"x", 1) * 1_000)


@case("pubrecs-unread", "clients that send PUBREC and PUBREL for nothing and never read")
def pubrecs_unread(field):
    return never_read(field, (wire.ack(wire.PUBREC, 1) + wire.ack(wire.PUBREL, 1)) * 5_000)


def groups_are_few(outcome):
    granted = outcome.facts["granted"]
    return [f"{granted} groups of one client"] if granted > 1_000 else []


@case("groups", "10,000 groups on `#` by one client that does nothing", expect=groups_are_few)
def groups(field):
    peer = field.client()
    count = field.pick(10_000, 2_000)
    granted = subscribed(peer, (f"$share/g{number}/#" for number in range(count)))
    read_away(peer.stream)
    field.wait()
    return {"granted": granted}


@case("groups-come-and-go", "sessions that join groups and end, at full speed")
def groups_come_and_go(field):
    count = 0
    while field.goes_on():
        stream = field.dial(field.open_port, 1)
        if stream is not None:
            names = [f"$share/g{count}-{number}/siege/#" for number in range(100)]
            push(stream, wire.connect(f"member-{count}") + subscribe_all(names))
            stream.close()
            count += 1
    return {"connections": count}


def overlapping(levels=LEVELS, last=""):
    """Filters that all match `a/a/a/...`."""
    for names in itertools.product("a+", repeat=levels):
        yield "/".join(names) + last


@case("overlapping-filters", "a client with 8,192 filters that all match what another one publishes")
def overlapping_filters(field):
    peer = field.client()
    granted = subscribed(peer, overlapping(field.pick(LEVELS, 8)))
    read_away(peer.stream)
    publisher = field.client()
    read_away(publisher.stream)
    topic = "/".join("a" * field.pick(LEVELS, 8))
    sent = at_full_speed(field, publisher.stream, wire.publish(topic, b"x") * 200)
    return {"granted": granted, "sent_mb": sent / MIB}


@case("overlapping-identifiers", "the same with subscription identifiers, at QoS 1")
def overlapping_identifiers(field):
    peer = field.client()
    levels = field.pick(LEVELS, 8)
    for number, name in enumerate(overlapping(levels)):
        identifier = b"\x0b" + wire.varint(number + 1)
        peer.send(wire.subscribe(name, 1, properties=identifier))
        while peer.recv()[0] != wire.SUBACK:
            pass
    read_away(peer.stream)
    publisher = field.client()
    read_away(publisher.stream)
    topic = "/".join("a" * levels)
    sent = at_full_speed(field, publisher.stream, wire.publish(topic, b"x", 1) * 200)
    return {"sent_mb": sent / MIB}


@case("deep-topics", "topics of 128 levels, each another one, through thousands of filters with `+`")
def deep_topics(field):
    peer = field.client()
    granted = subscribed(peer, overlapping(field.pick(12, 8), "/" + "/".join("b" * 110)))
    read_away(peer.stream)
    publisher = field.client()
    read_away(publisher.stream)
    head = "/".join("a" * field.pick(12, 8)) + "/" + "/".join("b" * 109)
    portion = b"".join(wire.publish(f"{head}/{number}", b"x") for number in range(200))
    sent = at_full_speed(field, publisher.stream, portion)
    return {"granted": granted, "sent_mb": sent / MIB}


@case("many-subscriptions-come-and-go", "sessions with 1,000 subscriptions each, begun and ended,"
      " at full speed")  # fmt: skip
def many_subscriptions(field):
    expiry = b"\x11" + struct.pack(">I", 3600)
    names = [f"siege/{number}/+" for number in range(1_000)]
    count = 0
    while field.goes_on():
        stream = field.dial(field.open_port, 1)
        if stream is None:
            continue
        client_id = f"kept-{count % 50}"
        push(stream, wire.connect(client_id, properties=expiry) + subscribe_all(names, 1))
        stream.close()
        count += 1
    return {"connections": count}


@case("slow-acknowledgements", "a subscriber with a receive maximum of 1 that acknowledges once a"
      " second, and a flood for it")  # fmt: skip
def slow_acknowledgements(field):
    peer = field.client(properties=b"\x21\x00\x01")
    subscribed(peer, ["siege-slow/#"], 1)
    publisher = field.client()
    read_away(publisher.stream)
    flood = wire.publish("siege-slow/x", b"x" * 1_000, 1) * 100
    thread = threading.Thread(target=at_full_speed, args=(field, publisher.stream, flood))
    thread.start()
    taken = 0
    peer.stream.settimeout(0.2)
    while field.goes_on():
        try:
            peer.message()
            taken += 1
        except (OSError, AssertionError):
            pass
        time.sleep(min(1, field.secs / 4))
    thread.join()
    return {"taken": taken}


@case("aliases", "a client that sets all its topic aliases again with each publish")
def aliases(field):
    peer = field.client()
    read_away(peer.stream)
    portion = b"".join(
        wire.publish(f"alias/{number}/" + "x" * 200, b"", properties=b"\x23\0" + bytes([number]))
        for number in range(1, 33)
    )
    return {"sent_mb": at_full_speed(field, peer.stream, portion * 10) / MIB}
