"""What operators ask about topics, rights and packets, and what they change while the broker runs."""

import subprocess

from broker import QUELEA
from test_api import Api, client, ctl, managed  # noqa: F401
from wire import PUBACK, Peer, publish


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
    for wrong in ({"attributes": [1]}, {"address": "x"}, {"listener": "x"}, {"qos": 3},
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
