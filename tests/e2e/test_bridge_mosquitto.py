"""Bridges to a mosquitto that has little room, or is killed."""

import re
import signal
import subprocess
import threading
from collections import Counter

import pytest

from bridges import (
    FIXED, KILLED, MEMORY, MORE_QUEUE, PERSISTENT, Publisher, bridge_to, bridging, drained,
    free_port, is_connected, lag, mosquitto, relayed,
)
from broker import QUELEA, eventually, sum_of
from wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer, ack, fresh, publish

KILLS = 4
ROUND_MESSAGES = 100
PUBLISHED = re.compile(
    r"(Received|Sending) PUBLISH (?:from|to) (\S+) \(d., q., r., m(\d+), '([^']*)'"
)
ACKNOWLEDGED = re.compile(r"Received (PUB\w+) from (\S+) \(Mid: (\d+)")


def unsaved(log):
    """Messages that mosquitto had received, sent or completed since it had last saved its state
    before it was killed."""
    topics, found = {}, set()
    for run in log.read_text().split(KILLED)[:-1]:
        lines = run.splitlines()
        saves = [at for at, line in enumerate(lines) if "Saving in-memory" in line]
        # A save that was interrupted has no effect.
        saves = [at for at in saves if at < len(lines) - 1]
        last_save = saves[-1] if saves else 0
        for at, line in enumerate(lines):
            topic = topic_of(line, topics)
            if topic and at > last_save:
                found.add(topic)
    return {topic.split(":")[1] for topic in found if ":" in topic}


def topic_of(line, topics):
    """The topic of the message that a line of the log is about. `topics` are those of packets by
    client, direction and packet identifier."""
    publish = PUBLISHED.search(line)
    if publish:
        way, client, packet_id, topic = publish.groups()
        topics[client, way == "Received", packet_id] = topic
        return topic
    ack = ACKNOWLEDGED.search(line)
    if ack:
        kind, client, packet_id = ack.groups()
        return topics.get((client, kind == "PUBREL", packet_id))
    return None


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_kills_of_mosquitto_lose_only_what_it_had_not_saved(start, tmp_path, protocol):
    with mosquitto(tmp_path) as remote:
        topics = ["out/# out 2", "in/# in 2"]
        broker = bridging(start, remote.port, topics, MORE_QUEUE, protocol=protocol)
        targets = {"out": remote.port, "in": broker.port()}
        for direction, port in targets.items():
            with Peer(port).accepted(
                client_id=f"ledger-{direction}", clean=False, properties=PERSISTENT
            ) as peer:
                peer.subscribed(f"{direction}/#", 2)
        sources = {"out": broker.port(), "in": remote.port}
        publishers = {
            (direction, qos): Publisher(sources[direction], f"{direction}/{{}}", qos)
            for direction in sources
            for qos in (1, 2)
        }

        def load(direction, qos, of_round):
            publisher = publishers[direction, qos]
            number = 0
            # Those of mosquitto end with it.
            while number < ROUND_MESSAGES if direction == "out" else number == 0 or publisher.peer:
                publisher.publish(f"m:{qos}-{of_round}-{number}")
                number += 1

        for of_round in range(KILLS):
            threads = [
                threading.Thread(target=load, args=(*key, of_round)) for key in publishers
            ]
            seen = relayed(broker)
            for thread in threads:
                thread.start()
            eventually(lambda: relayed(broker) > seen + 60, "load")
            remote.kill()
            for thread in threads:
                thread.join()
            eventually(lambda: not is_connected(broker), "the end of the connection")
            remote.launch()
            eventually(lambda: is_connected(broker), "the bridge")
        may_be_wrong = unsaved(remote.log)
        for direction, port in targets.items():
            # Mosquitto routes a QoS 2 message later than a QoS 1 message, this broker does not.
            last = publishers[direction, 2 if direction == "out" else 1]
            while b"m:end" not in last.acknowledged:
                last.publish("m:end")
            got = Counter(drained(port, f"ledger-{direction}", b"end"))
            got = {payload.decode(): count for payload, count in got.items()}
            # What this broker has acknowledged it sends until mosquitto acknowledges it.
            wanted = {
                payload.decode().split(":")[1]
                for qos in (1, 2)
                for publisher in [publishers[direction, qos]]
                for payload in (
                    publisher.acknowledged if direction == "out" else publisher.completed
                )
            }
            assert len(wanted - may_be_wrong) > 20
            assert wanted - set(got) <= may_be_wrong, direction
            # Mosquitto may resend a QoS 2 message that was complete. This broker does not.
            if direction == "out":
                assert not [own for own, count in got.items() if count > 1 and own[0] == "2"]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_mosquitto_gets_no_more_messages_at_a_time_than_it_accepts(start, tmp_path, protocol):
    """It acknowledges more than `max_inflight_messages` (20) of MQTT 3.1.1, and drops them."""
    with mosquitto(tmp_path) as remote:
        broker = bridging(start, remote.port, ["t/# out 2"], protocol=protocol)
        with Peer(remote.port).accepted(
            client_id="ledger", clean=False, properties=PERSISTENT
        ) as peer:
            peer.subscribed("t/#", 2)
        remote.terminate()
        eventually(lambda: not is_connected(broker), "the end of the connection")
        publishers = [Publisher(broker.port(), f"t/{qos}", qos) for qos in (1, 2)]
        wanted = Counter({b"end": 1})
        for number in range(150):
            for publisher in publishers:
                wanted[f"{publisher.qos}-{number}".encode()] = 1
                publisher.publish(f"m:{publisher.qos}-{number}")
        # Messages of two publishers may overtake each other on their way to the queue.
        eventually(lambda: lag(broker) == 300, "the queue")
        publishers[1].publish("m:end")
        remote.launch()
        got = Counter(drained(remote.port, "ledger", b"end"))
        assert got == wanted, (got - wanted, wanted - got)
        assert broker.metrics()['quelea_bridge_connects_total{bridge="cloud"}'] == 2


def absent(start, topics, more="", **keys):
    """A quelea with a bridge to a port at which nothing listens yet."""
    port = free_port()
    own = FIXED.format(free_port())
    return start(own + bridge_to(port, topics, **keys) + more), port


def queued(broker, topic, payloads, qos=1):
    """Publishes these, and expects that each is acknowledged as one that has a subscriber."""
    with Peer(broker.port(), 5) as peer:
        peer.accepted(client_id="queued")
        for number, payload in enumerate(payloads, 1):
            peer.send(publish(topic, payload, qos, number))
            kind = PUBACK if qos == 1 else PUBREC
            answer = peer.expect(kind)
            assert answer[2:3] in (b"", b"\0"), answer


def arrived(broker, port, count, directory, more=""):
    """The messages that a mosquitto gets from the bridge once it is there."""
    # The bridge comes behind the subscription, however busy the machine is.
    broker.process.send_signal(signal.SIGSTOP)
    with mosquitto(directory, more, port) as remote, Peer(remote.port, 5) as peer:
        peer.accepted(client_id="ledger", clean=False, properties=PERSISTENT)
        peer.subscribed("#", 2)
        broker.process.send_signal(signal.SIGCONT)
        messages = []
        while len(set(messages)) < count:
            first, body = peer.recv()
            if first == PUBREL:
                peer.send(ack(PUBCOMP, int.from_bytes(body[:2])))
            if first & 0xF0 != PUBLISH:
                continue
            length = int.from_bytes(body[:2])
            at = 2 + length
            qos = first >> 1 & 3
            if qos:
                peer.send(ack(PUBACK if qos == 1 else PUBREC, int.from_bytes(body[at : at + 2])))
                at += 2
            topic = body[2 : 2 + length].decode()
            if not topic.startswith("$"):
                messages.append((topic, body[at + 1 + body[at] :]))
        return messages


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("level", ["memory", "fsync"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_before_the_remote_was_ever_there_arrives(
    start, tmp_path, protocol, level, qos
):
    topics = ["t/# out 2 - far/", "u both 2", "v in 2"]
    more = MEMORY if level == "memory" else ""
    broker, port = absent(start, topics, more, protocol=protocol)
    payloads = [f"{number}".encode() for number in range(5)]
    queued(broker, "t/a", payloads, qos)
    queued(broker, "u", [b"both"], qos)
    eventually(lambda: lag(broker) == 6, "the queue")
    # QoS 1 and 2 of two topics may overtake each other at mosquitto.
    wanted = sorted([("far/t/a", payload) for payload in payloads] + [("u", b"both")])
    assert sorted(arrived(broker, port, 6, tmp_path)) == wanted
    lost = [event for event in broker.log if "session of the bridge" in event["message"]]
    assert lost == []


@pytest.mark.parametrize("stop", ["terminate", "kill"])
@pytest.mark.parametrize("level", ["memory", "fsync"])
def test_a_bridge_that_has_never_met_its_remote_queues_after_a_restart(
    start, tmp_path, level, stop
):
    broker, port = absent(start, ["t out 1"], MEMORY if level == "memory" else "")
    queued(broker, "t", [b"first"])
    broker.restart(stop)
    queued(broker, "t", [b"second"])
    wanted = [("t", b"second")] if level == "memory" else [("t", b"first"), ("t", b"second")]
    assert arrived(broker, port, len(wanted), tmp_path) == wanted


def test_bridges_and_topic_maps_of_a_later_start_queue_at_once(start, tmp_path):
    broker, port = absent(start, ["old out 1"], protocol="3.1.1")
    far = free_port()
    text = broker.config.read_text().replace('filter = "old"', 'filter = "new/#"')
    broker.config.write_text(text + bridge_to(far, ["# out 1 new/"], name="second"))
    broker.restart("terminate")
    queued(broker, "new/a", [b"1", b"2"])
    with Peer(broker.port(), 5) as peer:
        peer.accepted(client_id="old")
        peer.send(publish("old", b"0", 1, 1))
        # The subscription of the map that is gone is gone.
        assert peer.expect(PUBACK)[2:3] == b"\x10"
    for number, wanted in ((port, "new/a"), (far, "a")):
        directory = tmp_path / wanted.replace("/", "-")
        directory.mkdir()
        assert arrived(broker, number, 2, directory) == [(wanted, b"1"), (wanted, b"2")]


def test_retained_messages_arrive_at_the_first_meeting_and_with_a_new_map(start, tmp_path):
    broker, port = absent(start, ["a out 1"])
    with Peer(broker.port(), 5) as peer:
        peer.accepted(client_id="retain")
        for topic in ("a", "b"):
            peer.send(publish(topic, b"kept", 0, retain=True))
        peer.send(publish("end", b"", 1, 1))
        peer.expect(PUBACK)
    assert arrived(broker, port, 1, tmp_path) == [("a", b"kept")]
    text = broker.config.read_text()
    broker.config.write_text(
        text + '[[bridges.topics]]\nfilter = "b"\ndirection = "out"\nqos = 1\n'
    )
    broker.restart("terminate")
    # It still has "a".
    assert sorted(arrived(broker, port, 2, tmp_path)) == [("a", b"kept"), ("b", b"kept")]


def test_a_queue_that_an_operator_has_removed_is_opened_again(start, tmp_path):
    broker, port = absent(start, ["t out 1"], '\n[api]\nlisten = "http"\n')
    queued(broker, "t", [b"lost"])
    run = [QUELEA, "ctl", "--data", str(broker.data), "clients", "purge", "$bridge/cloud"]
    subprocess.run(run, check=True)
    # It may be there again at once.
    eventually(lambda: lag(broker) == 0, "the purge")
    eventually(lambda: sum_of(broker, "quelea_subscriptions") == 1, "the new queue")
    queued(broker, "t", [b"kept"])
    assert arrived(broker, port, 1, tmp_path) == [("t", b"kept")]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_bridge_copies_the_retained_messages_of_a_broker(start, tmp_path, protocol, direction):
    """As docs/use/migrate.md says."""
    payloads = {f"t/{number}": bytes([number, 0, 255]) for number in range(150)}
    with mosquitto(tmp_path) as old:
        broker = start(FIXED.format(free_port()))
        source, target = (old.port, broker.port())
        if direction == "out":
            source, target = target, source
        with Peer(source, 4).accepted(client_id="retain") as peer:
            for number, (topic, payload) in enumerate(payloads.items(), 1):
                qos = number % 2
                peer.send(publish(topic, payload, qos, number, retain=True, version=4))
                if qos:
                    peer.expect(PUBACK)
        own = bridge_to(old.port, [f"# {direction} 2"], name="old", protocol=protocol)
        broker.config.write_text(broker.config.read_text() + own)
        broker.restart("terminate")
        target = broker.port() if direction == "in" else old.port
        eventually(lambda: relayed(broker) >= len(payloads), "the copies")

        def kept():
            """Some may still be on their way, and come without the flag."""
            with Peer(target, 4).accepted(client_id=fresh("late")) as late:
                late.subscribed("t/#")
                messages = [late.message() for _ in payloads]
            return {topic: payload for topic, payload, _, retain in messages if retain}

        assert eventually(lambda: kept() == payloads, "the retained messages")


SMALL = 100


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_mosquitto_does_not_take_is_given_up_and_named(
    start, tmp_path, protocol, qos
):
    """With MQTT 3.1.1 it cannot report its limit, and closes the connection."""
    topics = ["t/# out 2"]
    broker, port = absent(start, topics, MORE_QUEUE, protocol=protocol)
    queued(broker, "t/first", [b"first"], qos)
    queued(broker, "t/large", [b"x" * 5000], qos)
    payloads = [f"{number}".encode() for number in range(SMALL)]
    queued(broker, "t/small", payloads, qos)
    eventually(lambda: lag(broker) == SMALL + 2, "the queue")
    wanted = [("t/first", b"first")] + [("t/small", payload) for payload in payloads]
    got = arrived(broker, port, len(wanted), tmp_path, more="max_packet_size 2000")
    # An answer that was lost with the connection: QoS 1 comes again.
    got = sorted(got) if qos == 2 else sorted(set(got))
    assert got == sorted(wanted)
    reason = "closes" if protocol == "3.1.1" else "size"
    refused = f'quelea_bridge_refused_total{{bridge="cloud",direction="out",reason="{reason}"}}'
    eventually(lambda: broker.metrics()[refused] == 1, "the count")
    told = lambda: [event for event in broker.log if event["message"] == "message not relayed"]  # noqa: E731
    (line,) = eventually(told, "the line")
    assert (line["bridge"], line["topic"], line["direction"]) == ("cloud", "t/large", "out")
    assert (line["bytes"], line["reason"]) == (5000, reason)


def test_a_bridge_has_a_limit_of_its_own_for_packets(start, tmp_path):
    broker, port = absent(start, ["t/# out 1"], protocol="3.1.1", packet_bytes_max=2000)
    queued(broker, "t/large", [b"x" * 2000])
    # The whole packet counts: 2 bytes of lengths, 2 of the header, 7 of the topic, 2 of the id.
    queued(broker, "t/exact", [b"x" * (2000 - 14)])
    assert arrived(broker, port, 1, tmp_path) == [("t/exact", b"x" * (2000 - 14))]
    connects = 'quelea_bridge_connects_total{bridge="cloud"}'
    # 0: the remote broker was stopped before the bridge was ready.
    assert broker.metrics()[connects] <= 1
