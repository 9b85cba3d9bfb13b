"""Attacks that make the broker begin, write down and undo the same again and again.

What is kept (sessions, subscriptions, exchanges of QoS 2, retained messages) goes through the logs:
each of these asks for many facts with few bytes.
"""

import contextlib
import functools
import itertools
import struct
import subprocess
import threading

import cases
import wire
from after_login import at_full_speed, never_read, read_away, subscribed, unsubscribe_all
from cases import is_cut, push
from held import kept, unfinished
from users import EVE, behave, honest_go_on

MIB = 1 << 20

case = functools.partial(cases.case, peak_mib=450)


def kept_client(field, number, name):
    return field.client(1 + number % 20, client_id=f"{name}-{number}", properties=kept(60))


def by_eight(field, name, portion):
    """Kept sessions that say the same at full speed, and read what comes."""
    peers = [peer for number in range(8) if (peer := kept_client(field, number, name))]
    sent = []
    for peer in peers:
        read_away(peer.stream)
    threads = [
        threading.Thread(
            target=lambda peer=peer: sent.append(at_full_speed(field, peer.stream, portion))
        )
        for peer in peers
    ]  # fmt: skip
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return {"clients": len(peers), "sent_mb": sum(sent) / MIB}


@case("resubscribes-kept", "sessions that change the QoS of a subscription, at full speed")
def resubscribes_kept(field):
    portion = b"".join(wire.subscribe("siege/again", qos) for qos in (0, 1, 2))
    return by_eight(field, "resubscribes", portion * 200)


@case("groups-kept-come-and-go", "persistent sessions that join and leave a group, at full speed")
def groups_kept(field):
    name = "$share/kept/siege-kept/#"
    portion = wire.subscribe(name, 1) + unsubscribe_all([name])
    return by_eight(field, "group-kept", portion * 200)


@case("exchanges-kept", "persistent sessions that publish at QoS 2 and release, at full speed")
def exchanges_kept(field):
    numbers = range(1, 200)
    publishes = (wire.publish("siege-kept/x", b"x", 2, number) for number in numbers)
    releases = (wire.ack(wire.PUBREL, number) for number in numbers)
    return by_eight(field, "exchanges", b"".join(publishes) + b"".join(releases))


@case("repetitions", "one QoS 2 publish, repeated at full speed and never released")
def repetitions(field):
    first = bytearray(wire.publish("siege-kept/x", b"x" * 500, 2, 1))
    first[0] |= 8
    return by_eight(field, "repetitions", bytes(first) * 500)


@case("retained-rewritten", "one retained message of 16 KB, replaced at full speed")
def retained_rewritten(field):
    portion = wire.publish("siege-rewritten/x", bytes(16 * 1024), 1, 1, retain=True)
    return by_eight(field, "rewritten", portion * 8)


@case("echo-unread", "clients that subscribe to what they publish, and read nothing")
def echo_unread(field):
    own = wire.subscribe("siege-echo/#", 1)
    return never_read(field, own + wire.publish("siege-echo/x", b"x" * 2_000, 1) * 500)


@case("shared-unread", "a group whose 50 members read nothing, and a flood for it")
def shared_unread(field):
    peers = [peer for n in range(field.pick(50, 10)) if (peer := field.client(1 + n % 20))]
    for peer in peers:
        subscribed(peer, ["$share/unread/siege-shared/#"], 1)
    publisher = field.client(30)
    read_away(publisher.stream)
    flood = wire.publish("siege-shared/x", bytes(4_000), 1) * 50
    sent = at_full_speed(field, publisher.stream, flood)
    return {"members": len(peers), "sent_mb": sent / MIB}


@case("group-crowd", "a group of 2,000 members of which each takes one message and never answers,"
      " and a flood for it")  # fmt: skip
def group_crowd(field):
    one = b"\x21" + struct.pack(">H", 1)
    peers = [peer for n in range(field.pick(2_000, 100))
             if (peer := field.client(1 + n % 20, properties=one))]  # fmt: skip
    for peer in peers:
        subscribed(peer, ["$share/crowd/siege-crowd/#"], 1)
    publisher = field.client(30)
    read_away(publisher.stream)
    sent = at_full_speed(field, publisher.stream, wire.publish("siege-crowd/x", b"x" * 50, 1) * 100)
    return {"members": len(peers), "sent_mb": sent / MIB}


@case("topics-ever-new", "publishes on new topics, at full speed")
def topics_ever_new(field):
    peer = field.client()
    read_away(peer.stream)
    sent, number = 0, 0
    while field.goes_on():
        packets = [wire.publish(f"n{n}/x/y/z", b"x") for n in range(number, number + 2_000)]
        sent += push(peer.stream, b"".join(packets))
        number += 2_000
    return {"topics": number, "sent_mb": sent / MIB}


@case("filters-ever-new", "clients that connect with 1,000 new filters and disconnect")
def filters_ever_new(field):
    count = 0
    while field.goes_on():
        stream = field.dial(field.open_port, 1 + count % 20)
        if stream is None:
            continue
        with stream:
            names = [f"f{count}-{n}/#" for n in range(1_000)]
            body = struct.pack(">H", 1) + b"\0"
            body += b"".join(wire.prefixed(name) + b"\0" for name in names)
            push(stream, wire.connect(f"new-{count}") + wire.packet(0x82, body))
        count += 1
    return {"connections": count}


@case("takeovers-unfinished", "one client id, taken over while 1 MB of a PUBLISH is under way")
def takeovers_unfinished(field):
    packet, count, streams = unfinished(2 * MIB, MIB), 0, []
    while field.goes_on():
        stream = field.dial(field.open_port, 1)
        if stream is None:
            continue
        stream.settimeout(0.5)
        push(stream, wire.connect("unfinished", clean=False, properties=kept(60)) + packet)
        streams.append(stream)
        count += 1
        if len(streams) > 50:
            streams.pop(0).close()
    return {"takeovers": count, "cut": sum(map(is_cut, streams))}


@case("tls-key-updates", "TLS connections that repeatedly ask for new keys", peak_mib=300)
def tls_key_updates(field):
    command = ["openssl", "s_client", "-quiet", "-no_ign_eof", "-tls1_3", "-connect"]
    command.append(f"127.0.0.1:{field.tls_port}")
    asked = 0
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        for _ in range(4)
    ]  # fmt: skip
    while field.goes_on():
        for client in clients:
            with contextlib.suppress(OSError):
                # K asks the server for new keys, too. Each line is a command of its own.
                client.stdin.write(b"K\n" * 20)
                client.stdin.flush()
                asked += 20
    for client in clients:
        client.kill()
        client.wait()
    return {"asked": asked}


@case("http-bodies", "200 requests that promise a body of a terabyte", peak_mib=300)
def http_bodies(field):
    head = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1099511627776\r\n\r\n"
    streams = [stream for n in range(200) if (stream := field.dial(field.http_port, 1 + n % 20))]
    sent = 0
    for stream in streams:
        stream.settimeout(0.05)
        sent += push(stream, head)
    while field.goes_on() and streams:
        for stream in streams:
            sent += push(stream, bytes(1 << 16))
    return {"connections": len(streams), "sent_mb": sent / MIB}


# Room for a few megabytes of messages: a log has four segments at least.
SMALL_LOGS = """
[server]
shards = 2
[limits]
packet_bytes_max = "256KiB"
[durability]
segment_bytes = "1MiB"
log_bytes_max = "64MiB"
"""


@case("log-hog", "a user who fills the logs with messages for offline sessions, while another"
      " user has a few", config=SMALL_LOGS, alone=True,
      expect=lambda outcome: honest_go_on(outcome) + hog_is_refused(outcome))  # fmt: skip
def log_hog(field):
    for login in ({"number": 1, **EVE}, {"number": 2, "user": "otto", "password": "still"}):
        number, name = login.pop("number"), login["user"]
        for away in range(4):
            options = {"client_id": f"{name}-away-{away}", "properties": kept(600), **login}
            peer = field.client(number, port=field.closed_port, **options)
            with peer:
                subscribed(peer, [f"{name}/#"], 1)
    facts, honest = {"hog_taken": 0, "hog_refused": 0}, {}
    thread = threading.Thread(target=behave, args=(field, {"user": "otto", "password": "still"},
                                                   honest))  # fmt: skip
    thread.start()
    hog = field.client(1, port=field.closed_port, **EVE)
    packet = wire.publish("eve/x", bytes(16_000), 1, 1)
    for _ in itertools.takewhile(lambda _: field.goes_on(), itertools.count()):
        hog.send(packet)
        body = hog.expect(wire.PUBACK)
        facts["hog_refused" if len(body) > 2 and body[2] >= 0x80 else "hog_taken"] += 1
    thread.join()
    return facts | honest


def hog_is_refused(outcome):
    return [] if outcome.facts["hog_refused"] else ["the hog was never refused"]
