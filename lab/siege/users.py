"""Users with passwords, a few of whom fill the memory each in a way of its own, beside others."""

import contextlib
import itertools
import socket
import struct
import threading

import cases
import wire
from after_login import at_full_speed, read_away, subscribed
from cases import is_cut
from held import publish_retained

EVE = {"user": "eve", "password": "eve"}
BRUNO = {"user": "bruno", "password": "geheim"}
SARA = {"user": "sara", "password": "secret"}
# Who behaves, beside the pair and the newcomers, who are all one user, too.
OTTO = {"user": "otto", "password": "still"}

# How often the honest user publishes, and what.
PERIOD_SECS = 0.02
HONEST_BYTES = 1_000
# What resident memory may be beyond the limit while freed memory goes back to the system.
SLACK = 1.35
RECEIVE_MAX_1 = b"\x21" + struct.pack(">H", 1)


def user(field, login, number, **options):
    """Without a name it is who comes from that address."""
    port = field.closed_port if login else field.open_port
    return field.client(1 + number % 20, port=port, **login, **options)


def fill_outboxes(field, login, facts):
    """Connections that want everything and read nothing."""
    peers = [peer for n in range(field.pick(200, 80)) if (peer := user(field, login, n))]
    for peer in peers:
        # So that what is not read waits in the broker, and not in the kernel.
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError, TypeError):
            subscribed(peer, ["eve/flood"], 0)
    keep_sending(field, login, wire.publish("eve/flood", bytes(30_000)) * 10)
    facts["unread_cut"] = sum(is_cut(peer.stream) for peer in peers)


def fill_queues(field, login, facts):
    """Sessions in memory only, that acknowledge nothing."""
    peers = [
        peer
        for n in range(field.pick(40, 20))
        if (peer := user(field, login, n, properties=RECEIVE_MAX_1))
    ]
    for number, peer in enumerate(peers):
        with contextlib.suppress(OSError, TypeError):
            subscribed(peer, [f"bruno/{number}"], 1)
            read_away(peer.stream)
    # Each for one session only: what many share would lie there once.
    topics = (f"bruno/{number}" for number in range(len(peers)))
    keep_sending(field, login, b"".join(wire.publish(topic, bytes(8_000), 1) for topic in topics))
    facts["queues_cut"] = sum(is_cut(peer.stream) for peer in peers)


def fill_retained(field, login, facts):
    """Retained messages on ever more topics, refused or not."""
    facts |= {"retained": 0, "retained_refused": 0}
    for number in itertools.count():
        peer = user(field, login, number)
        if not field.goes_on():
            return
        if peer is None:
            continue
        with peer, contextlib.suppress(OSError, AssertionError):
            for topic in itertools.count():
                if not field.goes_on():
                    return
                reason = publish_retained(peer, f"sara/{number}/{topic}", bytes(32_000))
                facts["retained" if reason < 0x80 else "retained_refused"] += 1
                if reason >= 0x80 and not login:
                    # Another address may have some, too.
                    break


def keep_sending(field, login, portion):
    """The same at full speed, by another connection whenever one is cut."""
    for number in itertools.count(20):
        if not field.goes_on():
            return
        peer = user(field, login, number)
        if peer is not None:
            read_away(peer.stream)
            at_full_speed(field, peer.stream, portion)


def behave(field, login, facts):
    """Publishes to itself as it should, and notes what it is refused."""
    facts |= {"honest_sent": 0, "honest_refused": 0, "honest_cut": 0, "honest_subscribed": 0}
    peer = user(field, login, 0, client_id="honest")
    if peer is None:
        facts["honest_cut"] += 1
        return
    packet = wire.publish("otto/own", bytes(HONEST_BYTES), 1, 1)
    try:
        while field.goes_on():
            peer.send(wire.subscribe(f"otto/{facts['honest_sent'] % 100}", 1))
            facts["honest_refused"] += peer.expect(wire.SUBACK)[-1] >= 0x80
            facts["honest_subscribed"] += 1
            peer.send(packet)
            body = peer.expect(wire.PUBACK)
            facts["honest_sent"] += 1
            facts["honest_refused"] += len(body) > 2 and body[2] >= 0x80
            threading.Event().wait(PERIOD_SECS)
    except (OSError, AssertionError, TypeError):
        facts["honest_cut"] += 1


def honest_go_on(outcome):
    facts = outcome.facts
    found = []
    if facts["honest_refused"]:
        found.append(f"an honest user was refused {facts['honest_refused']} times")
    if facts["honest_cut"] or not facts["honest_sent"]:
        found.append("an honest user was cut off")
    return found


def hogs(field, ways):
    """Each way of the hogs in a thread, and an honest user beside them."""
    told = [{} for _ in range(len(ways) + 1)]
    works = [*ways, (behave, OTTO)]
    threads = [
        threading.Thread(target=work, args=(field, login, facts))
        for (work, login), facts in zip(works, told, strict=True)
    ]
    [thread.start() for thread in threads]
    seen = [(0, 0)]
    while field.goes_on():
        seen.append(pressure(field) or seen[-1])
        threading.Event().wait(0.2)
    [thread.join() for thread in threads]
    tight, short = pressure(field) or seen[-1]
    told.append({"times_tight": tight, "times_short": short})
    return {key: value for facts in told for key, value in facts.items()}


def pressure(field):
    """How often the broker says that memory got tight, and short; None where it does not answer."""
    name = "quelea_memory_shortages_total"
    found = {key.split('"')[1]: int(value) for key, value in field.metrics().items()
             if key.startswith(name)}  # fmt: skip
    if not found:
        return None
    return found.get("tight", 0), found.get("short", 0)


def pressure_was_reached(outcome):
    """A case that is about a lack of memory proves nothing where there is none."""
    return [] if outcome.facts["times_tight"] else ["memory never got tight"]


ALL = ((fill_outboxes, EVE), (fill_queues, BRUNO), (fill_retained, SARA))


def limited(mib):
    return f'[limits]\nmemory_bytes_max = "{mib}MiB"'


NAMELESS = {}


@cases.case(
    "many-addresses",
    "clients of 20 addresses that fill 96 MiB with queues, retained messages and unread bytes"
    " while other clients work",
    config=limited(96), peak_mib=int(96 * SLACK), alone=True,
    expect=lambda outcome: honest_go_on(outcome) + pressure_was_reached(outcome),
)  # fmt: skip
def many_addresses(field):
    return hogs(field, [(fill, NAMELESS) for fill in (fill_outboxes, fill_queues, fill_retained)])


def enter(mib):
    """Small machines. Only on the smallest do three users reach the limit of memory, and not each
    time: each kind of thing has its part of it."""

    @cases.case(
        f"many-users-{mib}",
        f"three users that fill {mib} MiB with queues, retained messages and unread bytes"
        " while other clients work",
        config=limited(mib), peak_mib=int(mib * SLACK), alone=True, expect=honest_go_on,
    )  # fmt: skip
    def many_users(field):
        return hogs(field, ALL)


for mib in (56, 64, 96, 160, 240):
    enter(mib)
