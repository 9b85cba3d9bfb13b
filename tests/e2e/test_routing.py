"""Streams and rules in the broker: what is acknowledged reaches the target, whatever ends in between."""

import socket

import pytest

from broker import PLAIN, Broker, eventually
from receiver import Receiver
from wire import PUBACK, Peer, connect, packet, publish

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
FURTHER_STREAM

[[targets]]
name = "hook"
type = "http"
url = "URL"

[[rules]]
name = "all"
filter = "cars/#"
form = "raw"
target = "hook"
order = "topic"
retry_secs = [1]
FURTHER_RULE
"""


def rules(url, stream="", rule="", more=""):
    text = RULES.replace("FURTHER_STREAM", stream).replace("FURTHER_RULE", rule)
    return text.replace("URL", url) + more


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def routing():
    """Starts brokers with rules; they end with the test."""
    brokers = []

    def start(text):
        brokers.append(Broker(ROUTING, files={"rules.toml": text}))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()


def publish_all(broker, payloads, topic="cars/7", client_id="car-7"):
    """Publishes with QoS 1, and returns when all are acknowledged."""
    peer = Peer(broker.port())
    peer.send(connect(client_id))
    peer.recv()
    for number, payload in enumerate(payloads, 1):
        peer.send(publish(topic, payload.encode(), qos=1, packet_id=number))
    for _ in payloads:
        kind, *rest = peer.recv()
        assert kind & 0xF0 == PUBACK, (kind, rest)
    peer.send(packet(0xE0))


def numbered(first, next):
    return [str(number) for number in range(first, next)]


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_what_is_published_reaches_the_webhook_in_order(routing, receiver):
    broker = routing(rules(receiver.url))
    publish_all(broker, numbered(0, 50))
    eventually(lambda: len(receiver.payloads()) >= 50)
    assert receiver.payloads() == numbered(0, 50)


def test_what_was_acknowledged_reaches_a_target_that_was_away_through_kills(routing):
    port = closed_port()
    broker = routing(rules(f"http://127.0.0.1:{port}/in"))
    for first in (0, 20, 40):
        publish_all(broker, numbered(first, first + 20))
        broker.restart("kill")
    receiver = Receiver(port=port)
    try:
        eventually(lambda: len(set(receiver.payloads())) == 60)
        firsts = list(dict.fromkeys(receiver.payloads()))
        assert firsts == numbered(0, 60)
    finally:
        receiver.stop()


def test_an_orderly_end_sends_nothing_twice(routing, receiver):
    broker = routing(rules(receiver.url))
    publish_all(broker, numbered(0, 30))
    eventually(lambda: len(receiver.payloads()) == 30)
    broker.restart("terminate")
    publish_all(broker, ["last"])
    eventually(lambda: "last" in receiver.payloads())
    assert receiver.payloads() == numbered(0, 30) + ["last"]


def test_one_message_that_is_refused_goes_to_the_dead_letters_and_the_rest_on(routing, receiver):
    receiver.answers = lambda body: 422 if body == b"13" else 200
    dead = Receiver()
    more = f"""
[[streams]]
name = "dead"

[[targets]]
name = "dead-hook"
type = "http"
url = "{dead.url}"

[[rules]]
name = "dead-letters"
stream = "dead"
filter = "#"
form = "binary"
target = "dead-hook"
"""
    try:
        text = rules(receiver.url, rule='stream = "cars"\ndead_letter = "dead"', more=more)
        broker = routing(text)
        publish_all(broker, numbered(0, 30))
        eventually(lambda: len(receiver.payloads()) == 29)
        assert receiver.payloads() == [it for it in numbered(0, 30) if it != "13"]
        eventually(lambda: dead.payloads() == ["13"])
        (headers, _), = dead.got
        assert headers["ce-subject"] == "cars/7"
        # It survives: nobody gets it again.
        broker.restart("terminate")
        publish_all(broker, ["13", "last"])
        eventually(lambda: dead.payloads() == ["13", "13"])
        eventually(lambda: "last" in receiver.payloads())
    finally:
        dead.stop()


def test_rules_change_with_a_reload(routing, receiver):
    broker = routing(rules(receiver.url))
    publish_all(broker, ["before"])
    eventually(lambda: receiver.payloads() == ["before"])
    second = Receiver()
    try:
        path = broker.directory / "rules.toml"
        path.write_text(rules(second.url, stream="consumed = true"))
        broker.reload("streams and rules reloaded")
        publish_all(broker, ["after"])
        eventually(lambda: second.payloads() == ["after"])
        path.write_text(rules(second.url).replace("cars/#", "cars/#/x"))
        broker.reload("not reloaded")
        publish_all(broker, ["still"])
        eventually(lambda: second.payloads() == ["after", "still"])
        assert receiver.payloads() == ["before"]
    finally:
        second.stop()
