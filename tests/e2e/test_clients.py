"""Clients that others wrote, over real sockets: mosquitto_pub and mosquitto_sub, paho-mqtt."""

import queue
import subprocess

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker import PATIENCE_SECS
from wire import Peer, fresh, prefixed, publish

VERSIONS = {"3.1": "mqttv31", "3.1.1": "mqttv311", "5": "mqttv5"}


def mosquitto(tool, broker, *arguments, stdin=None):
    # Line by line, or what -d tells stays in its buffer.
    command = ["stdbuf", "-oL", f"mosquitto_{tool}", "-h", "127.0.0.1", "-p", str(broker.port())]
    command += arguments
    return subprocess.Popen(
        command, stdin=subprocess.PIPE if stdin else None, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )


def finish(process, stdin=None):
    out, err = process.communicate(stdin, timeout=PATIENCE_SECS)
    assert process.returncode == 0, err
    return out


def subscribed(broker, *arguments):
    """mosquitto_sub with -d, which tells when it has subscribed."""
    process = mosquitto("sub", broker, "-d", *arguments)
    for line in process.stdout:
        if "Subscribed" in line:
            return process
    raise AssertionError(f"mosquitto_sub did not subscribe: {process.stderr.read()}")


def payloads(out):
    """The payload lines of mosquitto_sub's output without those of -d."""
    lines = out.splitlines()
    return [line for line in lines if not line.startswith(("Client ", "Subscribed"))]


@pytest.mark.parametrize("version", VERSIONS.values())
@pytest.mark.parametrize("qos", "012")
def test_mosquitto_pub_to_mosquitto_sub(plain, version, qos):
    topic = fresh("mosquitto")
    common = ["-t", topic, "-q", qos, "-V", version]
    sub = subscribed(plain, *common, "-C", "3")
    for payload in ("one", "two", "three"):
        finish(mosquitto("pub", plain, *common, "-m", payload))
    assert payloads(finish(sub)) == ["one", "two", "three"]


def test_mosquitto_lines_and_retained(plain):
    topic = fresh("mosquitto")
    sub = subscribed(plain, "-t", topic, "-q", "1", "-C", "100")
    lines = [str(number) for number in range(100)]
    pub = mosquitto("pub", plain, "-t", topic, "-q", "1", "-l", stdin=True)
    finish(pub, "".join(line + "\n" for line in lines))
    assert payloads(finish(sub)) == lines
    finish(mosquitto("pub", plain, "-t", topic, "-r", "-m", "kept"))
    assert finish(mosquitto("sub", plain, "-t", topic, "-C", "1", "-F", "%r %p")) == "1 kept\n"
    finish(mosquitto("pub", plain, "-t", topic, "-r", "-n"))
    late = mosquitto("sub", plain, "-t", topic, "-W", "20", "--retained-only", "-E")
    assert late.wait(PATIENCE_SECS) == 0


@pytest.mark.parametrize("text", ["line\n", "\uFFFE", "\uFDD0", "\x7F"])
def test_nothing_is_retained_on_which_libmosquitto_disconnects(plain, text):
    topic = fresh("poison")
    for properties in (
        b"\x26" + prefixed("name") + prefixed(text), b"\x26" + prefixed(text) + prefixed("value"),
        b"\x03" + prefixed(text),
    ):
        poisoner = Peer(plain.port()).accepted()
        poisoner.send(publish(topic, "poison", retain=True, properties=properties))
        poisoner.expect_disconnect(0x81)
    sub = subscribed(plain, "-t", topic, "-V", "mqttv5", "-C", "1")
    finish(mosquitto("pub", plain, "-t", topic, "-m", "wholesome"))
    assert payloads(finish(sub)) == ["wholesome"]


def test_mosquitto_properties(plain):
    topic = fresh("mosquitto")
    shape = "%t|%P|%C|%R|%D|%E|%F|%p"
    sub = subscribed(plain, "-V", "mqttv5", "-t", topic, "-C", "1", "-F", shape)
    properties = [
        ("user-property", "a", "1"), ("user-property", "b", "2"), ("content-type", "text/plain"),
        ("response-topic", "answer"), ("correlation-data", "corr"),
        ("payload-format-indicator", "1"),
    ]
    flags = [word for parts in properties for word in ("-D", "publish", *parts)]
    finish(mosquitto("pub", plain, "-V", "mqttv5", "-t", topic, "-m", "x", *flags))
    [line] = payloads(finish(sub))
    assert line == f"{topic}|a:1 b:2|text/plain|answer|corr||1|x"


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_will(plain, version):
    topic = fresh("will")
    sub = subscribed(plain, "-t", topic, "-C", "1")
    will = ["--will-topic", topic, "--will-payload", "gone", "--will-qos", "1"]
    victim = subscribed(plain, "-V", version, "-t", fresh(), *will)
    victim.kill()
    assert payloads(finish(sub)) == ["gone"]


def test_mosquitto_persistent_session(plain):
    topic = fresh("session")
    common = ["-t", topic, "-q", "1", "-i", fresh("id").replace("/", "-"), "-c"]
    subscribed(plain, *common, "-E").wait(PATIENCE_SECS)
    for payload in ("one", "two"):
        finish(mosquitto("pub", plain, "-t", topic, "-q", "1", "-m", payload))
    assert finish(mosquitto("sub", plain, *common, "-C", "2")) == "one\ntwo\n"


class Paho:
    """A paho client whose events are waited for one by one."""

    def __init__(self, broker, version=paho.MQTTv5, transport="tcp", **options):
        self.events = queue.Queue()
        if version != paho.MQTTv5:
            options.setdefault("clean_session", True)
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=options.pop("client_id", fresh("p")[-20:]),
            protocol=version, transport=transport, **options,
        )
        self.client.on_connect = lambda _c, _u, flags, reason, props: self._put(
            "connect", flags, reason, props
        )
        self.client.on_message = lambda _c, _u, message: self._put("message", message)
        self.client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._put("suback", reasons)
        self.client.on_publish = lambda _c, _u, mid, reason, _p: self._put("ack", reason)
        self.client.on_disconnect = lambda _c, _u, flags, reason, props: self._put(
            "disconnect", flags, reason
        )
        self.broker = broker

    def _put(self, kind, *what):
        self.events.put((kind, *what))

    def wait(self, kind):
        """The next event of this kind; others before it are dropped."""
        while True:
            try:
                event = self.events.get(timeout=PATIENCE_SECS)
            except queue.Empty:
                raise AssertionError(f"no {kind} came") from None
            if event[0] == kind:
                return event[1:]

    def connect(self, **options):
        scheme = "ws" if self.client.transport == "websockets" else "tcp"
        self.client.connect("127.0.0.1", self.broker.port(scheme), **options)
        self.client.loop_start()
        flags, reason, _ = self.wait("connect")
        assert not reason.is_failure, reason
        return flags

    def subscribe(self, *arguments, **options):
        self.client.subscribe(*arguments, **options)
        [reasons] = self.wait("suback")
        assert not any(reason.is_failure for reason in reasons)

    def message(self):
        return self.wait("message")[0]

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def paho_client(plain):
    made = []

    def make(*arguments, **options):
        made.append(Paho(plain, *arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho_publishes_and_receives(paho_client, version):
    client = paho_client(version)
    client.connect()
    topic = fresh("paho")
    client.subscribe(f"{topic}/+", 2)
    for qos in range(3):
        client.client.publish(f"{topic}/{qos}", f"payload {qos}", qos)
    messages = [client.message() for _ in range(3)]
    found = sorted((m.qos, m.topic, m.payload) for m in messages)
    assert found == [(q, f"{topic}/{q}", f"payload {q}".encode()) for q in range(3)]


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_many_messages_in_order(paho_client, version):
    sender, receiver = paho_client(version), paho_client(version)
    sender.connect()
    receiver.connect()
    topic = fresh("paho")
    receiver.subscribe(topic, 1)
    for number in range(1000):
        sender.client.publish(topic, str(number), 1)
    assert [int(receiver.message().payload) for _ in range(1000)] == list(range(1000))


def test_paho_large_payload(paho_client):
    client = paho_client()
    client.connect()
    topic, payload = fresh("paho"), bytes(range(256)) * 4096
    client.subscribe(topic, 2)
    client.client.publish(topic, payload, 2)
    assert client.message().payload == payload


def test_paho_v5_properties_and_options(paho_client):
    client = paho_client()
    client.connect()
    topic = fresh("paho")
    subscription = Properties(PacketTypes.SUBSCRIBE)
    subscription.SubscriptionIdentifier = 42
    options = SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=2)
    client.subscribe(topic, options=options, properties=subscription)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("b", "2")]
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answer"
    properties.CorrelationData = b"\0\1"
    properties.MessageExpiryInterval = 1000
    client.client.publish(topic, "x", 1, retain=True, properties=properties)
    message = client.message()
    assert message.retain and message.properties.SubscriptionIdentifier == [42]
    assert message.properties.UserProperty == [("a", "1"), ("b", "2")]
    assert message.properties.ContentType == "text/plain"
    assert message.properties.ResponseTopic == "answer"
    assert message.properties.CorrelationData == b"\0\1"
    assert 990 <= message.properties.MessageExpiryInterval <= 1000
    client.client.publish(topic, b"", 1, retain=True)


def test_paho_v5_session_resume_and_takeover(plain):
    name, topic = fresh("id").replace("/", "-"), fresh("paho")
    session = Properties(PacketTypes.CONNECT)
    session.SessionExpiryInterval = 600
    first = Paho(plain, client_id=name)
    assert not first.connect(clean_start=True, properties=session).session_present
    first.subscribe(topic, 1)
    # Reconnecting by itself would take the session back.
    first.client.on_disconnect = lambda client, _u, _f, reason, _p: (
        first._put("disconnect", reason), client.disconnect()
    )
    second = Paho(plain, client_id=name)
    assert second.connect(clean_start=False, properties=session).session_present
    [reason] = first.wait("disconnect")
    assert reason.value == 0x8E
    second.client.publish(topic, "x", 1)
    assert second.message().payload == b"x"
    first.close()
    second.close()


def test_paho_over_websocket(start):
    broker = start('[[listeners]]\nurl = "ws://127.0.0.1:0/mqtt"\nallow_anonymous = true\n')
    for version in (paho.MQTTv311, paho.MQTTv5):
        client = Paho(broker, version, transport="websockets")
        client.connect()
        topic, payload = fresh("paho"), b"x" * 100_000
        client.subscribe(topic, 1)
        client.client.publish(topic, payload, 1)
        assert client.message().payload == payload
        client.close()


def test_mqtt311_7_0_0_2_clients_of_different_makers_meet(plain, paho_client):
    """No extension is in use: everybody speaks to everybody."""
    topic = fresh("all")
    client = paho_client(paho.MQTTv311)
    client.connect()
    client.subscribe(topic, 1)
    finish(mosquitto("pub", plain, "-t", topic, "-m", "from mosquitto", "-q", "1", "-V", "mqttv5"))
    assert client.message().payload == b"from mosquitto"
    sub = subscribed(plain, "-t", topic, "-C", "1", "-V", "mqttv31")
    client.client.publish(topic, "from paho", 1)
    assert payloads(finish(sub)) == ["from paho"]


def test_many_clients_at_once(plain):
    """A hundred connections that all want the same message."""
    topic = fresh("all")
    clients = [Paho(plain) for _ in range(100)]
    for client in clients:
        client.connect()
        client.subscribe(topic, 1)
    clients[0].client.publish(topic, "to all", 1)
    assert all(client.message().payload == b"to all" for client in clients)
    for client in clients:
        client.close()
