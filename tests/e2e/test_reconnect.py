"""A client is back while what it asked for before is on its way to the disk.

The disk stands still when the test says so, so that nothing here depends on time.
"""

import subprocess

import pytest

from broker import PLAIN, QUELEA, Broker, eventually
from slow_sync import Gate
from wire import (
    PINGRESP, PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, Peer, ack, fresh, packet, publish, subscribe,
)

QUOTA_EXCEEDED = 0x97
NEVER = b"\x11\xff\xff\xff\xff"

# All connections are numbered by one worker, all that is kept goes into one log.
ONE = PLAIN + """
[server]
shards = 1
workers = 1
[sys]
interval_secs = "off"
[durability]
level = "fsync"
"""


@pytest.fixture
def gate():
    with Gate() as gate:
        yield gate


@pytest.fixture
def broker(gate):
    broker = Broker(ONE, environment=gate.environment)
    yield broker
    gate.open()
    broker.stop()


def session(client_id):
    return {"client_id": client_id, "clean": False, "properties": NEVER}


def test_a_stop_ends_within_its_grace_though_the_disk_stands_still(gate):
    broker = Broker(ONE.replace("[server]", "[server]\nshutdown_grace_secs = 1"),
                    environment=gate.environment)
    try:
        topic = kept_topic(broker)
        with Peer(broker.port()) as peer:
            peer.accepted()
            gate.shut()
            begun = gate.begun()
            peer.send(publish(topic, "x", qos=1))
            gate.wait_for(begun + 1)
            broker.terminate()
            assert broker.wait() == 0
            answered = []
            while (got := peer.recv()) is not None:
                answered.append(got[0] & 0xF0)
            assert PUBACK not in answered
        broker.wait_for_log(lambda event: "not synced" in event["message"])
        gate.open()
        broker._launch()
    finally:
        gate.open()
        broker.stop()


def kept_topic(broker):
    """A topic that a persistent session without a connection is subscribed to."""
    topic = fresh()
    with Peer(broker.port()) as peer:
        peer.accepted(**session("keeper")).subscribed(topic, 2)
    gone(broker)
    return topic


def count(broker, name):
    return sum(value for key, value in broker.metrics().items() if key.split("{")[0] == name)


def gone(broker, left=0):
    """Waits until the broker knows that connections are gone."""
    eventually(lambda: count(broker, "quelea_connections") == left, "the end of a connection")


def dealt_with(peer):
    """Waits until the broker has dealt with all that was sent; what came before the answer."""
    peer.send(packet(0xC0))
    before = []
    while (received := peer.recv())[0] != PINGRESP:
        before.append(received)
    return before


def stop_disk(gate, other):
    """From now on what is kept has to wait; a sync that is none of the client's has begun. Its
    number."""
    gate.shut()
    number = gate.begun() + 1
    other.send(publish(fresh(), b"kept", qos=1, packet_id=9, retain=True))
    gate.wait_for(number)
    return number


def let_pass(gate, number):
    """The sync of this number is done, and the broker has been told: the next one has begun."""
    gate.release(number)
    gate.wait_for(number + 1)


def back_while_it_waits(broker, gate, client, *packets):
    """A client sends packets, and has a new connection while they wait for the disk. Returns that,
    and the number of the sync that they wait for."""
    other = Peer(broker.port()).accepted()
    first = Peer(broker.port()).accepted(**session(client))
    number = stop_disk(gate, other)
    first.send(*packets)
    assert dealt_with(first) == []
    # What is sent from now on is part of a later sync than that.
    let_pass(gate, number)
    first.close()
    gone(broker, left=1)
    return Peer(broker.port()).accepted(**session(client)), number + 1


@pytest.mark.parametrize("qos, answer", [(1, PUBACK), (2, PUBREC)])
def test_a_late_commit_does_not_acknowledge_the_publish_of_a_later_connection(
    broker, gate, qos, answer
):
    topic = kept_topic(broker)
    old = publish(topic, b"old", qos=qos, packet_id=1)
    peer, number = back_while_it_waits(broker, gate, "client", old)
    peer.send(publish(topic, b"new", qos=qos, packet_id=2))
    assert dealt_with(peer) == []
    let_pass(gate, number)
    assert dealt_with(peer) == [], "the sync was the one of the message before"
    gate.open()
    first, body = peer.recv()
    assert (first, body[:2]) == (answer, b"\0\2")


def test_a_late_commit_does_not_confirm_a_subscription_to_a_later_connection(broker, gate):
    old = subscribe(fresh(), 1, packet_id=1)
    peer, number = back_while_it_waits(broker, gate, "client", old)
    peer.send(subscribe(fresh(), 1, packet_id=2))
    assert dealt_with(peer) == []
    let_pass(gate, number)
    assert dealt_with(peer) == [], "the sync was the one of the subscription before"
    gate.open()
    first, body = peer.recv()
    assert (first, body[:2]) == (SUBACK, b"\0\2")


def test_a_pubrel_that_is_repeated_on_a_new_connection_is_completed_once(broker, gate):
    topic = kept_topic(broker)
    with Peer(broker.port()) as peer:
        peer.accepted(**session("client"))
        peer.send(publish(topic, b"once", qos=2, packet_id=1))
        peer.expect(PUBREC)
    gone(broker)
    peer, _ = back_while_it_waits(broker, gate, "client", ack(PUBREL, 1))
    peer.send(ack(PUBREL, 1))
    assert dealt_with(peer) == []
    gate.open()
    assert peer.expect(PUBCOMP)[:2] == b"\0\1"
    # A sync that comes behind: what else there is to say was said before.
    assert [first for first, _ in published(peer, topic)] == []
    peer.close()


def published(peer, topic):
    """Publishes one more message; what came before its acknowledgement."""
    peer.send(publish(topic, b"more", qos=1, packet_id=7))
    before = []
    while (received := peer.recv())[0] != PUBACK:
        before.append(received)
    return before


# Files so small that some messages take several.
SMALL = ONE.replace("[durability]", """[limits]
packet_bytes_max = "32KiB"
topic_bytes_max = 256
[durability]
segment_bytes = "128KiB"
""")


def test_kept_sessions_are_resumed_by_a_full_log_and_drain_it(start):
    broker = start(SMALL)
    names = [f"kept-{number}" for number in range(20)]
    for name in names:
        with Peer(broker.port()) as peer:
            peer.accepted(**session(name)).subscribed("a" if name == names[0] else "b", 1)
    gone(broker)
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number in range(130):
            peer.send(publish("a", "x" * 3000, qos=1, packet_id=number + 1))
            assert is_success(peer.expect(PUBACK))
    # A backup has no files but those that are written, and the limit allows for no more.
    copy = broker.directory / "copy"
    backup = [QUELEA, "backup", str(broker.data), str(copy)]
    subprocess.run(backup, check=True, capture_output=True)
    restored = start(SMALL + 'log_bytes_max = "512KiB"\n', data=copy)
    with Peer(restored.port()) as peer:
        peer.accepted()
        peer.send(publish("b", "x" * 3000, qos=1))
        assert peer.expect(PUBACK)[2] == QUOTA_EXCEEDED
    for name in reversed(names):
        with Peer(restored.port()) as peer:
            flags, reason, _ = peer.connect(**session(name))
            assert (flags & 1, reason) == (1, 0), name
            if name == names[0]:
                for _ in range(130):
                    assert peer.message()[0] == "a"
                    # That its acknowledgement has come, too.
                peer.ping()
    with Peer(restored.port()) as peer:
        peer.accepted()

        def is_taken():
            peer.send(publish("b", "x" * 3000, qos=1))
            return is_success(peer.expect(PUBACK))

        eventually(is_taken, "room in the log")


def is_success(puback):
    return len(puback) == 2 or puback[2] < 0x80
