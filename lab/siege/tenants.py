"""Attacks by the many users of one namespace, beside those of another one."""

import contextlib
import functools
import itertools
import threading
import time

import cases
import identities
import wire
from after_login import read_away, subscribed
from churn import SMALL_LOGS
from held import kept, publish_retained

# Two tenants who share logs and memory of little size.
TENANTS = SMALL_LOGS.replace("[limits]", '[limits]\nmemory_bytes_max = "96MiB"') + """
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "tenants"
namespace_from = ["username"]
[[authentication]]
name = "service"
kind = "http"
url = "{service}"
[[namespaces]]
name = "red"
[[namespaces]]
name = "blue"
"""

NINA = {"user": "blue:nina", "password": "x"}
AWAY = {"client_id": "away", "properties": kept(600), **NINA}
PERIOD_SECS = 0.02
THREADS = 6
# What waits for the neighbour before the attack, and what one of these has.
WAITING, WAITING_SHORT, BYTES = 600, 50, 1_000
# Publishes of a hog before it looks at the answers.
PORTION = 10


def tenant(field, name, number, source=1, **options):
    login = {"user": f"{name}:u{number}", "password": "x"}
    return field.client(source, port=field.tenants_port, **login, **options)


def enter(field, number):
    """A user with a kept session that is away, and a connection."""
    own = {"client_id": f"away-{number}", "properties": kept(600)}
    away = tenant(field, "red", number, **own)
    if away is not None:
        with away, contextlib.suppress(OSError, TypeError, AssertionError):
            subscribed(away, [f"t/{number}"], 1)
    return tenant(field, "red", number)


def fill_everything(field, peers, facts):
    """Each sends messages for its session that is away, and retained ones, until it is cut."""
    payload, open_peers = bytes(16_000), dict(peers)
    for turn in itertools.count():
        for number, peer in list(open_peers.items()):
            if not field.goes_on():
                return
            packets = [wire.publish(f"t/{number}", payload, 1, n) for n in range(1, PORTION)]
            packets.append(wire.publish(f"r/{number}/{turn}", payload, 1, PORTION, retain=True))
            try:
                peer.send(*packets)
                reasons = [peer.expect(wire.PUBACK)[2:3] or b"\0" for _ in packets]
            except (OSError, AssertionError, TypeError):
                facts["hogs_cut"] += 1
                open_peers.pop(number).close()
                continue
            facts["hogs_sent"] += len(reasons)
            facts["hogs_refused"] += sum(reason[0] >= 0x80 for reason in reasons)


def store(peer, facts):
    """The neighbour publishes to its own session that is away."""
    peer.send(wire.publish("own/x", bytes(BYTES), 1, 1))
    body = peer.expect(wire.PUBACK)
    facts["refused" if len(body) > 2 and body[2] >= 0x80 else "stored"] += 1


def behave(field, facts):
    """The neighbour goes on with that, and with retained messages."""
    with field.client(2, port=field.tenants_port, **NINA) as peer:
        for number in itertools.takewhile(lambda _: field.goes_on(), itertools.count()):
            store(peer, facts)
            is_kept = publish_retained(peer, f"kept/{number}", b"x" * 100) < 0x80
            facts["kept" if is_kept else "refused"] += 1
            time.sleep(PERIOD_SECS)


def come_back(field, facts):
    """What is left to the neighbour of what was acknowledged."""
    with field.client(2, port=field.tenants_port, clean=False, **AWAY) as peer:
        with contextlib.suppress(OSError, AssertionError):
            while facts["left"] < facts["stored"]:
                facts["left"] += peer.message()[0] == "own/x"
    with field.client(2, port=field.tenants_port, **NINA) as peer:
        peer.send(wire.subscribe("kept/#", 0))
        with contextlib.suppress(OSError, TypeError):
            while facts["kept_left"] < facts["kept"]:
                first, _ = peer.recv()
                facts["kept_left"] += first & 0xF0 == wire.PUBLISH


def neighbour_is_whole(outcome):
    facts, found = outcome.facts, []
    if facts["refused"] or not facts["stored"]:
        found.append(f"the neighbour was refused {facts['refused']} times")
    if facts["left"] < facts["stored"]:
        found.append(f"{facts['left']} of {facts['stored']} messages are left to the neighbour")
    if facts["kept_left"] < facts["kept"]:
        found.append(f"{facts['kept_left']} of {facts['kept']} of its retained messages are left")
    return found


def enter_case(level, config):
    @cases.case(f"tenant-crowd-{level}", "150 users of a namespace that fill queues and retained"
                f" messages at level {level}, and another namespace", config=config, peak_mib=270, alone=True,
                expect=neighbour_is_whole)  # fmt: skip
    def attack(field):
        return tenant_crowd(field)


def tenant_crowd(field):
    names = ["refused", "stored", "kept", "left", "kept_left"]
    names += ["hogs_sent", "hogs_refused", "hogs_cut"]
    facts = dict.fromkeys(names, 0)
    with field.client(2, port=field.tenants_port, **AWAY) as peer:
        subscribed(peer, ["own/#"], 1)
    with field.client(2, port=field.tenants_port, **NINA) as peer:
        for _ in range(field.pick(WAITING, WAITING_SHORT)):
            store(peer, facts)
    peers = [(number, enter(field, number)) for number in range(field.pick(150, 30))]
    peers = [(number, peer) for number, peer in peers if peer is not None]
    field.begin()
    works = [functools.partial(fill_everything, field, peers[first::THREADS], facts)
             for first in range(THREADS)]  # fmt: skip
    threads = [threading.Thread(target=work) for work in (*works, lambda: behave(field, facts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    come_back(field, facts)
    return facts


for level in ("fsync", "memory"):
    enter_case(level, TENANTS.replace("[durability]", f'[durability]\nlevel = "{level}"'))


# What the late tenant asks for: less than is reserved for each of three in each log.
LATE = {"sessions": 6, "stored": 300, "kept": 200}
FILL_ROUNDS_MAX, FULL_REFUSALS = 20, 200


def late_tenant_is_served(outcome):
    facts = outcome.facts
    found = [f"{facts[what]} of {wanted} {what} of the late tenant"
             for what, wanted in LATE.items() if facts[what] < wanted]  # fmt: skip
    if not facts["hogs_refused"]:
        found.append("the first tenant did not fill the logs")
    if facts["left"] < facts["stored"]:
        found.append(f"{facts['left']} of {facts['stored']} messages are left to the late tenant")
    return found


@cases.case("log-space-of-a-late-tenant", "150 users of a namespace that fill the logs with queues and"
            " retained messages, and then the first clients of another namespace",
            config=TENANTS.replace('"96MiB"', '"256MiB"').replace('"64MiB"', '"16MiB"'),
            peak_mib=270, alone=True, expect=late_tenant_is_served)  # fmt: skip
def late_tenant(field):
    names = ["refused", *LATE, "left", "hogs_sent", "hogs_refused", "hogs_cut"]
    facts = dict.fromkeys(names, 0)
    peers = [(number, enter(field, number)) for number in range(field.pick(150, 30))]
    peers = [(number, peer) for number, peer in peers if peer is not None]
    works = [functools.partial(fill_everything, field, peers[first::THREADS], facts)
             for first in range(THREADS)]  # fmt: skip
    # On a busy machine one round does not fill the logs.
    for _ in range(FILL_ROUNDS_MAX):
        field.begin()
        threads = [threading.Thread(target=work) for work in works]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if facts["hogs_refused"] >= FULL_REFUSALS:
            break
    # Each log keeps what is for its sessions.
    for number in range(LATE["sessions"]):
        own = {"client_id": f"away-{number}", "properties": kept(600), **NINA}
        with field.client(2, port=field.tenants_port, **own) as peer:
            facts["sessions"] += subscribed(peer, ["own/#"], 1)
    with field.client(2, port=field.tenants_port, **NINA) as peer:
        for _ in range(LATE["stored"]):
            store(peer, facts)
        for number in range(LATE["kept"]):
            facts["kept"] += publish_retained(peer, f"kept/{number}", bytes(BYTES)) < 0x80
    own = {"client_id": "away-0", "clean": False, "properties": kept(600), **NINA}
    with field.client(2, port=field.tenants_port, **own) as peer:
        with contextlib.suppress(OSError, AssertionError):
            while facts["left"] < facts["stored"]:
                facts["left"] += peer.message()[0] == "own/x"
    return facts


def rate_holds(outcome):
    taken, secs = outcome.facts["taken"], outcome.facts["secs"]
    # A second's worth at once, and another one for those that are under way.
    return [f"{taken} publishes in {secs:.1f} s, of 1,000 a second"] if taken > 1_000 * (secs + 2) else []


@cases.case("namespace-rate", "100 connections of a namespace with a limit of 1,000 messages a second,"
            " at full speed", config=identities.CONFIG, peak_mib=300, expect=rate_holds)  # fmt: skip
def namespace_rate(field):
    peers = [tenant(field, "green", number) for number in range(field.pick(100, 30))]
    peers = [peer for peer in peers if peer is not None]
    for peer in peers:
        read_away(peer.stream)
        peer.stream.settimeout(0.01)
    metric = 'quelea_namespace_messages_in_total{namespace="green"}'
    field.begin()
    before, begun = field.metrics().get(metric, 0), time.monotonic()
    portion = wire.publish("siege/rate", b"x" * 20) * 500
    while field.goes_on():
        for peer in peers:
            # What a socket does not take now is left out: the stream has to stay whole.
            send_whole(field, peer.stream, portion)
    taken = field.metrics().get(metric, 0) - before
    return {"clients": len(peers), "taken": taken, "secs": time.monotonic() - begun}


def send_whole(field, stream, portion):
    """All of it or nothing."""
    with contextlib.suppress(OSError):
        sent = stream.send(portion)
        while 0 < sent < len(portion) and field.goes_on():
            with contextlib.suppress(TimeoutError):
                sent += stream.send(portion[sent:])
