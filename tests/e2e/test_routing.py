"""Streams and rules in the broker: what is acknowledged reaches the target, whatever ends in between."""

import itertools
import os
import socket
import subprocess

import pytest

from broker import PLAIN, QUELEA, Broker, eventually
from receiver import Receiver
from wire import PUBACK, PUBLISH, Peer, connect, packet, publish, subscribe

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


def test_a_disk_that_refuses_a_new_stream_changes_nothing(routing, receiver):
    broker = routing(rules(receiver.url))
    [known] = (int(path.name) for path in broker.data.glob("streams/*"))
    # Two new streams, and a file where the directory of the second must be.
    blocked = broker.data / "streams" / str(known + 2)
    blocked.write_text("")
    new = "".join(f'\n[[streams]]\nname = "{name}"\nfilters = ["{name}/#"]\n' for name in "ab")
    second = Receiver()
    try:
        (broker.directory / "rules.toml").write_text(rules(second.url, rule='stream = "cars"', more=new))
        broker.reload("not reloaded")
        broker.wait_for_log(lambda event: f"stream 'b': {blocked}" in event.get("error", ""))
        publish_all(broker, ["during"])
        eventually(lambda: receiver.payloads() == ["during"])
        blocked.unlink()
        broker.reload("streams and rules reloaded")
        publish_all(broker, ["after"])
        eventually(lambda: second.payloads() == ["after"])
        assert receiver.payloads() == ["during"]
    finally:
        second.stop()


def test_a_backup_of_a_running_broker_has_its_streams(routing, receiver, tmp_path):
    port = closed_port()
    broker = routing(rules(f"http://127.0.0.1:{port}/in", stream='file_bytes = "1MiB"'))
    # More than waits for files.
    large = [f"{number:03}" + "x" * 50_000 for number in range(150)]
    publish_all(broker, large)
    eventually(lambda: list(broker.data.glob("streams/*/*.stream")), "a file of the stream")
    copy = tmp_path / "copy"
    done = subprocess.run([QUELEA, "backup", broker.data, copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    publish_all(broker, ["later"])
    broker.stop()
    text = rules(receiver.url)
    restored = Broker(ROUTING, files={"rules.toml": text}, data=copy)
    try:
        eventually(lambda: len(receiver.payloads()) >= 150)
        assert receiver.payloads() == large
    finally:
        restored.stop()


def test_a_message_is_for_a_session_and_a_stream_through_a_kill(routing, receiver):
    broker = routing(rules(receiver.url))
    away = Peer(broker.port())
    away.send(connect("away", clean=False, properties=b"\x11\xff\xff\xff\xff"))
    away.recv()
    away.send(subscribe("cars/+", 1))
    away.recv()
    away.close()
    publish_all(broker, numbered(0, 20))
    broker.restart("kill")
    away = Peer(broker.port())
    away.send(connect("away", clean=False, properties=b"\x11\xff\xff\xff\xff"))
    away.recv()
    got = []
    while len(got) < 20:
        kind, body = away.recv()
        if kind & 0xF0 == PUBLISH:
            got.append(body[2 + len("cars/7") + 3 :].decode())
    assert got == numbered(0, 20)
    away.close()
    eventually(lambda: set(receiver.payloads()) == set(numbered(0, 20)))


def test_qos_0_and_a_will_are_stored_too(routing, receiver):
    broker = routing(rules(receiver.url))
    peer = Peer(broker.port())
    peer.send(connect("dying", will=("cars/will", "gone", 1, False)))
    peer.recv()
    peer.send(publish("cars/7", "0"))
    eventually(lambda: receiver.payloads() == ["0"])
    peer.close()
    eventually(lambda: receiver.payloads() == ["0", "gone"])


def test_a_stream_that_rejects_refuses_at_its_limit_and_accepts_again(routing):
    port = closed_port()
    stream = 'full = "reject"\nbytes_max = "1MiB"\nfile_bytes = "1MiB"'
    broker = routing(rules(f"http://127.0.0.1:{port}/in", stream=stream))
    peer = Peer(broker.port())
    peer.send(connect("car-7"))
    peer.recv()

    def reason_of(number):
        # Nothing that can be packed.
        peer.send(publish("cars/7", os.urandom(200_000), qos=1, packet_id=1 + number % 60_000))
        kind, body = peer.recv()
        assert kind & 0xF0 == PUBACK
        return body[2] if len(body) > 2 else 0

    numbers = itertools.count()
    eventually(lambda: reason_of(next(numbers)) == 0x97, "the stream is full")
    broker.wait_for_log(lambda event: event["message"].startswith("stream full"))
    receiver = Receiver(port=port)
    try:
        eventually(lambda: reason_of(next(numbers)) == 0, "the stream accepts messages again")
    finally:
        receiver.stop()
        peer.close()


def test_life_cycle_events_are_routed(routing, receiver):
    more = """
[[streams]]
name = "events"
filters = ["$SYS/events/#"]

[[rules]]
name = "events"
stream = "events"
filter = "$SYS/events/session/#"
form = "raw"
target = "hook"
"""
    config = ROUTING + '[events]\nsys = true\n[access]\nacl_file = "{dir}/acl"\n'
    text = rules(receiver.url, rule='stream = "cars"', more=more)
    broker = Broker(config, files={"rules.toml": text, "acl": "topic readwrite cars/#\n"})
    try:
        publish_all(broker, ["1"])
        wanted = {"quelea.session.connected", "quelea.session.disconnected"}
        types = lambda: {event["type"] for event in receiver.events() if isinstance(event, dict)}
        eventually(lambda: wanted <= types(), "the events arrive")
    finally:
        broker.stop()


def test_dead_letters_change_places_with_one_reload(routing, receiver):
    streams = "".join(f'[[streams]]\nname = "{name}"\nfilters = ["{name}/#"]\n' for name in "ab")
    target = f'[[targets]]\nname = "hook"\ntype = "http"\nurl = "{receiver.url}"\n'

    def rule(name, further=""):
        keys = f'stream = "{name}"\nfilter = "#"\ntarget = "hook"\nform = "raw"\n'
        return f'[[rules]]\nname = "of-{name}"\n{keys}{further}\n'

    ends = [rule("a"), rule("b", 'dead_letter = "a"')]
    broker = routing(streams + target + rule("a", 'dead_letter = "b"') + rule("b"))
    path = broker.directory / "rules.toml"
    # In this order the second rule still leads back when the first one is changed.
    path.write_text(streams + target + "".join(reversed(ends)))
    broker.reload("streams and rules reloaded")
    receiver.answers = lambda body: 422 if body == b"1" else 200
    publish_all(broker, ["1", "2"], "b/x")
    eventually(lambda: receiver.payloads() == ["2"])
    # So does one that is removed while answers are awaited.
    path.write_text(streams + target + rule("b"))
    broker.reload("streams and rules reloaded")
    path.write_text(streams + target + rule("b") + rule("a", 'dead_letter = "b"'))
    broker.reload("streams and rules reloaded")
