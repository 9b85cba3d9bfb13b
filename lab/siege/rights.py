"""Attacks on what belongs to others, by clients with rights of their own."""

import functools
import itertools

import cases
import wire
from after_login import at_full_speed, read_away, subscribed
from cases import push
from held import kept

ACCESS = '[access]\nacl_file = "{dir}/access"'
ANNA = {"user": "anna", "password": "secret"}
EVE = {"user": "eve", "password": "eve"}

case = functools.partial(cases.case, config=ACCESS, peak_mib=300)


def eve(field, **options):
    return field.client(1, port=field.closed_port, **EVE, **options)


def anna(field, **options):
    return field.client(2, port=field.closed_port, **ANNA, **options)


def few_lines(outcome):
    kib = outcome.log_bytes // 1024
    return [f"{kib} KB in the log"] if kib > 1024 else []


def all_is_kept(outcome):
    facts = outcome.facts
    found = [f"{facts['let_in']} times let in"] if facts["let_in"] else []
    if facts["left"] < facts["stored"]:
        found.append(f"{facts['left']} of {facts['stored']} messages are left to the owner")
    return found


@case("theft", "another user connects with the client id of a session that has messages, with a"
      " clean start and without", expect=all_is_kept)  # fmt: skip
def theft(field):
    facts = {"stored": 200, "left": 0, "let_in": 0, "tries": 0}
    owner = {"client_id": "annas-own", "properties": kept(600)}
    with anna(field, **owner) as peer:
        subscribed(peer, ["siege-owned/#"], 1)
    with anna(field) as peer:
        for number in range(facts["stored"]):
            peer.send(wire.publish("siege-owned/x", str(number), 1, 1))
            peer.expect(wire.PUBACK)
    for clean in itertools.cycle((True, False)):
        if not field.goes_on():
            break
        peer = eve(field, client_id="annas-own", clean=clean, properties=kept(600))
        facts["tries"] += 1
        facts["let_in"] += peer is not None
    with anna(field, clean=False, **owner) as peer:
        for _ in range(facts["stored"]):
            peer.message()
            facts["left"] += 1
    return facts


def none_is_lost(outcome):
    facts = outcome.facts
    if facts["received"] < facts["sent"]:
        return [f"{facts['sent'] - facts['received']} messages of the group disappeared"]
    return []


@case("group-thieves", "members of a group who may not read most of what they are chosen for",
      expect=none_is_lost)  # fmt: skip
def group_thieves(field):
    worker = anna(field, client_id="worker")
    subscribed(worker, ["$share/workers/jobs/#"], 1)
    thieves = [peer for n in range(5) if (peer := eve(field, client_id=f"thief-{n}"))]
    for peer in thieves:
        subscribed(peer, ["$share/workers/jobs/#"], 1)
        read_away(peer.stream)
    facts = {"sent": 0, "received": 0, "thieves": len(thieves)}
    with anna(field) as publisher:
        while field.goes_on():
            publisher.send(wire.publish(f"jobs/anna/{facts['sent']}", b"job", 1, 1))
            publisher.expect(wire.PUBACK)
            facts["sent"] += 1
            worker.message()
            facts["received"] += 1
    return facts


@case("denied-publishes", "denied publishes to long topics, at full speed", expect=few_lines)
def denied_publishes(field):
    peer = eve(field)
    read_away(peer.stream)
    portion = b"".join(wire.publish(f"no/{n}/" + "t" * 900, b"x", 1) for n in range(100))
    return {"sent_mb": at_full_speed(field, peer.stream, portion) / (1 << 20)}


@case("denied-subscribes", "filters that are denied, at full speed", expect=few_lines)
def denied_subscribes(field):
    peer = eve(field)
    read_away(peer.stream)
    portion = b"".join(wire.subscribe(f"no/{n}/" + "f" * 900) for n in range(100))
    return {"sent_mb": at_full_speed(field, peer.stream, portion) / (1 << 20)}


@case("slashed-ids", "client ids with `/` that would reach other levels of a pattern",
      expect=lambda outcome: ["a pattern took an id with `/`"]
      if outcome.facts["taken"] else [])  # fmt: skip
def slashed_ids(field):
    facts = {"tries": 0, "taken": 0}
    while field.goes_on():
        peer = eve(field, client_id="a/b")
        if peer is None:
            continue
        with peer:
            peer.send(wire.publish("devices/a/b/up", b"x", 1, 1))
            body = peer.expect(wire.PUBACK)
            facts["taken"] += len(body) < 3 or body[2] < 0x80
            peer.send(wire.subscribe("devices/a/b/down"))
            facts["taken"] += peer.expect(wire.SUBACK)[-1] < 0x80
            facts["tries"] += 1
    return facts


@case("wills-denied", "wills for topics that their clients may not publish to at full speed",
      expect=few_lines)  # fmt: skip
def wills_denied(field):
    count = 0
    while field.goes_on():
        stream = field.dial(field.closed_port, 1)
        if stream is not None:
            will = ("no/" + "w" * 900, "x", 1, False)
            push(stream, wire.connect(f"denied-{count}", will=will, **EVE))
            stream.close()
            count += 1
    return {"connections": count}


@case("group-dropped", "a group whose queue overflows: each drop is an event", expect=few_lines)
def group_dropped(field):
    with anna(field, client_id="away", properties=kept(600)) as peer:
        subscribed(peer, ["$share/away/siege-away/#"], 1)
    publisher = anna(field)
    read_away(publisher.stream)
    flood = wire.publish("siege-away/x", b"x", 1) * 500
    return {"sent_mb": at_full_speed(field, publisher.stream, flood) / (1 << 20)}
