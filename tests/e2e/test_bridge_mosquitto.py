"""Bridges to a mosquitto that has little room, or is killed."""

import re
import threading
from collections import Counter

import pytest

from bridges import (
    KILLED, MORE_QUEUE, PERSISTENT, Publisher, bridging, drained, is_connected, lag, mosquitto,
    relayed,
)
from broker import eventually
from wire import Peer

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
