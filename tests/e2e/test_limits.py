"""Named limits and their policies: each is reached here, and does what is written of it."""

import json
import socket
import time

import pytest

from broker import PLAIN, eventually
from wire import (
    PUBACK, PUBREC, PUBREL, SUBACK, Peer, ack, connect, fresh, packet, publish, subscribe,
)


def limited(start, shards=None, **limits):
    quoted = {name: f'"{v}"' if isinstance(v, str) else v for name, v in limits.items()}
    lines = [f"{name} = {value}" for name, value in quoted.items()]
    server = f"[server]\nshards = {shards}\n" if shards else ""
    # The topics of $SYS are retained messages, too.
    server += '[sys]\ninterval_secs = "off"\n'
    return start(PLAIN + server + "[limits]\n" + "\n".join(lines) + "\n")


def offline_subscriber(broker, topic, qos=1):
    """A persistent session that has subscribed and gone; returns how to connect it again."""
    options = {"client_id": fresh("c").replace("/", "-"), "clean": False,
               "properties": b"\x11\x00\x00\x0e\x10"}
    with Peer(broker.port()) as peer:
        peer.accepted(**options).subscribed(topic, qos)
        peer.send(packet(0xE0))
        peer.expect_end()
    return options


def published(peer, topic, count, first=0, lifetimes=()):
    """Publishes 0, 1, 2, ... at QoS 1 and returns the reasons."""
    reasons = []
    for number in range(first, first + count):
        secs = lifetimes[number] if lifetimes else None
        properties = b"\x02" + secs.to_bytes(4) if secs else b""
        peer.send(publish(topic, str(number), qos=1, packet_id=number + 1, properties=properties))
        body = peer.expect(PUBACK)
        reasons.append(body[2] if len(body) > 2 else 0)
    return reasons


def queued(broker, options):
    """What a returning subscriber gets before the answer to its PINGREQ."""
    with Peer(broker.port()) as peer:
        peer.accepted(**options)
        topic = fresh("fence")
        peer.send(subscribe(topic, 0))
        got = []
        while True:
            received = peer.recv()
            if received[0] == SUBACK:
                break
            body = received[1]
            length = int.from_bytes(body[:2])
            at = 2 + length
            if received[0] >> 1 & 3:
                peer.send(ack(PUBACK, int.from_bytes(body[at : at + 2])))
                at += 2
            got.append(body[at + 1 :].decode())
        return got


def test_queue_drops_the_oldest(start):
    broker = limited(start, queued_messages_max=5, queue_overflow="drop_oldest")
    options = offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        assert published(peer.accepted(), "a", 8) == [0] * 8
    expect_queue(broker, options, ["3", "4", "5", "6", "7"])


def test_queue_drops_the_newest(start):
    broker = limited(start, queued_messages_max=5, queue_overflow="drop_newest")
    options = offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        assert published(peer.accepted(), "a", 8) == [0] * 8
    expect_queue(broker, options, ["0", "1", "2", "3", "4"])


def test_queue_rejects_the_publisher(start):
    broker = limited(start, queued_messages_max=5, queue_overflow="reject")
    options = offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        assert published(peer.accepted(), "a", 8) == [0] * 5 + [0x97] * 3
    expect_queue(broker, options, ["0", "1", "2", "3", "4"])


def test_mqtt311_4_8_0_2_a_publisher_that_cannot_be_told_is_closed(start):
    """Before MQTT 5 there is no way to refuse a message but to end the connection."""
    broker = limited(start, queued_messages_max=5, queue_overflow="reject")
    options = offline_subscriber(broker, "a")
    with Peer(broker.port(), 4) as peer:
        peer.accepted(client_id="older")
        for number in range(6):
            packet_id = number + 1
            peer.send(publish("a", str(number), qos=1, packet_id=packet_id, version=4))
        for _ in range(5):
            peer.expect(PUBACK)
        peer.expect_end()
    expect_queue(broker, options, ["0", "1", "2", "3", "4"])


def expect_queue(broker, options, expected):
    with Peer(broker.port()) as peer:
        peer.accepted(**options)
        assert [peer.message()[1].decode() for _ in expected] == expected
        peer.ping()


@pytest.mark.parametrize("level", ["memory", "fsync"])
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "reject"])
def test_mqtt_3_3_2_5_expired_messages_leave_their_room_in_a_full_queue(start, overflow, level):
    """Two of five live on; nothing happens while the others expire."""
    limits = f'[limits]\nqueued_messages_max = 5\nqueue_overflow = "{overflow}"\n'
    broker = start(PLAIN + limits + f'[durability]\nlevel = "{level}"\n')
    options = offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        assert published(peer.accepted(), "a", 5, lifetimes=[None, 1, 1, 60, 1]) == [0] * 5
        time.sleep(1.1)
        assert published(peer, "a", 3, first=10) == [0] * 3
    expect_queue(broker, options, ["0", "3", "10", "11", "12"])
    dropped = [count for name, count in broker.metrics().items() if "queue_full" in name]
    assert sum(dropped) == 0


def test_queue_disconnects_the_subscriber(start):
    broker = limited(
        start, queued_messages_max=5, in_flight_max=1, queue_overflow="disconnect"
    )
    with Peer(broker.port()) as slow, Peer(broker.port()) as peer:
        slow.accepted().subscribed("a", 1)
        peer.accepted()
        published(peer, "a", 20)
        # It acknowledges nothing, so the sixth message that waits is one too many.
        assert slow.recv()[0] & 0xF0 == 0x30
        slow.expect_disconnect(0x97)
        peer.ping()


def test_queue_bytes(start):
    broker = limited(start, queued_bytes_max="10KiB", queue_overflow="drop_newest")
    options = offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number in range(20):
            peer.send(publish("a", "x" * 2000, qos=1, packet_id=number + 1))
            peer.expect(PUBACK)
    assert 1 <= len(queued(broker, options)) <= 5


def test_drops_are_counted_by_reason(start):
    broker = limited(start, queued_messages_max=5)
    offline_subscriber(broker, "a")
    with Peer(broker.port()) as peer:
        published(peer.accepted(), "a", 12)

    def dropped():
        found = broker.metrics().items()
        return sum(v for name, v in found if "dropped" in name and "queue" in name)

    eventually(lambda: dropped() == 7, "seven drops in the metrics")
    named = [count for name, count in broker.metrics().items()
             if 'reason="queue_full",limit="queued_messages_max"' in name]  # fmt: skip
    assert sum(named) == 7, "all of them at this limit"


def test_drops_are_told_below_sys_with_client_and_reason(start):
    broker = limited(start, queued_messages_max=5)
    name = offline_subscriber(broker, "a")["client_id"]
    with Peer(broker.port()) as watcher, Peer(broker.port()) as peer:
        watcher.accepted().subscribed("$SYS/broker/events/#")
        published(peer.accepted(), "a", 8)
        told = 0
        while told < 3:
            topic, payload, _, _ = watcher.message()
            event = json.loads(payload)
            assert topic == "$SYS/broker/events/messages/dropped"
            assert event["client_id"] == name and event["reason"] == "queue_full"
            assert event["limit"] == "queued_messages_max"
            told += event["count"]


def test_qos_0_is_not_queued_for_the_absent_unless_configured(start):
    for kept in (False, True):
        broker = start(PLAIN + f"[limits]\nqueue_qos0_offline = {str(kept).lower()}\n")
        options = offline_subscriber(broker, "a")
        with Peer(broker.port()) as peer:
            peer.accepted().send(publish("a", "x"))
            peer.ping()
        assert queued(broker, options) == (["x"] if kept else [])


def test_connections(start):
    broker = limited(start, connections_max=3)
    peers = [Peer(broker.port()).accepted() for _ in range(3)]
    with Peer(broker.port()) as one_too_many:
        one_too_many.send(connect())
        got = one_too_many.recv()
        assert got is None or got[1][1] == 0x89
    peers.pop().close()

    def admitted():
        with Peer(broker.port()) as peer:
            peer.send(connect())
            got = peer.recv()
            return got is not None and got[1][1] == 0

    eventually(admitted, "a place that became free")
    for peer in peers:
        peer.ping()
        peer.close()


def test_connections_per_listener(start):
    listener = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\nallow_anonymous = true\n'
    broker = start(listener + "connections_max = 1\n" + listener)
    with Peer(broker.port()) as first, Peer(broker.port(nth=1)) as other:
        first.accepted()
        other.accepted()
        with Peer(broker.port()) as one_too_many:
            try:
                one_too_many.send(connect())
                got = one_too_many.recv()
            except ConnectionError:
                got = None
            assert got is None or got[1][1] == 0x89
        first.ping()


def test_connections_per_second_only_delay(start):
    broker = limited(start, connections_per_second_max=20)
    peers = [Peer(broker.port()) for _ in range(40)]
    for peer in peers:
        peer.send(connect())
    for peer in peers:
        assert peer.expect(0x20)[1] == 0
        peer.close()


def test_subscriptions_per_client(start):
    broker = limited(start, subscriptions_per_client_max=3)
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number in range(3):
            peer.subscribed(f"t/{number}")
        peer.send(subscribe("t/3"))
        assert peer.expect(SUBACK)[-1] == 0x97
        # Replacing one that there is needs no room.
        peer.subscribed("t/0", 1)


@pytest.mark.parametrize("limit", [{"topic_bytes_max": 20}, {"topic_levels_max": 3}])
def test_topics_and_filters(start, limit):
    broker = limited(start, **limit)
    long = "a/b/c/d/e/f/g/h/i/j/k/l"
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("a/b/c")
        peer.send(subscribe(long))
        got = peer.recv()
        assert got[1][-1] in (0x8F, 0x90, 0x97)
    with Peer(broker.port()) as peer:
        peer.accepted().send(publish(long, "x", qos=1))
        got = peer.recv()
        assert (got[1][2] if got[0] == PUBACK else got[1][0]) in (0x90, 0x97)


def test_retained_messages(start):
    # With one shard, what a publisher is told is exact.
    broker = limited(start, shards=1, retained_messages_max=2)
    with Peer(broker.port()) as peer:
        peer.accepted()
        reasons = []
        for number in range(4):
            peer.send(publish(f"r/{number}", "x", qos=1, packet_id=number + 1, retain=True))
            body = peer.expect(PUBACK)
            reasons.append(body[2] if len(body) > 2 else 0)
        assert [reason == 0x97 for reason in reasons] == [False, False, True, True]
        # Replacing and removing go on; what was removed makes room.
        for topic, payload in (("r/0", "y"), ("r/1", ""), ("r/3", "x")):
            peer.send(publish(topic, payload, qos=1, packet_id=9, retain=True))
            body = peer.expect(PUBACK)
            assert len(body) == 2 or body[2] != 0x97, topic


def test_retained_messages_of_many_shards(start):
    """All shards share one limit. A publisher may be told of the last ones before they are."""
    broker = limited(start, retained_messages_max=400)

    def publish_retained(peer, topic):
        peer.send(publish(topic, "x", qos=1, retain=True))
        body = peer.expect(PUBACK)
        return len(body) > 2 and body[2] == 0x97

    def retained():
        found = broker.metrics().items()
        return sum(v for name, v in found if name.split("{")[0] == "quelea_retained_messages")

    with Peer(broker.port()) as peer:
        peer.accepted()
        refused = sum(publish_retained(peer, f"r/{number}") for number in range(1000))
        assert 0 < refused <= 600
        eventually(lambda: retained() >= 400, "as many retained messages as there may be")
        assert publish_retained(peer, "r/another")
        # Shards that look at the same time may each store one more.
        assert retained() <= 410


def test_retained_bytes(start):
    broker = limited(start, shards=1, retained_bytes_max="10KiB")
    with Peer(broker.port()) as peer:
        peer.accepted()
        refused = 0
        for number in range(20):
            peer.send(publish(f"r/{number}", "x" * 1000, qos=1, packet_id=1, retain=True))
            body = peer.expect(PUBACK)
            refused += len(body) > 2 and body[2] == 0x97
        assert 8 <= refused <= 15


def test_will_payload(start):
    broker = limited(start, will_payload_bytes_max=100)
    with Peer(broker.port()) as peer:
        assert peer.connect(will=("w", "x" * 101, 0, False))[1] == 0x95
        peer.expect_end()
    with Peer(broker.port()) as peer:
        peer.accepted(will=("w", "x" * 100, 0, False))


def test_connect_timeout(start):
    broker = limited(start, connect_timeout_secs=1)
    with Peer(broker.port()) as silent, Peer(broker.port()) as slow:
        slow.send(connect("slow")[:-3])
        silent.expect_end()
        slow.expect_end()


def test_receive_maximum_is_told_and_kept(start):
    broker = limited(start, receive_max=2)
    with Peer(broker.port()) as peer:
        _, reason, rest = peer.connect()
        assert reason == 0 and b"\x21\x00\x02" in rest
        for packet_id in (1, 2, 3):
            peer.send(publish("a", "x", qos=2, packet_id=packet_id))
        peer.expect(PUBREC)
        peer.expect(PUBREC)
        peer.expect_disconnect(0x93)


def test_in_flight(start):
    broker = limited(start, in_flight_max=2)
    with Peer(broker.port()) as reader, Peer(broker.port()) as peer:
        reader.accepted().subscribed("a", 2)
        peer.accepted()
        for packet_id in range(1, 6):
            peer.send(publish("a", "x", qos=2, packet_id=packet_id))
            peer.expect(PUBREC)
            peer.send(ack(PUBREL, packet_id))
            peer.expect(0x70)
        assert reader.recv()[0] & 0xF0 == reader.recv()[0] & 0xF0 == 0x30
        reader.ping()


@pytest.mark.parametrize("limit", [{"messages_per_second_max": 50, "messages_burst": 10},
                                   {"bytes_per_second_max": 5000, "bytes_burst": 1000}])
def test_rate_limits_slow_down_but_lose_nothing(start, limit):
    broker = limited(start, **limit)
    with Peer(broker.port()) as reader, Peer(broker.port()) as peer:
        reader.accepted().subscribed("a")
        peer.accepted()
        peer.send(*[publish("a", f"{number:04}" + "x" * 60) for number in range(60)])
        got = [int(reader.message()[1][:4]) for _ in range(60)]
        assert got == list(range(60))


def test_a_slow_subscriber_hurts_only_itself(start):
    broker = limited(start, outbox_bytes_max="64KiB")
    with Peer(broker.port()) as slow, Peer(broker.port()) as quick, Peer(broker.port()) as peer:
        slow.accepted().subscribed("a")
        quick.accepted().subscribed("a")
        peer.accepted()
        payload = "x" * 10_000
        for _ in range(2000):
            peer.send(publish("a", payload))
            assert len(quick.message()[1]) == 10_000
        peer.ping()


def test_session_expiry_is_limited(start):
    broker = limited(start, session_expiry_max_secs=1)
    options = offline_subscriber(broker, "a")
    time.sleep(2.5)
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(client_id=options["client_id"], clean=False)
        assert (flags, reason) == (0, 0)


def test_a_connect_is_smaller_than_other_packets(start):
    broker = limited(start, connect_bytes_max="1KiB", username_bytes_max=20, password_bytes_max=30)
    with Peer(broker.port()) as peer:
        # The header is enough to see it.
        peer.send(connect("c", properties=b"\x26\0\x01k\x07\xd0" + b"v" * 2000)[:100])
        body = peer.expect(0x20)
        assert body[1] == 0x95
        peer.expect_end()
    with Peer(broker.port()) as peer:
        peer.accepted(client_id="c", user="u" * 20, password="p" * 30)
        peer.send(publish(fresh(), b"v" * 5000, qos=1))
        peer.expect(PUBACK)
    for version, reason in ((5, 0x86), (4, 4)):
        for texts in ({"user": "u" * 21}, {"user": "u", "password": "p" * 31}):
            with Peer(broker.port(), version) as peer:
                assert peer.connect(client_id="c", **texts)[1] == reason


def test_unfinished_connects_of_an_address_have_their_share(start):
    limits = '[limits]\narrivals_bytes_per_address_max = "120KiB"\n'
    broker = start(PLAIN + "[server]\nacceptor_threads = 1\n" + limits)
    long = connect("c", properties=b"\x26\0\x01k\x7f\x00" + b"v" * 0x7f00)

    def dial(address):
        stream = socket.create_connection(("127.0.0.1", broker.port()), 20, (address, 0))
        return Peer(stream)

    with dial("127.0.0.2") as first, dial("127.0.0.2") as second, dial("127.0.0.3") as other:
        first.send(long[:-1])
        # What comes whole takes no room to wait in. The acceptor has read the first when it has
        # dealt with this one.
        with dial("127.0.0.2") as small:
            small.accepted()
        second.send(long[:-1])
        assert second.expect(0x20)[1] == 0x97
        other.send(long[:-1])
        other.send(long[-1:])
        assert other.expect(0x20)[1] == 0
        first.send(long[-1:])
        assert first.expect(0x20)[1] == 0


def test_memory_comes_back_when_what_took_it_is_gone(start):
    limits = '[limits]\nmemory_bytes_max = "120MiB"\n'
    limits += 'queued_bytes_max = "1GiB"\nqueues_bytes_max = "1GiB"\n'
    broker = start(PLAIN + '[durability]\nlevel = "memory"\n' + limits)
    resident = "process_resident_memory_bytes"
    before = broker.metrics()[resident]
    # The sessions, and what is queued for them, end with their connections.
    held = [Peer(broker.port()).accepted() for _ in range(2)]
    for number, peer in enumerate(held):
        peer.subscribed(f"much/{number}", 1)
    # The guard of the memory may be late, and cuts the largest holder: not the publisher.
    other = socket.create_connection(("127.0.0.1", broker.port()), 20, ("127.0.0.2", 0))
    with Peer(other) as publisher:
        publisher.accepted()
        fill(publisher, broker)
        for peer in held:
            peer.close()
        broker.wait_for_log(lambda event: event["message"] == "below the memory limit again")
        assert published(publisher, "much/0", 1) in ([0], [0x10])
    eventually(lambda: broker.metrics()[resident] < before + (60 << 20), "memory given back")


# A look at the memory may see either first.
SHORT_OF_MEMORY = ("memory is short", "memory limit near", "memory limit reached")


def fill(publisher, broker):
    """Publishes to those who do not read until memory gets short. From then on nothing more is kept
    for them."""
    payload = bytes(200_000)
    seen = 0
    for packet_id in range(1, 60_000):
        topic = f"much/{packet_id % 2}"
        publisher.send(publish(topic, payload, qos=1, packet_id=packet_id))
        publisher.expect(PUBACK)
        fresh = broker.log[seen:]
        seen += len(fresh)
        if any(event["message"].startswith(SHORT_OF_MEMORY) for event in fresh):
            return
    raise AssertionError("there was no limit of memory")


def test_a_packet_waits_for_room_and_small_ones_do_not(start):
    """128 KiB for each address, of which half is for packets that are not complete."""
    broker = limited(
        start, shards=1, packet_bytes_max="64KiB",
        incoming_bytes_max="1KiB", incoming_bytes_per_user_max="1KiB",
    )
    large = publish("t", bytes(60_000), qos=1)

    def dial(address):
        return Peer(socket.create_connection(("127.0.0.1", broker.port()), 20, (address, 0)))

    def waits():
        found = broker.metrics().items()
        return sum(v for name, v in found if name.split("{")[0] == "quelea_incoming_waits_total")

    with dial("127.0.0.2") as first, dial("127.0.0.2") as second, dial("127.0.0.3") as other:
        for peer in (first, second, other):
            peer.accepted()
        first.send(large[:30_000])
        with dial("127.0.0.2") as small:
            small.accepted()
            # What the first sent has been read by now: it came before this.
            assert published(small, "t", 1) == [0x10]
            second.send(large[:30_000])
            eventually(lambda: waits() > 0, "one that waits for room")
            assert published(small, "t", 1) == [0x10]
        other.send(large)
        assert other.expect(PUBACK)[2:3] == b"\x10"
        # It comes to its end when the one before it has.
        first.send(large[30_000:])
        assert first.expect(PUBACK)[2:3] == b"\x10"
        second.send(large[30_000:])
        assert second.expect(PUBACK)[2:3] == b"\x10"


@pytest.mark.parametrize("version", [4, 5])
def test_names_fit_devices_by_default(start, version):
    broker = start(PLAIN)
    with Peer(broker.port(), version) as peer:
        assert peer.connect(client_id="i" * 257)[1] == (0x85 if version == 5 else 2)
    with Peer(broker.port(), version) as peer:
        peer.accepted(client_id="i" * 256)
        peer.send(subscribe("f" * 1025, version=version))
        assert peer.expect(SUBACK)[-1] == (0x8F if version == 5 else 0x80)
        peer.send(subscribe("f" * 1024, version=version))
        assert peer.expect(SUBACK)[-1] == 0
        peer.send(publish("f" * 1025, "x", qos=1, version=version))
        if version == 5:
            assert peer.expect(PUBACK)[2] == 0x90
        else:
            peer.expect_end()
