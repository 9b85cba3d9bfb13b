"""What operators ask about topics, rights and packets, and what they change while the broker runs."""

import base64
import json
import subprocess
import urllib.error
import urllib.request

from broker import PATIENCE_SECS, QUELEA, eventually, sum_of
from test_api import Api, client, ctl, managed  # noqa: F401
from wire import PINGRESP, PUBACK, Peer, packet, publish


def code(peer, topic, **options):
    """The reason code that a publish at QoS 1 is answered with."""
    peer.send(publish(topic, b"x", qos=1, packet_id=7, **options))
    body = peer.expect(PUBACK)
    return body[2] if len(body) > 2 else 0


def test_subscriptions_of_all_clients_are_listed_and_filtered(managed, client):
    broker, api = managed
    for number in range(5):
        client(f"dev-{number}").subscribe([(f"a/{number}", 0), ("a/+", 1), ("$share/g/b/#", 2)])
    rows = api.all("/subscriptions")
    assert len(rows) == 15 and len({(row["client_id"], row["filter"]) for row in rows}) == 15
    matching = api.all("/subscriptions", topic="a/3")
    assert sorted(row["filter"] for row in matching) == ["a/+"] * 5 + ["a/3"]
    exact = api.all("/subscriptions", filter="a/3")
    assert [(row["client_id"], row["qos"], row["share"]) for row in exact] == [("dev-3", 0, None)]
    shared = api.all("/subscriptions", shared="true", client_id="v-2")
    assert [(row["filter"], row["share"], row["qos"]) for row in shared] == [("b/#", "g", 2)]
    assert api.all("/subscriptions", namespace="default", filter="b/#", shared="false") == []
    api("GET", "/subscriptions", status=404, namespace="nowhere")
    assert "#" in api("GET", "/subscriptions", status=400, filter="a/#/b")["detail"]
    api("GET", "/subscriptions", status=400, cursor="0.x")
    assert "dev-3" in ctl(broker, "subs", "--filter", "a/3")
    assert ctl(broker, "subs", "dev-3").count("\n") == 4
    ctl(broker, "subs", "dev-3", "--shared", code=2)


def test_topics_with_retained_messages_are_a_tree(managed):
    broker, api = managed
    topics = [f"home/{room}/{what}" for room in "abcdef" for what in ("lamp", "door/open")]
    for topic in [*topics, "home", "/x", "home/a/lamp/on"]:
        api("PUT", "/retained/message", {"payload": "1"}, topic=topic)
    rows = [row for row in api.all("/topics") if row["level"] != "$SYS"]
    assert [(row["level"], row["retained"], row["topics_below"], row["counted"]) for row in rows] == [
        ("", False, 1, True), ("home", True, 13, True)
    ]
    rooms = api.all("/topics", limit=2, prefix="home")
    assert [(row["level"], row["topic"]) for row in rooms] == [(it, f"home/{it}") for it in "abcdef"]
    assert [row["topics_below"] for row in rooms] == [3, 2, 2, 2, 2, 2]
    lamp = api.all("/topics", prefix="home/a")[1]
    assert (lamp["topic"], lamp["retained"], lamp["topics_below"]) == ("home/a/lamp", True, 1)
    assert [row["topic"] for row in api.all("/topics", limit=1, prefix="")] == ["/x"]
    assert api.all("/topics", prefix="nothing") == []
    api("GET", "/topics", status=400, prefix="home/+")
    api("GET", "/topics", status=400, cursor="0.eA")
    assert "home/a/lamp" in ctl(broker, "topics", "home/a")


EXPLAINED = """
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "inside"
[auth]
password_file = "{dir}/users"
[access]
acl_file = "{dir}/acl"
policy_file = "{dir}/policy.toml"
[api]
listen = "http"
"""

ACL = """user anna
topic readwrite home/#
topic deny home/secret
"""

POLICY = """[[groups]]
name = "cars"
query = 'attributes.type = "car"'
[[spaces]]
name = "telemetry"
templates = ["cars/${client.attributes.vin}/#"]
[[bindings]]
group = "cars"
space = "telemetry"
permission = "publish"
[[rules]]
effect = "deny"
action = "publish"
topics = ["home/closed"]
"""


def test_decisions_are_explained_with_file_and_line(start, passwords):
    broker = start(EXPLAINED, files={"users": passwords, "acl": ACL, "policy.toml": POLICY})
    api = Api(broker)
    client = Peer(broker.port()).accepted(client_id="dev/1", user="anna", password="secret")

    def asked(action, topic, **query):
        told = api("GET", "/clients/dev%2F1/permissions", action=action, topic=topic, **query)
        assert told["username"] == "anna" and told["connected"]
        return told["allowed"], told["decided_by"], told["line"], told["rule"]

    assert asked("publish", "home/x") == (True, "access_file", 2, "home/#")
    assert asked("subscribe", "$share/g/home/secret") == (False, "access_file", 3, "home/secret")
    assert asked("publish", "home/closed", qos=1) == (False, "policy_file", 12, "home/closed")
    assert asked("receive", "elsewhere") == (False, "default", None, None)
    assert asked("publish", "$SYS/x") == (False, "broker_topic", None, None)
    # What is said is what is done.
    assert code(client, "home/x") in (0, 0x10)
    assert code(client, "home/closed") == 0x87

    question = {"client_id": "car7", "action": "publish", "topic": "cars/v7/speed"}
    told = api("POST", "/permissions/explain", question)
    assert (told["allowed"], told["decided_by"], told["connected"]) == (False, "default", False)
    attributes = {"type": "car", "vin": ["v6", "v7"]}
    told = api("POST", "/permissions/explain", {**question, "attributes": attributes})
    assert told["allowed"] and told["binding"] == "cars may publish to telemetry"
    assert told["line"] == 6 and told["file"].endswith("policy.toml")
    assert {it["name"]: it["values"] for it in told["attributes"]} == {
        "type": ["car"], "vin": ["v6", "v7"]
    }
    acl = [{"permission": "deny", "action": "pub", "topic": "cars/+/${clientid}"},
           {"permission": "allow", "action": "pub", "topic": "cars/#"}]  # fmt: skip
    told = api("POST", "/permissions/explain", {**question, "acl": acl})
    assert told["allowed"] and told["decided_by"] == "credential"
    told = api("POST", "/permissions/explain", {**question, "acl": acl, "client_id": "speed"})
    assert told["allowed"] is False and told["rule"] == "cars/+/%c"
    for wrong in ({"acl": [{"permission": "allow"}]}, {"acl": "x"}, {"attributes": [1]}, {"address": "x"}, {"listener": "x"}, {"qos": 3},
                  {"action": "do"}, {"topic": "a/+"}, {"attributes": {"a": None}}):
        api("POST", "/permissions/explain", {**question, **wrong}, status=400)
    api("GET", "/clients/nobody/permissions", status=404, action="publish", topic="a")
    api("GET", "/clients/dev%2F1/permissions", status=400, action="publish")
    assert "acl:2 (allow home/#)" in ctl(broker, "may", "dev/1", "publish", "home/x")
    ctl(broker, "may", "x", "publish", "home/x", "--as", "eve", code=1)

    command = [QUELEA, "policy", "test", str(broker.directory / "policy.toml"), "publish", "home/x",
               "-u", "anna", "--acl-file", str(broker.directory / "acl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "line 2 of the access file" in done.stdout


class Stream:
    """The events of a stream of the API."""

    def __init__(self, api, path):
        request = urllib.request.Request(api.base + path)
        request.add_header("Authorization", api.authorization)
        self.answer = urllib.request.urlopen(request, timeout=PATIENCE_SECS)
        assert self.answer.readline() == b": from here on\n"

    def next(self):
        """Kind and data of the next event."""
        kind = None
        for line in self.answer:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            if line.startswith(b"data: "):
                return kind, json.loads(line[6:])
        return None

    def until(self, packet):
        """Packets, up to one of this type."""
        packets = []
        while not packets or packets[-1]["packet"] != packet:
            kind, data = self.next()
            assert kind == "packet", (kind, data)
            packets.append(data)
        return packets

    def close(self):
        self.answer.close()


def told(packets):
    return [(it["direction"], it["packet"]) for it in packets]


def test_a_client_is_traced_from_connect_to_its_end(managed):
    broker, api = managed
    stream = Stream(api, "/trace?client_id=dev%2F7&payload_bytes=3")
    other = Peer(broker.port()).accepted(client_id="other")
    # The order to trace reaches a worker before what comes after the answer.
    peer = Peer(broker.port()).accepted(client_id="dev/7")
    peer.subscribed("a/+", 1)
    assert code(other, "a/b") == 0
    assert peer.message()[:2] == ("a/b", b"x")
    assert code(peer, "up", properties=b"") in (0, 0x10)
    peer.send(publish("up", b"a long payload", qos=0))
    peer.ping()
    peer.send(packet(0xE0))
    peer.expect_end()
    packets = stream.until("closed")
    assert told(packets) == [
        ("in", "CONNECT"), ("out", "CONNACK"), ("in", "SUBSCRIBE"), ("out", "SUBACK"),
        ("out", "PUBLISH"), ("in", "PUBACK"), ("in", "PUBLISH"), ("out", "PUBACK"),
        ("in", "PUBLISH"), ("in", "PINGREQ"), ("out", "PINGRESP"), ("in", "DISCONNECT"),
        ("out", "closed"),
    ]
    assert {it["client_id"] for it in packets} == {"dev/7"}
    by_name = {it["packet"]: it for it in packets}
    assert "MQTT 5" in by_name["CONNECT"]["detail"]
    assert by_name["SUBSCRIBE"]["filters"] == ["a/+"] and by_name["SUBACK"]["reasons"]
    got = packets[4]
    assert (got["topic"], got["qos"], got["payload_bytes"]) == ("a/b", 1, 1)
    long = packets[8]
    assert (long["topic"], long["payload_bytes"]) == ("up", 14)
    assert base64.b64decode(long["payload_base64"]) == b"a l"
    assert packets[-1]["detail"] == "client_disconnect"
    stream.close()


def test_traces_by_topic_and_address_are_few_and_end(managed):
    broker, api = managed
    stream = Stream(api, "/trace?topic=room%2F%2B&address=127.0.0.0%2F8")
    peer = Peer(broker.port()).accepted(client_id="p")
    for topic in ("hall/1", "room/1", "room/1/x", "room/2"):
        code(peer, topic)
    topics = [stream.next()[1]["topic"] for _ in range(2)]
    assert topics == ["room/1", "room/2"]
    for wrong in ("", "?payload_bytes=5", "?address=x", "?topic=%23%2Fa", "?topic=a&payload_bytes=1025"):
        api("GET", f"/trace{wrong}", status=400)
    api("GET", "/trace", status=404, client_id="a", namespace="nowhere")
    more = [Stream(api, "/trace?client_id=x") for _ in range(3)]
    api("GET", "/trace", status=503, client_id="x")
    more.pop().close()
    # Its place is free once the broker has noticed.
    def opened():
        try:
            return Stream(api, "/trace?client_id=x")
        except urllib.error.HTTPError:
            return None
    fifth = []
    eventually(lambda: fifth or fifth.extend(it for it in [opened()] if it), "a free place")
    for one in [stream, *more, *fifth]:
        one.close()
    line = ctl(broker, "trace", "--help")
    assert "payload-bytes" in line


def test_a_trace_begins_between_two_packets_and_ends_with_the_last_reader(managed):
    broker, api = managed
    subscriber = Peer(broker.port()).accepted(client_id="s").subscribed("big")
    publisher = Peer(broker.port()).accepted(client_id="p")
    # More than the sockets take, so that a packet is cut when the trace begins.
    for _ in range(8):
        publisher.send(publish("big", b"x" * 1_000_000, qos=0))
    publisher.ping()
    stream = Stream(api, "/trace?client_id=s")
    for _ in range(2):
        # What was dropped for a slow reader does not come.
        subscriber.send(packet(0xC0))
        while subscriber.recv()[0] != PINGRESP:
            pass
    packets = stream.until("PINGRESP")
    # The first answer may have been queued behind a packet that was cut.
    subscriber.ping()
    packets += stream.until("PINGRESP")
    assert all(it["packet"] in ("PUBLISH", "PINGREQ", "PINGRESP") for it in packets)
    assert all(it["payload_bytes"] == 1_000_000 for it in packets if it["packet"] == "PUBLISH")
    stream.close()
    subscriber.ping()


def test_streams_end_with_what_proved_the_rights_of_their_readers(start, passwords):
    broker = start(SERVED.replace('listen = "http"', OPERATORS), files={"users": passwords, "acl": ACL})
    anna = Api(broker, "Basic YW5uYTpzZWNyZXQ=")
    first, second = (
        Api(broker, f"Bearer {anna('POST', '/sessions')['token']}") for _ in range(2)
    )
    paths = ("/trace?client_id=x", "/events")
    of_first, of_second, of_anna = (
        [Stream(api, path) for path in paths] for api in (first, second, anna)
    )
    first("DELETE", "/sessions", status=204)
    assert all(stream.next() is None for stream in of_first)
    # The others are still served.
    Peer(broker.port()).accepted(client_id="x", user="anna", password="secret")
    for trace, events in (of_second, of_anna):
        assert trace.until("CONNECT") and events.next()[0] == "quelea.session.created"
    path = str(broker.directory / "users")
    subprocess.run([QUELEA, "passwd", "-b", path, "anna", "other"], check=True)
    broker.reload()
    for stream in of_second + of_anna:
        while stream.next() is not None:
            pass


OPERATORS = """listen = "http"
password_file = "{dir}/users"
operators = ["anna"]"""

SERVED = """
[[listeners]]
url = "tcp://127.0.0.1:0"
[auth]
password_file = "{dir}/users"
[access]
acl_file = "{dir}/acl"
[api]
listen = "http"
"""


def test_clients_are_disconnected_by_filters(start, passwords):
    broker = start(SERVED, files={"users": passwords, "acl": ACL})
    api = Api(broker)
    peers, secrets = {}, {"anna": "secret", "bruno": "geheim"}
    for name, user in (("a1", "anna"), ("a2", "anna"), ("b1", "bruno")):
        peer = Peer(broker.port())
        peers[name] = peer.accepted(client_id=name, user=user, password=secrets[user])
    assert "required" in api("POST", "/disconnect", status=400)["detail"]
    api("POST", "/disconnect", status=404, namespace="nowhere")
    api("POST", "/disconnect", status=400, client_id="")
    assert api("POST", "/disconnect", username="nobody") == {"disconnected": 0}
    assert api("POST", "/disconnect", username="anna", client_id="2") == {"disconnected": 1}
    peers["a2"].expect_disconnect(0x98)
    peers["a1"].ping()
    assert ctl(broker, "clients", "kick", "--username", "bruno") == "disconnected: 1\n"
    peers["b1"].expect_disconnect(0x98)
    ctl(broker, "clients", "kick", "--username", "anna", "--ban", "10m")
    assert api.all("/bans")[0]["who"] == "anna"
    peers["a1"].expect_disconnect(0x98)
    peer = Peer(broker.port()).accepted(client_id="c", user="bruno", password="geheim")
    assert api("POST", "/disconnect", address="127.0.0.1:") == {"disconnected": 1}
    peer.expect_disconnect(0x98)
    ctl(broker, "clients", "kick", code=1)


def test_users_of_the_password_file_are_changed_while_the_broker_runs(start, passwords):
    head = "# by hand\n"
    broker = start(SERVED, files={"users": head + passwords, "acl": ACL})
    api = Api(broker)
    assert [row["username"] for row in api.all("/users", limit=1)] == ["anna", "bruno"]
    api("PUT", "/users/carla", {"password": "pa ss"}, status=204)
    Peer(broker.port()).accepted(client_id="c", user="carla", password="pa ss").ping()
    api("PUT", "/users/anna", {"password": "other", "scram": True}, status=204)
    _, reason, _ = Peer(broker.port()).connect(client_id="a", user="anna", password="secret")
    assert reason in (0x86, 0x87)
    Peer(broker.port()).accepted(client_id="a", user="anna", password="other").ping()
    api("DELETE", "/users/bruno", status=204)
    api("DELETE", "/users/bruno", status=404)
    rows = api.all("/users")
    assert [(row["username"], row["scram"]) for row in rows] == [("anna", True), ("carla", False)]
    text = (broker.directory / "users").read_text()
    assert text.startswith(head) and "pa ss" not in text
    for wrong in ({"password": ""}, {}, {"password": "x", "role": "admin"}):
        api("PUT", "/users/dora", wrong, status=400)
    api("PUT", "/users/%23x", {"password": "x"}, status=400)
    assert all("pa ss" not in json.dumps(event) for event in broker.log)
    (broker.directory / "users").write_text("anna:plain\n")
    assert ":1:" in api("PUT", "/users/dora", {"password": "x"}, status=409)["detail"]
    assert (broker.directory / "users").read_text() == "anna:plain\n"
    Peer(broker.port()).accepted(client_id="a", user="anna", password="other").ping()


def test_a_reload_says_what_it_took(start, passwords):
    broker = start(SERVED, files={"users": passwords, "acl": ACL})
    api = Api(broker)
    result = api("POST", "/reload")
    assert result["complete"] and {part["name"] for part in result["parts"]} >= {
        "passwords and keys", "access rules", "bans", "log file"
    }
    (broker.directory / "acl").write_text("nonsense\n")
    result = api("POST", "/reload")
    refused = [part for part in result["parts"] if not part["reloaded"]]
    assert not result["complete"] and [part["name"] for part in refused] == ["access rules"]
    assert "acl:1" in refused[0]["error"]
    ctl(broker, "reload", code=1)
    (broker.directory / "acl").write_text(ACL)
    assert "access rules" in ctl(broker, "reload")


def test_the_log_level_changes_and_comes_back(managed):
    broker, api = managed
    state = api("GET", "/log-level")
    assert state == {"level": "info", "configured": "info", "until": None}
    state = api("PUT", "/log-level", {"level": "warn"})
    assert (state["level"], state["until"]) == ("warn", None)
    Peer(broker.port()).accepted(client_id="unheard").close()
    eventually(lambda: not api.all("/clients", connected="true"), "the end of a connection")
    assert ctl(broker, "log-level", "debug", "--for", "1s").startswith("configured")
    broker.wait_for_log(lambda event: event["message"] == "log level changed"
                        and event["level"] in ("info", "INFO") and "until" not in event, 0)
    assert all(event.get("client_id") != "unheard" for event in broker.log)
    assert api("GET", "/log-level")["level"] == "info"
    for wrong in ({"level": "loud"}, {"level": "info", "for_secs": 0}, {}):
        api("PUT", "/log-level", wrong, status=400)


def test_the_last_lines_of_the_log(start, passwords):
    broker = start(SERVED, files={"users": passwords, "acl": ACL})
    api = Api(broker)
    Peer(broker.port()).accepted(client_id="heard", user="anna", password="secret").close()
    broker.wait_for_log(lambda event: event["message"] == "client disconnected")
    (broker.directory / "acl").write_text("no such word\n")
    api("POST", "/reload")
    lines = api.all("/log-lines", limit=2)
    assert lines == api("GET", "/log-lines")["items"]
    times = [line["time"] for line in lines]
    assert times == sorted(times, reverse=True)
    assert any(line["text"].startswith("client connected client_id=heard ") for line in lines)
    assert lines[-1]["level"] == "info"
    severe = api.all("/log-lines", level="warn")
    assert {line["level"] for line in severe} <= {"warn", "error"}
    assert any("acl:1" in line["text"] for line in severe)
    assert "acl:1" in ctl(broker, "log-lines", "--level", "warn", "--limit", "5")
    assert "loud" in api("GET", "/log-lines", status=400, level="loud")["detail"]
    api("GET", "/log-lines", status=400, cursor="x")


TENANTS = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "red"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[namespaces]]
name = "red"
[api]
listen = "http"
"""


def test_a_suspended_namespace_stays_so_until_it_is_resumed(start):
    broker = start(TENANTS)
    api = Api(broker)
    kept = b"\x11\x00\x00\x0e\x10"
    peer = Peer(broker.port()).accepted(client_id="r", clean=False, properties=kept)
    peer.subscribed("a", 1)
    other = Peer(broker.port(nth=1)).accepted(client_id="o")
    api("POST", "/publish", {"topic": "a", "payload": "1", "retain": True}, namespace="red")
    assert api("POST", "/namespaces/red/suspend")["state"] == "suspended"
    assert peer.message()[0] == "a"
    peer.expect_disconnect(0x98)
    other.ping()
    broker.restart()
    api = Api(broker)
    assert api("GET", "/namespaces/red")["state"] == "suspended"
    _, reason, _ = Peer(broker.port()).connect(client_id="r", clean=False, properties=kept)
    assert reason >= 0x80
    assert [row["client_id"] for row in api.all("/clients", namespace="red")] == ["r"]
    ctl(broker, "ns", "resume", "red")
    Peer(broker.port()).accepted(client_id="r", clean=False, properties=kept).ping()
    api("POST", "/namespaces/default/suspend", status=409)
    api("POST", "/namespaces/nowhere/suspend", status=404)


def test_calls_memory_and_drops_are_shown(managed):
    broker, api = managed
    for number in range(3):
        api("PUT", "/retained/message", {"payload": "x"}, topic=f"a/{number}")
    api("DELETE", "/clients/nobody", status=404)
    rows = api.all("/audit", limit=2)
    assert [(row["method"], row["status"]) for row in rows] == [("DELETE", 404)] + [("PUT", 200)] * 3
    assert "nobody" in rows[0]["call"] and rows[0]["caller"] == "token"
    assert "DELETE" in ctl(broker, "audit")
    usage = api("GET", "/memory")
    assert usage["resident_bytes"] > 0 and usage["retained_bytes"] > 0
    assert "resident_bytes" in ctl(broker, "memory")
    drops = api("GET", "/drops")["items"]
    assert {"queue_full", "expired"} <= {row["reason"] for row in drops}
    assert {"queued_messages_max", "queues_bytes_max"} <= {row["limit"] for row in drops}
    assert "queue_full" in ctl(broker, "drops")


def test_memory_of_the_log_is_named_and_given_back(managed):
    broker, api = managed
    # A session of an hour.
    kept = b"\x11\x00\x00\x0e\x10"
    subscriber = Peer(broker.port()).accepted(client_id="kept", clean=False, properties=kept)
    subscriber.subscribed("load/#", 1)
    publisher = Peer(broker.port()).accepted(client_id="publisher")
    peak = 0
    for number in range(1, 161):
        publisher.send(publish("load/x", b"x" * 65536, qos=1, packet_id=number))
        publisher.expect(PUBACK)
        subscriber.message()
        if number % 20 == 0:
            peak = max(peak, api("GET", "/memory")["log_cache_bytes"])
    eventually(lambda: max(peak, sum_of(broker, "quelea_memory_log_cache_bytes")) > 0)
    subscriber.close()
    publisher.close()

    def held():
        usage = api("GET", "/memory")
        parts = ("client_bytes", "log_cache_bytes", "other_bytes")
        assert sum(usage[part] for part in parts) == usage["allocated_bytes"]
        return usage

    eventually(lambda: held()["log_cache_bytes"] == 0, "the log gives its memory back")
    # A tenth of what went through the log: as without it.
    eventually(lambda: held()["allocated_bytes"] < 8 << 20, "the rest is small")
    assert sum_of(broker, "quelea_memory_log_cache_bytes") == 0
    assert "log_cache_bytes" in ctl(broker, "memory")


def test_clients_that_lose_messages_are_listed_with_their_reasons(managed):
    broker, api = managed
    assert api("GET", "/drops/clients")["items"] == []
    small = b"\x27\x00\x00\x00\x40"
    clients = [
        Peer(broker.port()).accepted(client_id=name, properties=small).subscribed("big/#")
        for name in ("less", "more")
    ]
    publisher = Peer(broker.port()).accepted(client_id="publisher")

    def send():
        publisher.send(publish("big/x", b"x" * 100, qos=1, packet_id=7))
        publisher.expect(PUBACK)

    def rows(**query):
        return [
            (row["client_id"], row["messages"], row["reason"])
            for row in api("GET", "/drops/clients", **query)["items"]
        ]

    send()
    eventually(lambda: rows() == [("less", 1, "too_large"), ("more", 1, "too_large")])
    clients[0].close()
    eventually(lambda: len(api.all("/clients")) == 2)
    send()
    send()
    eventually(lambda: rows() == [("more", 3, "too_large"), ("less", 1, "too_large")])
    assert rows(limit=1) == [("more", 3, "too_large")] and rows(namespace="default") == rows()
    api("GET", "/drops/clients", status=404, namespace="nowhere")
    row = api("GET", "/drops/clients")["items"][0]
    assert row["reasons"] == [{"reason": "too_large", "limit": None, "messages": 3}]
    assert row["last_drop_secs"] <= row["first_drop_secs"]
    told = ctl(broker, "drops", "clients").splitlines()
    assert "more" in told[1] and "too_large" in told[1] and "less" in told[2]
