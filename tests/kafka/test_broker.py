"""The broker's rules against a real Kafka: what a client was acknowledged is in the topic, whoever is
killed in between, and in order for each publisher and topic."""

import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

from broker import PLAIN, Broker, eventually  # noqa: E402
from server import PASSWORD  # noqa: E402
from wire import PUBACK, Peer, connect, publish  # noqa: E402

pytestmark = pytest.mark.timeout(600)

ROUTING = PLAIN + """
[server]
shards = 2
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
"""

RULES = """
[[streams]]
name = "cars"
filters = ["cars/#"]

[[targets]]
name = "lake"
type = "kafka"
servers = ["SERVER"]
timeout_secs = 2
delivery_timeout_secs = 5
FURTHER

[[rules]]
name = "archive"
filter = "cars/#"
form = "binary"
target = "lake"
topic = "TOPIC"
retry_secs = [1]
"""


@pytest.fixture
def routing(kafka):
    brokers = []

    def start(topic, server=None, further="", files=None):
        rules = RULES.replace("SERVER", server or kafka.address()).replace("TOPIC", topic)
        rules = rules.replace("FURTHER", further)
        brokers.append(Broker(ROUTING, files={"rules.toml": rules, **(files or {})}))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()


class Publisher(threading.Thread):
    """Publishes numbers with QoS 1 until it has `count` acknowledged. What was not acknowledged
    when its connection ended is published again, so a number may come twice and never out of
    order."""

    def __init__(self, broker, name, count):
        super().__init__(daemon=True)
        self.broker, self.name_, self.count, self.acknowledged = broker, name, count, 0
        self.start()

    def run(self):
        while self.acknowledged < self.count:
            try:
                self.publish()
            except (OSError, IndexError, TypeError):
                time.sleep(0.05)

    def publish(self):
        peer = Peer(self.broker.port())
        try:
            peer.send(connect(self.name_))
            peer.recv()[0]
            while self.acknowledged < self.count:
                some = range(self.acknowledged, min(self.acknowledged + 20, self.count))
                for number in some:
                    payload = f"{number:06}"
                    peer.send(publish(f"cars/{self.name_}", payload, qos=1, packet_id=1 + number % 60_000))
                for _ in some:
                    kind, _ = peer.recv()
                    assert kind & 0xF0 == PUBACK
                    self.acknowledged += 1
        finally:
            peer.close()


def by_key(found):
    """The payloads of each key, as they are in the topic."""
    keys = {}
    for messages in found.values():
        for message in messages:
            keys.setdefault(message.key().decode(), []).append(int(message.value()))
    return keys


def last_copies(numbers):
    copies = {}
    for number in numbers:
        copies.pop(number, None)
        copies[number] = True
    return list(copies)


def all_are_in(kafka, topic, names, count):
    keys = by_key(kafka.read(topic))
    return all(set(keys.get(f"cars/{name}", ())) >= set(range(count)) for name in names)


def test_a_rule_sends_events_to_kafka_once_and_in_order(kafka, routing):
    topic = kafka.create("rule-plain")
    own = 'headers = { plant = "p7", about = { path = "subject" }, none = { path = "data.none" } }'
    broker = routing(topic, further=own)
    names = ["a", "b", "c"]
    publishers = [Publisher(broker, name, 300) for name in names]
    [publisher.join() for publisher in publishers]
    eventually(lambda: all_are_in(kafka, topic, names, 300))
    found = kafka.read(topic)
    assert by_key(found) == {f"cars/{name}": list(range(300)) for name in names}
    message = next(messages[0] for messages in found.values() if messages)
    headers = dict(message.headers())
    assert headers["ce_type"] == b"MQTT.EventPublished"
    assert headers["ce_subject"].decode() == message.key().decode()
    assert (headers["plant"], headers["about"]) == (b"p7", headers["ce_subject"])
    assert "none" not in headers
    ids = [dict(message.headers())["ce_id"] for messages in found.values() for message in messages]
    assert len(set(ids)) == 900


def test_kills_of_both_lose_nothing_and_keep_the_order_of_each_key(kafka, routing):
    topic = kafka.create("rule-killed")
    broker = routing(topic)
    names = ["a", "b"]
    publishers = [Publisher(broker, name, 3000) for name in names]
    for round in range(6):
        goal = 400 * (round + 1)
        eventually(lambda: all(publisher.acknowledged >= goal for publisher in publishers))
        if round % 2 == 0:
            broker.restart("kill")
        else:
            kafka.kill()
            kafka.start()
    [publisher.join() for publisher in publishers]
    deadline = time.monotonic() + 120
    while not all_are_in(kafka, topic, names, 3000):
        assert time.monotonic() < deadline, broker.log_text()[-4000:]
        time.sleep(0.5)
    for key, numbers in by_key(kafka.read(topic)).items():
        assert last_copies(numbers) == list(range(3000)), key


def test_a_wrong_password_is_reported_and_loses_nothing(kafka, routing):
    topic = kafka.create("rule-password")
    sasl = 'sasl = { mechanism = "PLAIN", username = "ann", password_file = "password" }'
    broker = routing(topic, kafka.address("SASL"), sasl, {"password": "wrong\n"})
    Publisher(broker, "a", 10).join()
    said = broker.wait_for_log(lambda event: event["message"] == "rule waits")
    assert "probation" == said["state"] and "wrong" not in said["reason"], said
    (broker.directory / "password").write_text(PASSWORD + "\n")
    eventually(lambda: all_are_in(kafka, topic, ["a"], 10))
    assert PASSWORD not in broker.log_text()
