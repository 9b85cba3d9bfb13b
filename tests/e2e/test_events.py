"""Life-cycle events: over MQTT where rules allow it, and as a stream of the management API."""

import json
import queue
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import PATIENCE_SECS, QUELEA, eventually
from test_api import Api, client, ctl, ended, managed  # noqa: F401 (fixtures)
from wire import SUBACK, Peer, packet, prefixed, publish, subscribe

RULES = """
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[auth]
password_file = "{dir}/users"
[access]
acl_file = "{dir}/acl"
[events]
sys = true
source = "/plant/7"
[api]
listen = "http"
"""

ACL = """
topic readwrite home/#
user anna
topic read $SYS/events/#
topic readwrite home/#
user bruno
topic read #
topic readwrite home/#
"""

# A session expiry of an hour.
KEPT = b"\x11\x00\x00\x0e\x10"

FAST = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[limits]
subscription_bytes_per_client_max = "64MiB"
[events]
per_second_max = "unlimited"
per_client_per_second_max = "unlimited"
[api]
listen = "http"
"""


class Stream:
    """Reads the stream of events on a thread of its own."""

    def __init__(self, api, query=""):
        request = urllib.request.Request(api.base + "/events" + query)
        request.add_header("Authorization", api.authorization)
        self.answer = urllib.request.urlopen(request, timeout=PATIENCE_SECS)
        assert self.answer.headers["Content-Type"] == "text/event-stream"
        assert self.answer.readline() == b": from here on\n"
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for line in self.answer:
                if line.startswith(b"data: "):
                    self.events.put(json.loads(line[6:]))
        except (OSError, ValueError, AttributeError):
            pass
        self.events.put(None)

    def next(self):
        return self.events.get(timeout=PATIENCE_SECS)

    def until(self, kind):
        """The data of the next event of a kind; others are passed over."""
        while True:
            event = self.next()
            assert event is not None, "the stream has ended"
            if event["type"] == "quelea." + kind:
                return event["data"]


def asked(peer, topic_filter):
    """What the SUBACK says."""
    peer.send(subscribe(topic_filter))
    return peer.expect(SUBACK)[-1]


def persistent():
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    return properties


def test_a_stream_tells_the_life_of_a_client(managed, client):  # noqa: F811
    broker, api = managed
    stream = Stream(api)
    one = client("dev/7", clean_start=False, properties=persistent())
    first = stream.next()
    assert first["type"] == "quelea.session.created" and first["subject"] == "clients/dev/7"
    assert (first["specversion"], first["source"]) == ("1.0", "/quelea")
    assert first["datacontenttype"] == "application/json" and first["time"].endswith("Z")
    connected = stream.until("session.connected")
    assert connected["client_id"] == "dev/7" and not connected["session_present"]
    assert connected["address"].startswith("127.0.0.1:") and connected["protocol"] == "5"
    one.subscribe([("a/+", 1), ("b", 0)])
    told = stream.until("session.subscribed")
    assert told["filters"] == [{"filter": "a/+", "qos": 1}, {"filter": "b", "qos": 0}]
    one.client.unsubscribe(["b", "nothing"])
    told = stream.until("session.unsubscribed")
    assert (told["filters"], told["count"]) == ([{"filter": "b"}], 1)
    again = Peer(broker.port()).accepted(client_id="dev/7", clean=False, properties=KEPT)
    gone = stream.until("session.disconnected")
    assert gone["disconnection_reason"] == "SessionTakenOver"
    assert gone["sequence_number"] == connected["sequence_number"]
    assert gone["session_expiry_secs"] == 3600
    back = stream.until("session.connected")
    assert back["session_present"] and back["sequence_number"] > gone["sequence_number"]
    again.close()
    assert stream.until("session.disconnected")["disconnection_reason"] == "ConnectionLost"
    api("DELETE", "/clients/dev%2F7", status=204)
    assert stream.until("session.purged")["client_id"] == "dev/7"
    api("POST", "/bans", {"kind": "client", "who": "x"})
    ban = {"kind": "client", "who": "x", "namespace": "default", "by": "token"}
    assert stream.until("ban.added") == {**ban, "until": None}
    api("DELETE", "/bans", status=204, kind="client", who="x")
    assert stream.until("ban.removed")["who"] == "x"
    # Numbers rise also over the end of the process, however it ends.
    broker.restart()
    stream = Stream(Api(broker))
    last = Peer(broker.port()).accepted(client_id="dev/7")
    number = stream.until("session.connected")["sequence_number"]
    assert number > back["sequence_number"]
    broker.terminate()
    assert stream.until("session.disconnected")["disconnection_reason"] == (
        "ServerInitiatedDisconnect"
    )
    last.expect_disconnect(0x8B)


def test_streams_are_filtered_and_few(managed):  # noqa: F811
    broker, api = managed
    one = Stream(api, "?client_id=c1")
    ends = Stream(api, "?type=quelea.session.disc")
    Peer(broker.port()).accepted(client_id="c2").close()
    Peer(broker.port()).accepted(client_id="c1").close()
    assert one.next()["data"]["client_id"] == "c1"
    assert ends.next()["data"]["client_id"] == "c2"
    others = [Stream(api) for _ in range(6)]
    problem = api("GET", "/events", status=503)
    assert "$SYS/events" in problem["fix"]
    others.pop().answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: is_open(api), "room for a reader")


def is_open(api):
    request = urllib.request.Request(api.base + "/events")
    request.add_header("Authorization", api.authorization)
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE_SECS).status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def test_over_mqtt_only_those_hear_whom_rules_allow(start, passwords):
    broker = start(RULES, {"users": passwords, "acl": ACL})
    anna = Peer(broker.port()).accepted(client_id="anna", user="anna", password="secret")
    assert asked(anna, "$SYS/events/session/+") == 0
    # Nobody else can subscribe, nor does a wildcard get them.
    nobody = Peer(broker.port()).accepted(client_id="nobody")
    assert asked(nobody, "$SYS/events/#") == 0x87
    bruno = Peer(broker.port()).accepted(client_id="bruno", user="bruno", password="geheim")
    assert asked(bruno, "$SYS/events/#") == 0x87
    assert asked(bruno, "#") == 0
    Peer(broker.port()).accepted(client_id="seen").close()
    told = []
    while not (told and told[-1][1]["type"] == "quelea.session.disconnected"):
        topic, payload = anna.message()[:2]
        told.append((topic, json.loads(payload)))
    seen = [(topic, event) for topic, event in told if event["data"]["client_id"] == "seen"]
    assert [topic for topic, _ in seen] == [
        f"$SYS/events/session/{kind}" for kind in ("created", "connected", "disconnected")
    ]
    assert {event["source"] for _, event in seen} == {"/plant/7"}
    anna.send(publish("home/last", b"end"))
    assert bruno.message()[0] == "home/last", "nothing came before it"


def test_events_over_mqtt_need_rules(tmp_path):
    config = tmp_path / "quelea.toml"
    config.write_text('[events]\nsys = true\n')
    ports = ["--port=0", "--http=off"]
    command = [QUELEA, "serve", *ports, f"--config={config}", "--check-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "events.sys" in done.stderr and "acl_file" in done.stderr


def test_who_comes_and_goes_all_the_time_does_not_flood_the_others(start):
    config = FAST.replace('per_client_per_second_max = "unlimited"', "per_client_per_second_max = 3")
    broker = start(config)
    api = Api(broker)
    stream = Stream(api)
    for _ in range(60):
        Peer(broker.port()).accepted(client_id="churn").close()
    Peer(broker.port()).accepted(client_id="calm").close()
    churn = 0
    while True:
        event = stream.next()
        if event["data"].get("client_id") == "calm":
            break
        churn += event["type"] != "quelea.events.withheld"
    # Three in each second that it took, and 60 connects have three events each.
    withheld = eventually(lambda: broker.metrics()["quelea_events_withheld_total"])
    assert churn < 180 and withheld > 0
    assert stream.until("events.withheld")["count"] > 0


def test_a_reader_that_never_reads_is_cut(start):
    broker = start(FAST)
    api = Api(broker)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", broker.port("http")))
    deaf.sendall(
        f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {api.authorization}\r\n\r\n"
        .encode()
    )
    busy = Peer(broker.port()).accepted(client_id="busy")
    filters = b"".join(prefixed(f"{number}/{'x' * 240}") + b"\0" for number in range(16))
    request = packet(0x82, b"\0\1\0" + filters)

    def cut():
        for _ in range(100):
            busy.send(request)
            busy.expect(SUBACK)
        return broker.metrics()["quelea_event_readers_cut_total"] == 1

    stream = Stream(api)
    eventually(cut, "the end of who does not read")
    line = broker.wait_for_log(lambda event: event["message"] == "event stream closed: the reader is too slow")
    assert line["caller"] == "token"
    assert stream.until("session.subscribed")["count"] == 16
    deaf.close()


def test_ctl_events(managed):  # noqa: F811
    broker, _ = managed
    command = [
        QUELEA, "ctl", "--data", str(broker.data), "events", "--type", "session.c", "-C", "2"
    ]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    peers = []

    def connect():
        peers.append(Peer(broker.port()).accepted(client_id=f"c{len(peers)}"))
        return reader.poll() is not None

    eventually(connect, "the end of the command")
    lines = reader.stdout.read().splitlines()
    assert len(lines) == 2 and "client_id=c" in lines[0] and "quelea.session.c" in lines[0]
    assert ctl(broker, "events", "--json", "-C", "0") == "" or pytest.fail("told something")
