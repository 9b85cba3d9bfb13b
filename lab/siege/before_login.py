"""Attacks of those who have not logged in."""

import base64
import functools
import itertools
import select
import struct
import time

import cases
import wire
from cases import is_cut, push

MIB = 1 << 20

# The sixteenth of its memory that strangers get, and what the broker is with a few clients. Two
# checks of passwords take 40 MB while they last.
case = functools.partial(cases.case, peak_mib=250)


def announced(length, body=b""):
    """The begin of a CONNECT that says it is so long."""
    head = wire.prefixed("MQTT") + bytes([5, 2]) + struct.pack(">H", 60)
    return b"\x10" + wire.varint(length) + head + body


def long_connect(length):
    """A CONNECT of about so many bytes that lacks its last one: user properties fill it."""
    pair = b"\x26" + wire.prefixed("k" * 60_000) + wire.prefixed("v" * 5_000)
    properties = pair * (length // len(pair))
    body = wire.prefixed("MQTT") + bytes([5, 2]) + struct.pack(">H", 60)
    body += wire.varint(len(properties)) + properties + wire.prefixed("long")
    return wire.packet(0x10, body)[:-1]


def unfinished(field, packet, connections, addresses):
    streams = []
    for number in range(connections):
        stream = field.dial(field.open_port, 1 + number % addresses)
        if stream is not None:
            stream.settimeout(1)
            streams.append(stream)
            push(stream, packet)
    field.wait()
    return {"connections": len(streams), "refused": sum(map(is_cut, streams))}


def all_refused(outcome):
    facts = outcome.facts
    held = facts["connections"] - facts["refused"]
    return [f"{held} of {facts['connections']} connections are held"] if held else []


@case("unfinished-connects", "100 connections with 16 MB each of a CONNECT that never ends",
      expect=all_refused)  # fmt: skip
def unfinished_connects(field):
    return unfinished(field, long_connect(16 * MIB - 100_000), 100, 1)


@case("unfinished-connects-many", "the same from 50 addresses", expect=all_refused)
def unfinished_connects_many(field):
    return unfinished(field, long_connect(16 * MIB - 100_000), 100, 50)


def some_refused(outcome):
    # 4 MB may wait from one address, and 25 MB in all.
    facts = outcome.facts
    return [] if facts["one_refused"] else ["as much as one address likes is held for it"]


@case("connects-just-below", "unfinished CONNECTs of 120 KB, 1,000 of one address, 1,000 of many",
      expect=some_refused)  # fmt: skip
def connects_just_below(field):
    packet = long_connect(125_000)
    count = field.pick(2_000, 300)
    one = unfinished(field, packet, count // 2, 1)
    many = unfinished(field, packet, count // 2, 100)
    return {f"{name}_{what}": value
            for name, facts in (("one", one), ("many", many))
            for what, value in facts.items()}  # fmt: skip


def login(number, text_bytes, password):
    """A CONNECT with texts of so many bytes, and a will where they are long."""
    text = f"{number:08}" + "x" * max(0, text_bytes - 8)
    will = ("will/" + text, text, 1, False) if text_bytes > 1_000 else None
    return wire.connect(f"siege-{text}", user=text, password=password, will=will)


def fire_and_close(field, source_of, text_bytes, per_second):
    fired, begun = 0, time.monotonic()
    while field.goes_on():
        stream = field.dial(field.closed_port, source_of(fired))
        if stream is not None:
            stream.settimeout(1)
            push(stream, login(fired, text_bytes, "wrong"))
            stream.close()
            fired += 1
        if per_second:
            time.sleep(max(0.0, begun + fired / per_second - time.monotonic()))
    return {"fired": fired}


@case("fire-and-close", "CONNECTs with texts of 60 KB and a will, closed at once, at full speed")
def fire_and_close_long(field):
    return fire_and_close(field, lambda _: 1, 60_000, 0)


@case("fire-and-close-short", "CONNECTs with wrong passwords, closed at once, at full speed")
def fire_and_close_short(field):
    return fire_and_close(field, lambda _: 1, 20, 0)


@case("wrong-passwords", "100 log-ins a second with wrong passwords, closed at once, from the"
      " address of the other clients")  # fmt: skip
def wrong_passwords(field):
    return fire_and_close(field, lambda _: 0, 20, 100)


@case("wrong-passwords-held", "200 connections that wait for the answer to a wrong password, and"
      " come again")  # fmt: skip
def wrong_passwords_held(field):
    streams, answers = [], 0
    for number in itertools.count():
        if not field.goes_on():
            break
        stream = field.dial(field.closed_port, 1)
        if stream is None:
            continue
        push(stream, login(number, 20, "wrong"))
        streams.append(stream)
        if len(streams) >= 200:
            before = len(streams)
            streams = [stream for stream in streams if not is_cut(stream)]
            answers += before - len(streams)
            if before == len(streams):
                time.sleep(0.05)
    return {"answers": answers}


@case("half-requests", "500 HTTP requests that never end")
def half_requests(field):
    streams = []
    for number in range(field.pick(500, 200)):
        stream = field.dial(field.http_port, 1 + number % 2)
        if stream is not None:
            streams.append(stream)
            push(stream, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


def few_lines(outcome):
    kib = outcome.log_bytes // 1024
    # 100 lines of a kind each second, of some 300 bytes.
    return [f"{kib} KB in the log"] if kib > 512 else []


@case("refused-ids", "CONNECTs that are refused, with client ids of 60 KB", expect=few_lines)
def refused_ids(field):
    fired = 0
    while field.goes_on():
        stream = field.dial(field.closed_port, 1)
        if stream is not None:
            push(stream, wire.connect(f"{fired:08}" + "i" * 60_000, user="anna", password="wrong"))
            stream.close()
            fired += 1
    return {"fired": fired}


@case("silent-connections", "2,000 connections that send nothing, or one byte a second")
def silent_connections(field):
    streams = []
    for number in range(field.pick(2_000, 300)):
        stream = field.dial(field.open_port, 1 + number % 20)
        if stream is not None:
            streams.append(stream)
    body = announced(100)
    for at in range(len(body)):
        if not field.goes_on():
            break
        for stream in streams[::2]:
            push(stream, body[at : at + 1])
        time.sleep(min(1, field.secs / 5))
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


@case("half-upgrades", "1,000 WebSocket upgrades of 8 KB that never end")
def half_upgrades(field):
    streams = []
    header = b"GET /mqtt HTTP/1.1\r\nHost: x\r\nX-Long: "
    for number in range(field.pick(1_000, 200)):
        stream = field.dial(field.ws_port, 1 + number % 20)
        if stream is not None:
            streams.append(stream)
            push(stream, header + b"h" * (8 * 1024 - 100))
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


def guesses_are_paced(outcome):
    heard, secs = outcome.facts["0x87"], outcome.facts["secs"]
    # 64 at once, and 5 in a second.
    return [f"{heard} guesses were heard in {secs:.1f} s"] if heard > 70 + 6 * secs else []


@case("scram-guesses", "guesses by SCRAM, which costs no more than two digests, at full speed",
      expect=guesses_are_paced)  # fmt: skip
def scram_guesses(field):
    begun, answers = time.monotonic(), {"0x87": 0, "0x89": 0}
    method = b"\x15" + wire.prefixed("SCRAM-SHA-256")
    for number in itertools.count():
        if not field.goes_on():
            break
        stream = field.dial(field.closed_port, 1)
        if stream is None:
            continue
        with wire.Peer(stream) as peer:
            first = b"\x16" + wire.prefixed(f"n,,n=anna,r=nonce{number}")
            peer.send(wire.connect("guess", properties=method + first))
            body = peer.expect(wire.AUTH)
            nonce = body[body.index(b"r=") + 2 : body.index(b",s=")]
            final = b"\x16" + wire.prefixed(b"c=biws,r=" + nonce + b",p=" + b"A" * 43 + b"=")
            properties = method + final
            peer.send(wire.packet(wire.AUTH, b"\x18" + wire.varint(len(properties)) + properties))
            reason = f"{peer.expect(wire.CONNACK)[1]:#x}"
            answers[reason] = answers.get(reason, 0) + 1
    return {**answers, "secs": time.monotonic() - begun}


@case("come-and-go", "successful log-ins with a subscription, then disconnected, at full speed")
def come_and_go(field):
    count = 0
    while field.goes_on():
        stream = field.dial(field.open_port, 1)
        if stream is not None:
            push(stream, wire.connect(f"come-{count}") + wire.subscribe("siege/#", 1))
            stream.close()
            count += 1
    return {"connections": count}


@case("takeovers", "another user connects with the client ids of the other clients, at full speed",
      expect=lambda outcome: [f"{outcome.facts['let_in']} times let in"]
      if outcome.facts["let_in"] else [])  # fmt: skip
def takeovers(field):
    facts = {"tries": 0, "let_in": 0}
    for victim in itertools.cycle(("siege-publisher", "siege-subscriber")):
        if not field.goes_on():
            break
        stream = field.dial(field.open_port, 1)
        if stream is None:
            continue
        with wire.Peer(stream) as peer:
            _, reason, _ = peer.connect(client_id=victim)
            facts["tries"] += 1
            facts["let_in"] += reason == 0
    return facts


# The API on the port of the metrics, with the users of the broker.
API = """
[api]
listen = "http"
password_file = "{dir}/passwords"
"""
CALLERS = 40
RIGHT = (("anna", "secret"), ("bruno", "geheim"), ("eve", "eve"), ("otto", "still"))


def others_are_answered(outcome):
    facts = outcome.facts
    found = [f"{facts['unmeasured']} of {facts['rounds']} times no metrics"]
    found += [f"{facts['kept_out']} of {facts['rounds']} right passwords were refused"]
    counts = (facts["unmeasured"], facts["kept_out"])
    return [text for text, count in zip(found, counts, strict=True) if count]


def caller(field, user, password, source):
    """A connection that has asked the API with a password; None where it is refused."""
    stream = field.dial(field.http_port, source)
    if stream is not None:
        shown = base64.b64encode(f"{user}:{password}".encode()).decode()
        head = ("GET /api/v1/caller HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Basic {shown}")
        push(stream, "\r\n".join([*head, "", ""]).encode())
    return stream


def status_of(stream):
    try:
        return stream.recv(64).split()[1].decode()
    except (OSError, IndexError):
        return "closed"


@case("api-passwords", "40 callers of the API with wrong passwords, of five addresses, at full"
      " speed", config=API, expect=others_are_answered)  # fmt: skip
def api_passwords(field):
    facts = {"rounds": 0, "unmeasured": 0, "kept_out": 0, "answered": 0}
    waiting, asked_at = [], time.monotonic()
    for number in itertools.count():
        if not field.goes_on():
            break
        if len(waiting) < CALLERS:
            stream = caller(field, "anna", f"x{number}", 80 + number % 5)
            waiting += [stream] if stream is not None else []
        readable, _, _ = select.select(waiting, [], [], 0 if len(waiting) < CALLERS else 0.05)
        for stream in readable:
            facts["answered"] += 1
            waiting.remove(stream)
            stream.close()
        if time.monotonic() >= asked_at:
            asked_at = time.monotonic() + 0.25
            user, password = RIGHT[facts["rounds"] % len(RIGHT)]
            facts["rounds"] += 1
            facts["unmeasured"] += not field.metrics()
            right = caller(field, user, password, 0)
            facts["kept_out"] += right is None or status_of(right) != "200"
    for stream in waiting:
        stream.close()
    return facts
